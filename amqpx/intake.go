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

// consumerTag is the tag of every subscription's first consumer. Subscriptions can share it because each has its
// own channel.
const consumerTag = "rabbitdelay"

// subscription is a consumer on the broker with its own channel. A delivery can be acknowledged only on the
// channel that it came from.
type subscription struct {
	sess       *session
	ch         *amqp.Channel
	deliveries <-chan amqp.Delivery
	held       holding         // deliveries that no handler has started on
	room       *room           // further consumers, for held messages
	told       <-chan struct{} // closed when the request for the broker's time has ended; nil if there is no such request
	renewals   renewals
	live       context.Context // ends with the channel or with the drain time, whichever is first
	began      time.Time
	work       sync.WaitGroup // messages being handled or settled
	cancelled  atomic.Bool    // the broker has cancelled one of its consumers
	others     atomic.Int64   // the queue's other consumers, counted when the subscription ends; -1 if not counted
}

// subscribe starts consuming. If ctx ends first, subscribe returns immediately, and the subscription is cancelled
// in the background once the broker has answered, because it would otherwise hold messages forever. Messages
// delivered by then are returned to the queue, as at any other end of a subscription.
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

// declare makes sure that the queue, its bindings and its dead-letter queue exist.
func (k *consumer) declare(ctx context.Context, sess *session) error {
	return k.c.decl.Consume(ctx, sess.Session, topology.Destination{Queue: k.queue, DeadLetter: k.dead})
}

// lost reports whether the channel is closed. Its deliveries can then no longer be acknowledged, and the broker
// redelivers them.
func (s *subscription) lost() bool { return s.ch.IsClosed() }

// ended returns the reason why deliveries have stopped.
func (s *subscription) ended() error {
	if s.lost() {
		<-s.live.Done() // the reason is set when the channel closes
		return context.Cause(s.live)
	}
	s.cancelled.Store(true)
	return errors.New("the broker cancelled the consumer: the queue was deleted, or (since RabbitMQ 4.3) a handler exceeded the broker's consumer timeout")
}

// close closes the channel of a subscription. If the queue's other consumers were counted, it first waits until
// the queue has processed the channel's acknowledgements. It does nothing if s is nil.
func (k *consumer) close(ctx context.Context, s *subscription) {
	if s == nil {
		return
	}
	if n := s.others.Load(); n >= 0 && !s.lost() {
		_ = wire.AwaitSettled(ctx, s.ch, k.queue, int(n))
	}
	wire.CloseChannel(ctx, s.ch)
}

// intake starts a handler for each message of a subscription as slots become free. It returns when ctx or the
// subscription ends, or when the consumer is paused with PauseHandBack.
func (k *consumer) intake(ctx context.Context, s *subscription) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer k.look(&holding{}, k.prefetch) // the buffered deliveries are about to be returned to the queue
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
			if s.lost() { // the broker redelivers it
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

// handling runs do in a goroutine and counts it as work of the subscription and of the consumer.
func (k *consumer) handling(s *subscription, do func()) {
	s.work.Add(1)
	k.work.Go(func() {
		defer s.work.Done()
		do()
	})
}

// receive buffers a message until it may be handled or, if it is far too early, until it is sent back.
func (k *consumer) receive(raw amqp.Delivery, s *subscription) {
	j := k.newJob(raw, s)
	if j.doubt && s.told == nil {
		s.told = k.c.clock.ask(k.c)
	}
	j.doubt = j.doubt && s.told != nil
	s.held.add(j, time.Now())
}

// newJob decides when the handler may start. It adds the wait to a time that it reads after the wall clock, so the
// wait never ends early.
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

// reconsider decides again when a message in doubt may be handled, because the broker may have reported its time
// in the meantime.
func (k *consumer) reconsider(j *job) {
	j.doubt = false
	w := k.decide(arrival(j.raw))
	if at := time.Now().Add(w.Wait); !w.Return && at.Before(j.at) {
		j.at = at
	}
}

// deliveryOf converts a message from the consumer's queue to a Delivery.
func (k *consumer) deliveryOf(raw amqp.Delivery) *Delivery {
	d := ReadDelivery(raw, k.queue, k.c.strategy.Prefix())
	d.MaxAttempts, d.received = k.retry.MaxAttempts, &received{consumer: k}
	return d
}

// beginHandBack starts handBack in the background and returns a channel that is closed when it has finished. If s
// is nil, there is nothing to do.
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

// countOthers asks the broker how many consumers the queue has in addition to this subscription's own.
func (s *subscription) countOthers(ctx context.Context, queue string) {
	if s.room.rpc.Lock(ctx) != nil {
		return
	}
	defer s.room.rpc.Unlock()
	if n, err := wire.Consumers(ctx, s.ch, queue); err == nil {
		s.others.Store(int64(n - 1 - len(s.room.further)))
	}
}

// handBack cancels the subscription's consumers and returns to the queue the deliveries that no handler has
// started on. Deliveries that have been returned before are renewed instead, including those that the intake has
// not read yet. Otherwise a consumer that is repeatedly paused or stopped right after it starts would use up the
// queue's delivery limit. Nothing is returned before the broker has cancelled the consumers, because the messages
// and their copies would only be delivered here again.
func (k *consumer) handBack(s *subscription) {
	// Renewals get half of CloseWait to be confirmed, because an abandoned renewal can leave a duplicate.
	defer time.AfterFunc(wire.CloseWait/2, s.renewals.stop).Stop()
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
		case <-s.live.Done(): // everything is requeued when the channel closes
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
		_ = raw.Nack(false, true) // if this fails, it is requeued when the channel closes
	}
}

