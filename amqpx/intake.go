package amqpx

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/lasthop"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

// consumerTag is the same for all: each subscription has a channel of its own.
const consumerTag = "rabbitdelay"

// subscription is a consumer on the broker, on a channel of its own. A delivery
// can be acknowledged only on its own channel.
type subscription struct {
	sess       *session
	ch         *amqp.Channel
	deliveries <-chan amqp.Delivery
	held       holding         // handed out and not begun
	room       *room           // for what is held
	told       <-chan struct{} // closed when the broker has been asked for its time; nil if it is not being asked
	renewals   renewals
	live       context.Context // ends with the channel, and with the drain time
	began      time.Time
	work       sync.WaitGroup // its messages that were begun
	cancelled  atomic.Bool    // the broker has ended a consumer of it
	others     atomic.Int64   // consumers of the queue beside its own, when it ends; -1: nobody has to know
}

// subscribe begins to consume. A start that is abandoned because ctx ends is
// taken back when the broker has answered: it would hold messages for ever. What
// was handed out by then is given back as at any other end.
func (k *consumer) subscribe(ctx context.Context, sess *session) (*subscription, error) {
	type result struct {
		sub *subscription
		err error
	}
	done := make(chan result, 1)
	go func() {
		sub, err := k.subscribeOn(ctx, sess)
		done <- result{sub, err}
	}()
	select {
	case r := <-done:
		return r.sub, r.err
	case <-ctx.Done():
		k.leaving.Go(func() {
			r := <-done
			<-k.beginHandBack(r.sub)
			k.close(k.c.forced, r.sub)
		})
		return nil, ctx.Err()
	}
}

func (k *consumer) subscribeOn(ctx context.Context, sess *session) (*subscription, error) {
	if err := k.declare(ctx, sess); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ch, err := sess.Conn.Channel()
	if err != nil {
		return nil, err
	}
	running, end := context.WithCancelCause(k.handlers)
	s := &subscription{sess: sess, ch: ch, room: newRoom(k.prefetch), live: running, renewals: newRenewals(running), began: time.Now()}
	s.others.Store(-1)
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		if e := <-closed; e != nil {
			end(fmt.Errorf("channel closed: %w", e))
			return
		}
		end(errors.New("channel closed"))
	}()
	s.deliveries, err = k.startOn(s, place{consumerTag, k.prefetch})
	if errors.Is(err, live.ErrStream) {
		k.barred = true
		err = fmt.Errorf("%w: queue: %w", ErrConfig, err)
	}
	if err != nil {
		k.close(k.c.forced, s)
		return nil, err
	}
	return s, nil
}

// declare makes sure of the queue, its bindings and its dead-letter queue.
func (k *consumer) declare(ctx context.Context, sess *session) error {
	return k.c.decl.Consume(ctx, sess.Session, topology.Destination{Queue: k.queue, DeadLetter: k.dead})
}

// lost reports whether deliveries of this channel can no longer be acknowledged: the
// broker delivers them again.
func (s *subscription) lost() bool { return s.ch.IsClosed() }

// ended returns why there are no deliveries any more.
func (s *subscription) ended() error {
	if s.lost() {
		<-s.live.Done() // the reason comes at the same time
		return context.Cause(s.live)
	}
	s.cancelled.Store(true)
	return errors.New("the broker cancelled the consumer: the queue was deleted, or (since RabbitMQ 4.3) a handler exceeded the broker's consumer timeout")
}

// close ends a subscription, if there is one, when the queue has taken note of what was acknowledged on its
// channel.
func (k *consumer) close(ctx context.Context, s *subscription) {
	if s == nil {
		return
	}
	if n := s.others.Load(); n >= 0 && !s.lost() {
		_ = wire.AwaitSettled(ctx, s.ch, k.queue, int(n))
	}
	wire.CloseChannel(ctx, s.ch)
}

// intake begins a handler for each message of a subscription, as slots become
// free, until ctx or the subscription ends.
func (k *consumer) intake(ctx context.Context, s *subscription) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer k.look(&holding{}, k.prefetch) // what was handed out goes back
	for ctx.Err() == nil {
		mode, changed := k.paused()
		switch mode {
		case PauseHandBack:
			return errPaused
		case PauseKeepPlace:
			k.become(ConsumerPaused, nil)
		default:
			k.become(ConsumerConsuming, nil)
		}
		now := time.Now()
		pause := s.held.ripen(now)
		for _, j := range s.held.tooEarly() {
			k.handling(s, func() { k.refuse(j) })
		}
		s.renew(k)
		s.fit(k, now)
		k.look(&s.held, s.room.places)
		var slots chan<- struct{}
		var due <-chan time.Time
		if pause > 0 {
			due = timer.C
			timer.Reset(pause)
		}
		if len(s.held.ready) > 0 && mode == "" {
			slots = k.slots
		}
		select {
		case <-ctx.Done():
		case <-s.live.Done():
			return context.Cause(s.live)
		case raw, ok := <-s.deliveries:
			if !ok {
				return s.ended()
			}
			k.receive(raw, s)
		case raw := <-s.room.more:
			k.receive(raw, s)
		case c := <-s.room.changed:
			s.room.take(c)
		case <-s.room.ended:
			return s.ended()
		case <-s.told:
			s.told = nil
			s.held.reconsider(k.reconsider)
		case j := <-s.renewals.ended:
			s.renewals.end(j, &s.held, time.Now())
		case slots <- struct{}{}:
			j := s.held.next()
			if s.lost() { // it comes again
				<-k.slots
				continue
			}
			if !k.ids.mark(j.d) {
				s.held.setAside(j)
				<-k.slots
				continue
			}
			k.running.Add(1)
			k.handling(s, func() { k.process(j) })
		case <-k.ids.ended:
			s.held.release(time.Now())
		case <-changed:
		case <-due:
		}
	}
	return ctx.Err()
}

