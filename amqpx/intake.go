package amqpx

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
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
	live       context.Context // ends with the channel, and with the drain time
	began      time.Time
	work       sync.WaitGroup // its messages that were begun
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
		sub, err := k.subscribeOn(ctx, sess)
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
	s := &subscription{sess: sess, ch: ch, room: newRoom(k.prefetch), live: running, began: time.Now()}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		if e := <-closed; e != nil {
			end(fmt.Errorf("channel closed: %w", e))
			return
		}
		end(errors.New("channel closed"))
	}()
	s.deliveries, err = s.consume(k.queue, place{consumerTag, k.prefetch})
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
	return errors.New("the broker cancelled the consumer: the queue was deleted, or (since RabbitMQ 4.3) a handler exceeded the broker's consumer timeout")
}

// intake begins a handler for each message of a subscription, as slots become
// free, until ctx or the subscription ends.
func (k *consumer) intake(ctx context.Context, s *subscription) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
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
		s.fit(k, now)
		k.look(s)
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
	s.held.add(k.newJob(raw, s), time.Now())
}

// beginHandBack begins to end the intake of a subscription, if there is one, and closes the
// channel that it returns when that is done.
func beginHandBack(s *subscription) (returned <-chan struct{}) {
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
	ended := make(chan struct{})
	go func() {
		s.cancelAll()
		s.room.open.Wait()
		close(ended)
	}()
	var rest []amqp.Delivery
	for s.deliveries != nil || ended != nil {
		select {
		case <-s.live.Done(): // it all goes back with the channel
			return
		case raw, ok := <-s.deliveries:
			if !ok {
				s.deliveries = nil
				continue
			}
			rest = append(rest, raw)
		case raw := <-s.room.more:
			rest = append(rest, raw)
		case <-ended:
			ended = nil
		}
	}
	for _, raw := range append(s.held.empty(), rest...) {
		_ = raw.Nack(false, true) // or it goes back with the channel
	}
}
