package amqpx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// takeIdle is how long a portion waits for a further message before it asks
// whether there is one.
const takeIdle = 100 * time.Millisecond

// syncTimeout bounds a round trip to the queue's broker.
const syncTimeout = 30 * time.Second

// take takes up to n messages into r.taken; none means that there are none. A consumer whose
// prefetch is n gets n messages and no more, because none of them is acknowledged
// before it is cancelled; a basic.get for each would be n round trips.
func (r *requeue) take(ctx context.Context, n int) error {
	tag := fmt.Sprintf("%s%06d", topology.RequeueConsumer, r.rep.Looked) // a broker puts back by tag
	var from <-chan amqp.Delivery
	err := r.ask(ctx, func() (err error) {
		if err = r.ch.Qos(n, 0, false); err == nil {
			from, err = live.ConsumeQueue(r.ch, r.o.Queue, tag)
		}
		return err
	})
	if errors.Is(err, live.ErrStream) {
		return peekRefused(r.o.Queue, live.ErrStream)
	}
	if err != nil {
		return err
	}
	idle := time.NewTimer(takeIdle)
	defer idle.Stop()
	for waiting := true; waiting && len(r.taken) < n; {
		select {
		case raw, ok := <-from:
			if waiting = ok; ok {
				r.taken = append(r.taken, raw)
				idle.Reset(takeIdle)
			}
		case <-idle.C:
			waiting = false
		case <-ctx.Done():
			waiting = false
		}
	}
	if err = r.ask(r.c.forced, func() error { return r.ch.Cancel(tag, false) }); err != nil {
		return err
	}
	for raw := range from {
		r.taken = append(r.taken, raw)
	}
	if len(r.taken) == 0 && ctx.Err() == nil {
		err = r.takeOne(ctx)
	}
	r.rep.PutBack += len(r.taken) // unless it goes
	return cmp.Or(err, ctx.Err())
}

// takeOne asks the queue itself whether it is empty, when nothing came in time.
func (r *requeue) takeOne(ctx context.Context) error {
	var raw amqp.Delivery
	var ok bool
	err := r.ask(ctx, func() (err error) {
		raw, ok, err = r.ch.Get(r.o.Queue, false)
		return err
	})
	if err == nil && ok {
		r.taken = append(r.taken, raw)
	}
	return err
}

// ask runs a request, and explains the end of the channel.
func (r *requeue) ask(ctx context.Context, request func() error) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	err := within(ctx, request)
	if err != nil && r.ch.IsClosed() {
		return fmt.Errorf("the broker took the channel away; what was not sent is in the queue again: %w", err)
	}
	return err
}

// acknowledge takes messages off the queue, and returns when the broker has done it:
// nothing else is sent before.
func (r *requeue) acknowledge(round []*letter) error {
	for _, l := range round {
		if l.fate.outcome == RequeueStayed {
			continue
		}
		if err := l.raw.Ack(false); err != nil {
			return fmt.Errorf("message %s was %s and could not be acknowledged, so that it may come twice: %w", l.ID, l.fate.outcome, err)
		}
		r.rep.PutBack--
	}
	return r.ask(r.c.forced, func() error { return r.ch.Qos(1, 0, false) }) // its answer comes after the acknowledgements
}

// keep sees to it that a message which stays can be put back: where the queue might
// drop it, a copy goes to the queue's end instead.
func (r *requeue) keep(raw amqp.Delivery) error {
	count, _ := headerInt(raw.Headers, headerDeliveries)
	if !r.rep.CountsDeliveries || count+1 < r.limit {
		return nil
	}
	if err := r.copyBack(raw); err != nil {
		return fmt.Errorf("message %s was delivered %d times and may be dropped when it is put back; a copy could not be made: %w", raw.MessageId, count+1, err)
	}
	if err := raw.Ack(false); err != nil {
		return err
	}
	r.rep.Moved++
	r.rep.PutBack--
	return nil
}

// copyHeaders are the headers of a message as its copy has them. By CC the broker would
// route the copy to other queues too, so that is carried.
func copyHeaders(raw amqp.Delivery, queue string) amqp.Table {
	if _, ok := raw.Headers[headerCC]; !ok {
		return raw.Headers
	}
	h := maps.Clone(raw.Headers)
	delete(h, headerCC)
	h[HeaderCarried] = decode(raw, queue).carried()
	return h
}

// copyBack publishes a message to the queue that it came from, as it is.
func (r *requeue) copyBack(raw amqp.Delivery) error {
	ctx, cancel := context.WithTimeout(r.c.forced, passTimeout)
	defer cancel()
	if r.copies == nil || r.copies.ch.IsClosed() {
		if err := r.openCopies(ctx); err != nil {
			return err
		}
	}
	copied := publication{on: r.copies, key: returnKey{raw.MessageId, "", r.o.Queue}, size: len(raw.Body), alone: true}
	err := within(ctx, func() (err error) {
		copied.dc, err = copied.on.ch.PublishWithDeferredConfirm("", r.o.Queue, true, false, amqp.Publishing{
			Headers: copyHeaders(raw, r.o.Queue), ContentType: raw.ContentType, ContentEncoding: raw.ContentEncoding, DeliveryMode: raw.DeliveryMode,
			Priority: raw.Priority, CorrelationId: raw.CorrelationId, ReplyTo: raw.ReplyTo, Expiration: raw.Expiration,
			MessageId: raw.MessageId, Timestamp: raw.Timestamp, Type: raw.Type, AppId: raw.AppId, Body: raw.Body,
		})
		return err
	})
	if err != nil {
		return err
	}
	if _, err := copied.dc.WaitContext(ctx); err != nil {
		return fmt.Errorf("the broker has not confirmed it: %w", err)
	}
	return copied.answer().err
}

// openCopies opens the channel for copies, which the run keeps.
func (r *requeue) openCopies(ctx context.Context) error {
	r.endCopies()
	sess, err := r.c.pub.wait(ctx, true)
	if err != nil {
		return err
	}
	on, err := sess.pub.ownChannel(ctx)
	if err == nil {
		r.copies, r.endCopies = on, func() { sess.pub.end(on) }
	}
	return err
}

// putBack gives everything back that was not acknowledged, in its order.
func (r *requeue) putBack() error {
	if r.ch.IsClosed() {
		return nil
	}
	var err error
	for len(r.taken) > 0 && err == nil {
		err = r.keep(r.taken[0])
		r.taken = r.taken[1:]
	}
	if nacked := r.ch.Nack(0, true, true); nacked != nil {
		return errors.Join(err, nacked)
	}
	return errors.Join(err, r.ask(r.c.forced, func() error { return r.seen(r.rep.PutBack) }))
}

// seen waits until so many messages are ready again, for a second: somebody may
// have taken them. A quorum queue answers before it has put them back, and a run that
// begins then would find none.
func (r *requeue) seen(back int) error {
	for try := range 50 {
		q, err := r.ch.QueueDeclarePassive(r.o.Queue, true, false, false, false, nil)
		if err != nil || q.Messages >= back {
			return err
		}
		<-time.After(time.Duration(try) * time.Millisecond)
	}
	return nil
}