// handling does something with a message of a subscription.
func (k *consumer) handling(s *subscription, do func()) {
	s.work.Add(1)
	k.work.Go(func() {
		defer s.work.Done()
		do()
	})
}

// receive holds a message until it may be handled. One that is far too early goes back.
func (k *consumer) receive(raw amqp.Delivery, s *subscription) {
	j := k.newJob(raw, s)
	if j.doubt && s.told == nil {
		s.told = k.c.clock.ask(k.c)
	}
	j.doubt = j.doubt && s.told != nil
	s.held.add(j, time.Now())
}

// newJob decides when the handler may begin. The wait counts from after the wall clock was read, so
// that it never ends early.
func (k *consumer) newJob(raw amqp.Delivery, s *subscription) *job {
	d, a := k.deliveryOf(raw), arrival(raw)
	w := k.decide(a)
	return &job{
		raw: raw, d: d, sub: s, at: time.Now().Add(w.Wait), again: w.Return, doubt: w.Doubt, offset: a.Offset,
		worn: d.isWorn(w), index: -1,
	}
}

func (k *consumer) decide(a lasthop.Arrival) lasthop.Decision {
	return k.c.clocks.Wait(a, k.c.cfg.Now(), time.Since(k.c.began))
}

// reconsider decides again about a message that is held in doubt, now that the broker may have told its time.
func (k *consumer) reconsider(j *job) {
	j.doubt = false
	w := k.decide(arrival(j.raw))
	if at := time.Now().Add(w.Wait); !w.Return && at.Before(j.at) {
		j.at = at
	}
}

// deliveryOf reads a message of the consumer's queue.
func (k *consumer) deliveryOf(raw amqp.Delivery) *Delivery {
	d := ReadDelivery(raw, k.queue, k.c.strategy.Prefix())
	d.MaxAttempts, d.received = k.retry.MaxAttempts, &received{consumer: k}
	return d
}

// beginHandBack begins to end the intake of a subscription, if there is one, and closes the
// channel that it returns when that is done.
func (k *consumer) beginHandBack(s *subscription) (returned <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if s == nil {
			return
		}
		if s.room.places > wire.Window {
			s.countOthers(k.c.forced, k.queue)
		}
		k.handBack(s)
	}()
	return done
}

// countOthers asks the broker how many consumers the queue has beside this subscription's.
func (s *subscription) countOthers(ctx context.Context, queue string) {
	if s.room.rpc.Lock(ctx) != nil {
		return
	}
	defer s.room.rpc.Unlock()
	if n, err := wire.Consumers(ctx, s.ch, queue); err == nil {
		s.others.Store(int64(n - 1 - len(s.room.further)))
	}
}

// handBack ends the intake of a subscription, and gives what was handed out and not begun back to the queue. What
// has come back before is renewed instead, also what the intake has not looked at: a consumer that is paused, or
// ends, as soon as it is at its queue would otherwise spend the queue's delivery limit. Before the broker has
// cancelled the consumer the messages and their copies would only be delivered here again.
func (k *consumer) handBack(s *subscription) {
	defer time.AfterFunc(wire.CloseWait/2, s.renewals.stop).Stop() // what is being confirmed had better not be there twice
	ended := make(chan struct{})
	go func() {
		s.cancelAll()
		s.room.open.Wait()
		close(ended)
	}()
	for {
		if s.deliveries == nil && ended == nil {
			s.renew(k)
			if s.renewals.count == 0 {
				break
			}
		}
		select {
		case <-s.live.Done(): // it all goes back with the channel
			return
		case raw, ok := <-s.deliveries:
			if !ok {
				s.deliveries = nil
				continue
			}
			k.holdToReturn(raw, s)
		case raw := <-s.room.more:
			k.holdToReturn(raw, s)
		case j := <-s.renewals.ended:
			s.renewals.end(j, &s.held, time.Now())
		case <-ended:
			ended = nil
		}
	}
	for _, raw := range s.held.empty() {
		_ = raw.Nack(false, true) // or it goes back with the channel
	}
}

// holdToReturn holds a message that comes while its consumer is taken off the queue.
func (k *consumer) holdToReturn(raw amqp.Delivery, s *subscription) {
	j := k.newJob(raw, s)
	if j.again { // it is not sent back for the rest of its delay now
		j.worn = j.d.returns > 0
	}
	s.held.add(j, time.Now())
}

