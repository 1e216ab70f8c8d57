package amqpx

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// consumerTag is the same for all: each consumer has a channel of its own.
const consumerTag = "rabbitdelay"

// subscription is a consumer on the broker, on a channel of its own. A delivery
// can be acknowledged only on its own channel.
type subscription struct {
	sess       *session
	ch         *amqp.Channel
	deliveries <-chan amqp.Delivery
	waiting    jobs            // handed out and not begun
	behind     []*job          // likewise, while another delivery of the same message is being handled here
	live       context.Context // ends with the channel, and with the drain time
	began      time.Time
}

// subscribe begins to consume. A start that is abandoned because ctx ends is
// taken back when the broker has answered: it would hold messages for ever.
func (k *consumer) subscribe(ctx context.Context, sess *session) (*subscription, error) {
	type result struct {
		sub *subscription
		err error
	}
	done := make(chan result, 1)
	go func() {
		sub, err := k.start(ctx, sess)
		done <- result{sub, err}
	}()
	select {
	case r := <-done:
		return r.sub, r.err
	case <-ctx.Done():
		go func() { r := <-done; k.close(r.sub) }()
		return nil, ctx.Err()
	}
}

func (k *consumer) start(ctx context.Context, sess *session) (*subscription, error) {
	if err := k.declare(ctx, sess); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ch, err := sess.conn.Channel()
	if err != nil {
		return nil, err
	}
	running, end := context.WithCancelCause(k.handlers)
	s := &subscription{sess: sess, ch: ch, live: running, began: time.Now()}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		if e := <-closed; e != nil {
			end(fmt.Errorf("channel closed: %w", e))
			return
		}
		end(errors.New("channel closed"))
	}()
	if err = ch.Qos(k.prefetch, 0, false); err == nil {
		s.deliveries, err = live.ConsumeQueue(ch, k.queue, consumerTag)
	}
	if errors.Is(err, live.ErrStream) {
		k.barred = true
		err = fmt.Errorf("%w: queue: %w", ErrConfig, err)
	}
	if err != nil {
		k.close(s)
		return nil, err
	}
	return s, nil
}

// declare makes sure of the queue, its bindings and its dead-letter queue.
func (k *consumer) declare(ctx context.Context, sess *session) error {
	return k.c.dests.declare(ctx, sess, topology.Destination{Queue: k.queue, DeadLetter: k.dead})
}

// closeWait is how long the end of a channel waits for a broker that does not
// answer. The channel then ends with its connection.
const closeWait = 2 * time.Second

// closeChannel ends a channel, and waits for that until ctx ends or closeWait has passed.
// What was not acknowledged goes back to the queue.
func closeChannel(ctx context.Context, ch *amqp.Channel) {
	ctx, cancel := context.WithTimeout(ctx, closeWait)
	defer cancel()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = ch.Close()
	}()
	select {
	case <-closed:
	case <-ctx.Done():
	}
}

// lost tells that deliveries of this channel cannot be acknowledged any more: the
// broker delivers them again.
func (s *subscription) lost() bool { return s.ch.IsClosed() }

// ended says why there are no deliveries any more.
func (s *subscription) ended() error {
	if s.lost() {
		<-s.live.Done() // the reason comes at the same time
		return context.Cause(s.live)
	}
	return errors.New("the broker cancelled the consumer: the queue was deleted, or (since RabbitMQ 4.3) a handler exceeded the broker's consumer timeout")
}

// intake begins a handler for each message of a subscription, as slots become
// free, until ctx or the subscription ends.
func (k *consumer) intake(ctx context.Context, s *subscription) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		k.look(s)
		var slots chan<- struct{}
		var due <-chan time.Time
		if len(s.waiting) > 0 {
			slots = k.slots
			if wait := time.Until(s.waiting[0].at); wait > 0 {
				slots, due = nil, timer.C
				timer.Reset(wait)
			}
		}
		select {
		case <-ctx.Done():
		case <-s.live.Done():
			return context.Cause(s.live)
		case raw, ok := <-s.deliveries:
			if !ok {
				return s.ended()
			}
			heap.Push(&s.waiting, newJob(raw, s, time.Now()))
		case slots <- struct{}{}:
			j := s.waiting.next()
			if !k.ids.begin(j.raw.MessageId, j.raw.Redelivered) {
				s.behind = append(s.behind, j)
				<-k.slots
				continue
			}
			k.running.Add(1)
			k.work.Go(func() { k.process(j) })
		case <-k.ids.ended:
			s.release()
		case <-due:
		}
	}
	return ctx.Err()
}

