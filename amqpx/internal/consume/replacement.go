package consume

import (
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/inner"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// replacement is the message that replaces a received one, with the same id.
type replacement struct {
	inner.Copy

	outcome Outcome // the received message's outcome once the replacement is confirmed
}

// republished returns a copy of the message to publish again, with its body, properties and headers, but without a
// destination or delay.
func (d *Delivery) republished() inner.Copy {
	return inner.Copy{
		Publishing: amqp.Publishing{
			MessageId: cmp.Or(d.ID, d.assignedID), Body: d.Raw.Body,
			ContentType: d.Raw.ContentType, ContentEncoding: d.Raw.ContentEncoding, Type: d.Raw.Type,
			CorrelationId: d.Raw.CorrelationId, ReplyTo: d.Raw.ReplyTo, AppId: d.Raw.AppId,
			Priority: d.Raw.Priority, Headers: d.Headers,
		},
		Attempt: d.Attempt, Version: d.Version, Created: d.Created, Own: amqp.Table{},
	}
}

// replacement builds the message that replaces one that failed, was snoozed or arrived too early. It is sent to the
// same queue, or to the dead-letter queue, and has the headers that record what has happened to the message so far.
func (k *Consumer) replacement(d *Delivery, p disposition) replacement {
	r, snoozes := replacement{Copy: d.republished()}, d.Snoozes
	r.To = k.queue()
	switch {
	case p.act == actReturn:
		k.toReturn(&r, d, p)
	case p.act == actSnooze:
		r.outcome = Snoozed
		snoozes++
		k.toDelay(&r, d, p)
	case p.act == actRetry && d.Attempt < d.MaxAttempts:
		r.outcome = Retried
		r.Attempt++
		k.toDelay(&r, d, p)
	default:
		k.toDeadLetter(&r, d, p)
	}
	header.Origin(r.Own, d.Exchange, d.RoutingKey)
	d.Record(r.Own, snoozes)
	if r.outcome == Retried || r.outcome == DeadLettered {
		header.RecordFailure(r.Own, p.text)
	}
	return r
}

// toReturn prepares a message that arrived too early, so that it waits for the rest of its delay. That does not count
// as an attempt, and the due time stays the same. The clock that it was computed with is assumed to be ahead of this
// process's clock by p.offset. If the strategy does not support exactly the remaining delay, the message gets the route
// for the delay that PossibleDelay returns.
func (k *Consumer) toReturn(r *replacement, d *Delivery, p disposition) {
	k.log.Debug("sending back a message that arrived too early", zap.String("id", d.ID), zap.Time("due", d.DueAt))
	r.outcome, r.DeliverAt, r.ClockOffset = Returned, d.DueAt, p.offset
	r.Own[header.Returned] = d.returned + 1
	left := d.DueAt.Add(-p.offset).Sub(k.all.cfg.Now())
	delay := k.possible(left)
	if delay == left {
		return
	}
	// If Route fails, the send reports the error.
	if route, err := k.all.cfg.Strategy.Route(k.queue(), delay, 0); err == nil {
		r.Route = &route
	}
}

// toDelay sets the delay before the next attempt or, after Snooze, before the same attempt.
func (k *Consumer) toDelay(r *replacement, d *Delivery, p disposition) {
	r.Delay = k.nextDelay(d, p)
	if r.outcome == Retried { // log the first one, and only count further ones within a minute
		k.failures.Warn(k.log, "", "a handler failed; its message is retried", zap.String("id", d.ID), zap.Int("attempt", d.Attempt), zap.Int("max_attempts", d.MaxAttempts), zap.String("delay", topology.FormatDuration(r.Delay)), zap.String("error", p.text))
	}
	k.log.Debug(string(r.outcome), zap.String("id", d.ID), zap.Int("attempt", d.Attempt), zap.Int("snoozes", d.Snoozes), zap.String("delay", topology.FormatDuration(r.Delay)), zap.String("error", p.text))
	if behind := d.DueAt.Sub(k.all.cfg.Now().Add(r.Delay)); behind > 0 && behind < math.MaxInt64 {
		// This process's clock is behind the publisher's. The new due time must not be before the current one, because
		// the message would then look like an older message.
		r.DeliverAt, r.ClockOffset, r.Delay = d.DueAt, behind, 0
	}
}

// toDeadLetter prepares a message for the dead-letter queue, without a delay. The recorded destination remains the
// queue that the message was consumed from.
func (k *Consumer) toDeadLetter(r *replacement, d *Delivery, p disposition) {
	reason := cmp.Or(p.reason, header.ReasonAttempts)
	k.log.Warn("dead-lettering a message", zap.String("id", d.ID), zap.String("reason", reason), zap.Int("attempt", d.Attempt), zap.String("error", p.text))
	r.outcome, r.DeliverAt = DeadLettered, d.DueAt
	r.Route = &topology.Route{RoutingKey: k.set.DeadLetter, Queue: k.set.DeadLetter, Mandatory: true}
	r.Own[header.Reason], r.Own[header.Queue] = reason, k.set.Queue
	if raw, ok := d.Headers[header.Raw].([]byte); ok && reason == header.ReasonUnreadable {
		r.Own[header.Raw] = raw[:min(len(raw), header.MaxOfUser)]
	}
}

// RetryDelay returns how long the message will wait for its next delivery if its handler returns err. A delay of 0 with
// true means that the handler will run again immediately. RetryDelay returns false if there will be no further delivery
// after a delay.
func (d *Delivery) RetryDelay(err error) (delay time.Duration, ok bool) {
	p, asks := dispositionOf(err)
	switch {
	case !asks && d.immediate.Load() > 0:
		return 0, true
	case p.act == actDeadLetter, p.act == actRequeue, p.act != actSnooze && d.Attempt >= d.MaxAttempts:
		return 0, false
	}
	return d.consumer.nextDelay(d, p), true
}

// nextDelay returns the delay before the next delivery, which is the requested one or the back-off, adapted to the
// delays that the strategy supports. All calls for one delivery use the same back-off.
func (k *Consumer) nextDelay(d *Delivery, p disposition) time.Duration {
	if p.delay > 0 {
		return k.possible(p.delay)
	}
	d.backoff.once.Do(func() {
		d.backoff.delay = d.handling.Backoff(p.err, k.set.Retry.Delay(d.Attempt, rand.Float64()))
	})
	return k.possible(d.backoff.delay)
}

func (k *Consumer) possible(d time.Duration) time.Duration {
	return PossibleDelay(k.all.cfg.Strategy, k.set.Queue, d)
}

// PossibleDelay returns d if the strategy supports that delay. For a strategy that supports only declared delays (ttl),
// it otherwise returns the next longer one or, if there is none, the longest. For any other strategy, it returns the
// longest delay that the strategy supports.
func PossibleDelay(s Strategy, queue string, d time.Duration) time.Duration {
	_, err := s.Route(topology.Destination{Queue: queue}, d, 0)
	de, ok := errors.AsType[*topology.DelayError](err)
	if !ok {
		return d
	}
	if len(de.Declared) == 0 {
		return min(d, s.MaxDelay())
	}
	best := de.Declared[0]
	for _, x := range de.Declared {
		if (x >= d && (best < d || x < best)) || (best < d && x > best) {
			best = x
		}
	}
	return best
}