// maxPrefetch is the largest that AMQP has.
const maxPrefetch = 65535

// roomPatience is how long room for held messages is kept that few of them need.
const roomPatience = 10 * time.Second

// room is what a subscription has beside its first consumer on the broker: further ones,
// on the same channel, for messages that are held until their instant. Those must not take
// the places of messages that could be handled, and how many there are follows from the
// lead and the rate. A queue with a single active consumer gives the further ones nothing.
// A larger consumer in the place of the first would do without them, but between the two the
// broker makes another the active one of such a queue, which changes its order.
type room struct {
	places   int // of all consumers
	further  []place
	idle     time.Time // since when few are needed; zero while many are
	changing bool
	changed  chan roomChange

	more   chan amqp.Delivery // of the further ones
	open   sync.WaitGroup     // those that may still deliver
	rpc    wait.Mutex         // amqp091 takes one request of a channel at a time
	ending sync.Map           // tags of those that are cancelled here
	ended  chan struct{}      // gets an element when the broker has ended a further one
}

type place struct {
	tag   string
	count int
}

// roomChange is the outcome of a change: places that were added, or taken away.
type roomChange struct {
	added place
	err   error
}

func newRoom(prefetch int) *room {
	return &room{
		places: prefetch, changed: make(chan roomChange, 1), more: make(chan amqp.Delivery),
		ended: make(chan struct{}, 1), rpc: wait.NewMutex(),
	}
}

// fit begins to make room where half of it is held, and to give up what few need.
func (s *subscription) fit(k *consumer, now time.Time) {
	r := s.room
	if r.changing {
		return
	}
	held := len(s.held.early)
	full := s.held.bytes > k.heldBytes
	if 2*held >= r.places && !full {
		r.idle = time.Time{}
		if count := r.spare(k.heldBytes, &s.held); count > 0 && s.told == nil {
			s.grow(k, count)
		}
		return
	}
	switch {
	case full && len(r.further) > 0:
		s.shrink()
	case len(r.further) == 0 || 8*held > r.places:
		r.idle = time.Time{}
	case r.idle.IsZero():
		r.idle = now
	case now.Sub(r.idle) >= roomPatience:
		r.idle = now
		s.shrink()
	}
}

// spare returns how many places may be added: as many as there are, and no more than messages of the size of
// those that are held fit into a number of bytes.
func (r *room) spare(most int, held *holding) int {
	if held.count == 0 {
		return 0
	}
	return min(r.places, maxPrefetch-r.places, most/(held.bytes/held.count)-max(r.places, held.count))
}

// grow adds a consumer on the broker with so many places.
func (s *subscription) grow(k *consumer, count int) {
	p := place{fmt.Sprintf("%s-%d", consumerTag, len(s.room.further)+2), count}
	s.room.changing = true
	s.room.open.Go(func() {
		deliveries, err := k.startOn(s, p)
		if err != nil {
			k.log.Warn("no more messages can be held", zap.Int("places", count), zap.Error(err))
		}
		s.room.changed <- roomChange{p, err}
		if err != nil {
			return
		}
		for raw := range deliveries {
			select {
			case s.room.more <- raw:
			case <-s.live.Done():
			}
		}
		s.room.end(p.tag)
	})
}

// end takes in that a further consumer delivers no more. If it was not cancelled here, the broker has ended it, and its
// messages may have been taken away as those of the first one.
func (r *room) end(tag string) {
	if _, ours := r.ending.LoadAndDelete(tag); ours {
		return
	}
	select {
	case r.ended <- struct{}{}:
	default: // one stands for all
	}
}

// consume begins to consume with so many places.
func (s *subscription) consume(queue string, p place) (<-chan amqp.Delivery, error) {
	if err := s.room.rpc.Lock(s.live); err != nil {
		return nil, err
	}
	defer s.room.rpc.Unlock()
	if err := s.ch.Qos(p.count, 0, false); err != nil {
		return nil, err
	}
	return live.ConsumeQueue(s.ch, queue, p.tag)
}

// shrink cancels the newest of the further consumers. What it was given stays here.
func (s *subscription) shrink() {
	last := len(s.room.further) - 1
	p := s.room.further[last]
	s.room.further, s.room.places = s.room.further[:last], s.room.places-p.count
	s.room.changing = true
	go func() {
		s.cancel(p.tag)
		s.room.changed <- roomChange{}
	}()
}

func (s *subscription) cancel(tag string) {
	if s.room.rpc.Lock(s.live) != nil {
		return // its channel has ended, or is closed next
	}
	defer s.room.rpc.Unlock()
	s.room.ending.Store(tag, true)
	_ = s.ch.Cancel(tag, false)
}

// take takes in what became of a change.
func (r *room) take(c roomChange) {
	r.changing = false
	if c.err == nil && c.added.count > 0 {
		r.further = append(r.further, c.added)
		r.places += c.added.count
	}
}

// cancelAll ends all consumers of the subscription.
func (s *subscription) cancelAll() {
	s.cancel(consumerTag)
	if s.room.changing {
		s.room.take(<-s.room.changed)
	}
	for _, p := range s.room.further {
		s.cancel(p.tag)
	}
}