// handBack begins to end the intake of a subscription, if there is one, and closes the
// channel that it returns when that is done.
func handBack(s *subscription) (returned <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if s != nil {
			s.handBack()
		}
	}()
	return done
}

// handBack ends the intake, and gives what was handed out and not begun back to
// the queue. Before the broker has cancelled the consumer it would only be
// delivered here again.
func (s *subscription) handBack() {
	go func() { _ = s.ch.Cancel(consumerTag, false) }()
	for {
		select {
		case <-s.live.Done(): // it all goes back with the channel
			return
		case raw, ok := <-s.deliveries:
			if ok {
				heap.Push(&s.waiting, newJob(raw, s, time.Now()))
				continue
			}
			s.release()
			for len(s.waiting) > 0 {
				_ = s.waiting.next().raw.Nack(false, true) // or it goes back with the channel
			}
			return
		}
	}
}

// release lets those try again that wait for another delivery of their message.
func (s *subscription) release() {
	for _, j := range s.behind {
		heap.Push(&s.waiting, j)
	}
	s.behind = nil
}

// busyIDs are the ids of messages that are being handled. A handler that outlives
// its delivery (the broker's consumer timeout, a lost connection) keeps its slot;
// without this the broker's next delivery of the message would take another, and so
// on until there are none left for other messages.
type busyIDs struct {
	mu    *sync.Mutex
	count map[string]int
	ended chan struct{} // gets an element when a handler has ended
}

func newBusyIDs() busyIDs {
	return busyIDs{mu: &sync.Mutex{}, count: map[string]int{}, ended: make(chan struct{}, 1)}
}

// begin notes that a message is handled. It reports false, and notes nothing, for
// one that is delivered again while it is.
func (b *busyIDs) begin(id string, redelivered bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if redelivered && id != "" && b.count[id] > 0 {
		return false
	}
	b.count[id]++
	return true
}

func (b *busyIDs) end(id string) {
	b.mu.Lock()
	if b.count[id]--; b.count[id] == 0 {
		delete(b.count, id)
	}
	b.mu.Unlock()
	select {
	case b.ended <- struct{}{}:
	default: // one tells of all
	}
}

// job is a message on its way to its handler.
type job struct {
	raw amqp.Delivery
	sub *subscription
	at  time.Time // when the handler may begin
}

// maxHold bounds how long a message that is early by this process's clock waits
// for its due instant before its handler runs.
const maxHold = 20 * time.Millisecond

// newJob says when the handler may begin: now, or at the due instant. The broker
// does not deliver early by its own clock, but its clock (Erlang corrects it
// smoothly) and this process's may differ by milliseconds.
func newJob(raw amqp.Delivery, s *subscription, now time.Time) *job {
	j := &job{raw: raw, sub: s, at: now}
	if due, ok := headerInt(raw.Headers, HeaderDue); ok {
		if wait := time.UnixMilli(due).Sub(now); wait > 0 {
			j.at = now.Add(min(wait, maxHold))
		}
	}
	return j
}

// jobs is a heap of those that wait for their instant or for a slot. The broker
// bounds their number by the prefetch.
type jobs []*job

func (s jobs) Len() int      { return len(s) }
func (s jobs) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s jobs) Less(i, j int) bool {
	if s[i].at.Equal(s[j].at) {
		return s[i].raw.DeliveryTag < s[j].raw.DeliveryTag
	}
	return s[i].at.Before(s[j].at)
}

// Push is container/heap's.
func (s *jobs) Push(x any) {
	j, _ := x.(*job)
	*s = append(*s, j)
}

// Pop is container/heap's.
func (s *jobs) Pop() any {
	old := *s
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	return last
}

// next removes the job that is due first.
func (s *jobs) next() *job {
	j, _ := heap.Pop(s).(*job)
	return j
}
