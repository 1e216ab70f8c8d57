package consume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// consumerTag is the tag of every subscription's first consumer. Subscriptions can share it because each has its
// own channel.
const consumerTag = "rabbitdelay"

// subscription is a consumer on the broker with its own channel. A delivery can be acknowledged only on the channel on
// which it arrived.
type subscription struct {
	sess       *Session
	ch         *amqp.Channel
	deliveries <-chan amqp.Delivery
	buffer     buffer          // deliveries that no handler has started on
	prefetch   *prefetch       // grows with the held messages
	told       <-chan struct{} // closed when the request for the broker's time has ended; nil if there is no such request
	renewals   renewals
	live       context.Context // ends with the channel or with the drain time, whichever is first
	began      time.Time
	work       sync.WaitGroup // messages being handled or settled
	cancelled  atomic.Bool    // the broker has cancelled one of its consumers
	ages       ages
	others     atomic.Int64 // the queue's other consumers, counted when the subscription ends; -1 if not counted
}

// subscribe starts consuming. If ctx ends first, subscribe returns immediately, and the subscription is cancelled in
// the background once the broker has answered, because the subscription would otherwise hold messages forever. Messages
// that have been delivered by then are returned to the queue, as they are whenever a subscription ends.
func (k *Consumer) subscribe(ctx context.Context, sess *Session) (*subscription, error) {
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
			k.close(k.all.cfg.Forced, r.sub)
		})
		return nil, ctx.Err()
	}
}

func (k *Consumer) subscribeOn(ctx context.Context, sess *Session) (*subscription, error) {
	if err := k.declare(ctx, sess); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ch, err := channels.Open(sess.Conn)
	if err != nil {
		return nil, err
	}
	running, end := context.WithCancelCause(k.handlers)
	s := &subscription{sess: sess, ch: ch, prefetch: newPrefetch(k.set.Prefetch), live: running, renewals: newRenewals(running), began: time.Now()}
	s.others.Store(-1)
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		if e := <-closed; e != nil {
			end(fmt.Errorf("channel closed: %w", e))
			return
		}
		end(errors.New("channel closed"))
	}()
	s.deliveries, err = k.startOn(s, brokerConsumer{consumerTag, k.set.Prefetch})
	if errors.Is(err, live.ErrStream) {
		k.barred = true
	}
	if err != nil {
		k.close(k.all.cfg.Forced, s)
		return nil, err
	}
	return s, nil
}

// declare makes sure that the queue, its bindings and its dead-letter queue exist.
func (k *Consumer) declare(ctx context.Context, sess *Session) error {
	return k.all.cfg.Declarer.Consume(ctx, sess.Session, topology.Destination{Queue: k.set.Queue, DeadLetter: k.set.DeadLetter})
}

// lost reports whether the channel is closed. Its deliveries can then no longer be acknowledged, and the broker
// redelivers them.
func (s *subscription) lost() bool { return s.ch.IsClosed() }

// ended returns the reason why no more deliveries arrive. If the reason is that the broker has cancelled the consumer,
// it records that.
func (s *subscription) ended() error {
	if s.lost() {
		<-s.live.Done() // the reason is set when the channel closes
		return context.Cause(s.live)
	}
	s.ages.overrun(s.buffer.all())
	s.cancelled.Store(true)
	return errors.New("the broker cancelled the consumer: the queue was deleted, or (since RabbitMQ 4.3) a handler exceeded the broker's consumer timeout")
}

// close closes the channel of a subscription. If countOthers has counted the queue's other consumers, close first waits
// until the queue has processed the channel's acknowledgements. It does nothing if s is nil.
func (k *Consumer) close(ctx context.Context, s *subscription) {
	if s == nil {
		return
	}
	if n := s.others.Load(); n >= 0 && !s.lost() {
		_ = wire.AwaitSettled(ctx, s.ch, k.set.Queue, int(n))
	}
	wire.CloseChannel(ctx, s.ch)
}

// beginHandBack starts handBack in the background and returns a channel that is closed when it has finished. If s
// is nil, there is nothing to do.
func (k *Consumer) beginHandBack(s *subscription) (returned <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if s == nil {
			return
		}
		if s.prefetch.total > wire.Window {
			s.countOthers(k.all.cfg.Forced, k.set.Queue)
		}
		k.handBack(s)
	}()
	return done
}

// countOthers asks the broker how many consumers the queue has in addition to this subscription's own, and records the
// number in s.others.
func (s *subscription) countOthers(ctx context.Context, queue string) {
	if s.prefetch.rpc.Lock(ctx) != nil {
		return
	}
	defer s.prefetch.rpc.Unlock()
	if n, err := wire.Consumers(ctx, s.ch, queue); err == nil {
		s.others.Store(int64(n - 1 - len(s.prefetch.extra)))
	}
}

// handBack cancels the subscription's consumers and returns to the queue the deliveries that no handler has started on.
// Deliveries that have been returned before are renewed instead, including those that the intake has not read yet.
// Otherwise, a consumer that is repeatedly paused or stopped right after it starts would use up the queue's delivery
// limit. Nothing is returned before the broker has cancelled the consumers, because until then the messages and their
// copies would be delivered to this consumer again.
func (k *Consumer) handBack(s *subscription) {
	// Renewals get half of CloseWait to be confirmed, because an abandoned renewal can leave a duplicate.
	defer time.AfterFunc(wire.CloseWait/2, s.renewals.stop).Stop()
	ended := make(chan struct{})
	go func() {
		s.cancelAll()
		s.prefetch.open.Wait()
		close(ended)
	}()
	for {
		if s.deliveries == nil && ended == nil {
			if k.mustWear(s) {
				s.buffer.wearHeld()
			}
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
		case raw := <-s.prefetch.more:
			k.holdToReturn(raw, s)
		case d := <-s.renewals.ended:
			s.renewals.end(d, &s.buffer, time.Now())
		case <-ended:
			ended = nil
		}
	}
	for _, raw := range s.buffer.empty() {
		_ = raw.Nack(false, true) // if this fails, the message is requeued when the channel closes
	}
}

// holdToReturn buffers a message that arrives while the subscription's consumers are being cancelled.
func (k *Consumer) holdToReturn(raw amqp.Delivery, s *subscription) {
	d := k.decode(raw, s)
	if d.check.early { // it is too late to send the message back for the rest of its delay
		d.worn = d.returns > 0
	}
	s.buffer.add(d, time.Now())
}
