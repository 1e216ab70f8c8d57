package consume

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/duecheck"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/flow"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// Outcome says how a delivery was settled. Package amqpx documents the values.
type Outcome string

// Outcomes of a delivery.
const (
	Acked        Outcome = "acked"
	Retried      Outcome = "retried"
	Snoozed      Outcome = "snoozed"
	DeadLettered Outcome = "dead-lettered"
	Requeued     Outcome = "requeued"
	Returned     Outcome = "returned"
	Lost         Outcome = "lost"
)

// settle acknowledges, requeues or replaces a message according to the disposition. It publishes messages with the
// context values of ctx.
func (k *Consumer) settle(ctx context.Context, d *Delivery, p disposition) Outcome {
	k.settling.Add(1)
	defer k.settling.Add(-1)
	switch p.act {
	case actAck:
		return d.ack(Acked)
	case actRequeue: // pause first, because the broker redelivers the message immediately
		k.log.Debug("requeueing a message", zap.String("id", d.ID), zap.String("error", p.text))
		k.linger(d, p.delay)
		return d.requeue()
	case actRecount:
		if err := d.Raw.Reject(true); err != nil { // unlike basic.nack, basic.reject counts as a delivery in RabbitMQ 4.3
			return Lost
		}
		return Requeued
	case actReturn:
		if p.err != nil && d.returned >= duecheck.Patience {
			// This process's clock says that the message is early. If the broker's clock is ahead, the broker would
			// deliver the message again and again. No header can tell the next consumer about that difference, so the
			// message has to wait in this consumer.
			rest := d.DueAt.Add(-p.offset).Sub(k.all.cfg.Now())
			k.linger(d, min(max(rest, 0), duecheck.MaxHold))
		}
	}
	return k.replace(ctx, d, k.replacement(d, p))
}

// replaceTimeout bounds one attempt to publish a replacement. The pause between attempts is replaceMin, doubled each
// time up to replaceMax.
const (
	replaceTimeout = 10 * time.Second
	replaceMin     = 100 * time.Millisecond
	replaceMax     = 10 * time.Second
)

// replace publishes a message in place of the received one, and acknowledges the received one when the broker has
// confirmed the new one. Until then the received message stays unacknowledged, so it cannot be lost. If the new message
// can never be published, or the client is closed, the received one is requeued. After any other error, replace tries
// again or, if the consumer is shutting down, requeues the received message.
//
// Before each try, replace checks that the broker has not requeued the received message, because the new message would
// then be a duplicate. If the broker has cancelled the consumer, no message is replaced, because the broker does not
// say which messages it has requeued.
func (k *Consumer) replace(values context.Context, d *Delivery, r replacement) Outcome {
	if r.MessageId == "" {
		r.MessageId = k.all.cfg.Publisher.NewID() // all tries use the same id
	}
	for try := 1; ; try++ {
		if d.sub.lost() || d.sub.live.Err() != nil || d.sub.cancelled.Load() || try > 1 && k.ending.Err() != nil {
			return d.requeue()
		}
		err := k.publish(values, d, r)
		if err == nil {
			if r.outcome == Returned {
				k.returned.Add(1)
			}
			return d.ack(r.outcome)
		}
		invalid, headers := k.all.cfg.Publisher.Invalid(err)
		switch {
		case headers && r.dropHeaders():
			k.log.Error("the message's headers cannot be published again and are dropped", zap.String("id", r.MessageId), zap.Error(err))
			continue
		case invalid, errors.Is(err, wire.ErrClosed):
			k.linger(d, replaceMax) // pause, because the broker redelivers the message immediately
			return d.requeue()
		}
		k.linger(d, wait.Backoff(replaceMin, replaceMax, try))
	}
}

// publish tries once to publish a replacement. If its queue is missing, publish declares it for the next try.
func (k *Consumer) publish(values context.Context, d *Delivery, r replacement) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(values), replaceTimeout)
	defer cancel()
	defer context.AfterFunc(d.sub.live, cancel)()
	err := k.all.cfg.Publisher.Pass(ctx, r.Copy)
	if errors.Is(err, flow.ErrUnroutable) && r.Route != nil {
		err = errors.Join(err, wait.Done(ctx, func() error { return k.declare(ctx, d.sub.sess) }))
	}
	if err != nil {
		k.stuck.Warn(k.log, "", "could not publish the message that replaces a received one; trying again", zap.String("id", r.MessageId), zap.String("outcome", string(r.outcome)), zap.Error(err))
	}
	return err
}

// dropHeaders removes headers that another publisher has set: first the message's own headers and, on further calls,
// those that are carried. It reports whether there were any. Such headers may make it impossible to publish the
// message, if they are too large or have types that amqp091 cannot write. The body is more important than these
// headers.
func (r *replacement) dropHeaders() bool {
	if r.Headers != nil {
		r.Headers = nil
		return true
	}
	for _, name := range []string{header.Raw, header.Carried} {
		if _, ok := r.Own[name]; ok {
			delete(r.Own, name)
			return true
		}
	}
	return false
}

// linger waits for the given time. It returns earlier if the consumer stops or the message's channel is closed.
func (k *Consumer) linger(d *Delivery, pause time.Duration) {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-d.sub.live.Done():
	case <-k.ending.Done():
	}
}

// ack acknowledges the message and returns o, or Lost if that fails.
func (d *Delivery) ack(o Outcome) Outcome {
	if err := d.Raw.Ack(false); err != nil {
		return Lost
	}
	return o
}

// requeue returns the message to its queue unchanged.
func (d *Delivery) requeue() Outcome {
	if err := d.Raw.Nack(false, true); err != nil {
		return Lost
	}
	return Requeued
}