// holdToReturn buffers a message that arrives while the subscription's consumers are being cancelled.
func (k *consumer) holdToReturn(raw amqp.Delivery, s *subscription) {
	j := k.newJob(raw, s)
	if j.again { // it is too late to send it back for the rest of its delay
		j.worn = j.d.returns > 0
	}
	s.held.add(j, time.Now())
}

// maxPrefetch is the largest prefetch count that AMQP can express.
const maxPrefetch = 65535

// roomPatience is how long further consumers are kept although few messages are held.
const roomPatience = 10 * time.Second

// room manages the further consumers of a subscription: consumers on the same channel that receive more messages
// while many are held until their due time. Held messages must not use up the prefetch that messages ready to be
// handled need, and the number of held messages depends on the lead and the message rate. On a queue with a single
// active consumer the further consumers receive nothing. Replacing the first consumer by one with a larger
// prefetch would work there, but between the two the broker would make another consumer of the queue the active
// one, which changes the order of messages.
type room struct {
	places   int // total prefetch of all consumers
	further  []place
	idle     time.Time // since when few places have been needed; zero while many are
	changing bool
	changed  chan roomChange

	more   chan amqp.Delivery // deliveries to the further consumers
	open   sync.WaitGroup     // further consumers that may still receive deliveries
	rpc    wait.Mutex         // serializes requests on the channel, as amqp091 requires
	ending sync.Map           // tags of the consumers that this process has cancelled
	ended  chan struct{}      // receives an element when the broker has cancelled a further consumer
}

// place is a consumer on the broker and its prefetch count.
type place struct {
	tag   string
	count int
}

// roomChange is the result of adding or removing a consumer.
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

// fit adds a consumer when half of the places are taken by held messages, and removes one when few places have
// been needed for a while or when the held messages take too much memory.
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

// spare returns how many places may be added: as many as there are now, but no more than the number of messages of
// the current average size that fit into most bytes.
func (r *room) spare(most int, held *holding) int {
	if held.count == 0 {
		return 0
	}
	return min(r.places, maxPrefetch-r.places, most/(held.bytes/held.count)-max(r.places, held.count))
}

// grow starts a further consumer on the broker with a prefetch of count.
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

// end records that a further consumer receives no more deliveries. If this process did not cancel it, the broker
// did, and the broker may have taken back its unacknowledged messages, as it does when it cancels the first
// consumer.
func (r *room) end(tag string) {
	if _, ours := r.ending.LoadAndDelete(tag); ours {
		return
	}
	select {
	case r.ended <- struct{}{}:
	default: // the channel already has an element, and one is enough
	}
}

// consume starts a broker consumer with the given tag and prefetch.
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

// shrink cancels the newest further consumer. Messages that were already delivered to it stay buffered.
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
		return // the channel has ended or is about to be closed
	}
	defer s.room.rpc.Unlock()
	s.room.ending.Store(tag, true)
	_ = s.ch.Cancel(tag, false)
}

// take applies the result of adding or removing a consumer.
func (r *room) take(c roomChange) {
	r.changing = false
	if c.err == nil && c.added.count > 0 {
		r.further = append(r.further, c.added)
		r.places += c.added.count
	}
}

// cancelAll cancels all consumers of the subscription.
func (s *subscription) cancelAll() {
	s.cancel(consumerTag)
	if s.room.changing {
		s.room.take(<-s.room.changed)
	}
	for _, p := range s.room.further {
		s.cancel(p.tag)
	}
}
