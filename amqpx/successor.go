package amqpx

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// successor is the message that takes the place of a received one, under the same id.
type successor struct {
	Message

	route   *topology.Route // nil: by the strategy
	outcome Outcome         // of the received one, when this one is confirmed
}

// successor forms what takes the place of a message that failed, was snoozed or came too
// early: the delivery as a message to its queue again, with what is known of its past.
func (k *consumer) successor(d *Delivery, v verdict) successor {
	s, snoozes := successor{Message: d.message()}, d.Snoozes
	s.Queue, s.Attempt, s.own = k.queue, d.Attempt, amqp.Table{}
	switch {
	case v.ask == askReturn:
		k.rest(&s, d, v)
	case v.ask == askSnooze:
		s.outcome = OutcomeSnoozed
		snoozes++
		k.later(&s, d, v)
	case v.ask == askRetry && d.Attempt < d.MaxAttempts:
		s.outcome = OutcomeRetried
		s.Attempt++
		k.later(&s, d, v)
	default:
		k.bury(&s, d, v)
	}
	header.Origin(s.own, d.Exchange, d.RoutingKey)
	d.properties().Record(s.own, snoozes)
	if s.outcome == OutcomeRetried || s.outcome == OutcomeDeadLettered {
		header.RecordFailure(s.own, v.text)
	}
	return s
}

// rest is for a message that is too early: it waits for the rest of its delay. It is no attempt, and keeps
// its instant, whose clock is ahead of this process's by v.offset. It has a route where the
// strategy has not just the delay that is left.
func (k *consumer) rest(s *successor, d *Delivery, v verdict) {
	k.log.Debug("sent back: too early", zap.String("id", d.ID), zap.Time("due", d.DueAt))
	s.outcome, s.DeliverAt, s.ClockOffset = OutcomeReturned, d.DueAt, v.offset
	s.own[HeaderReturned] = d.returned + 1
	left := d.DueAt.Add(-v.offset).Sub(k.c.cfg.Now())
	delay := k.possible(left)
	if delay == left {
		return
	}
	if route, err := k.c.strategy.Route(topology.Destination{Queue: k.queue}, delay, 0); err == nil { // or the send says why
		s.route = &route
	}
}

// later sets the delay before the next attempt or, snoozed, the same one.
func (k *consumer) later(s *successor, d *Delivery, v verdict) {
	s.Delay = k.nextDelay(d, v)
	if s.outcome == OutcomeRetried { // the others of a minute are counted
		k.failures.Warn(k.log, "", "a handler failed; its message is tried again", zap.String("id", d.ID), zap.Int("attempt", d.Attempt), zap.Int("max_attempts", d.MaxAttempts), zap.Duration("delay", s.Delay), zap.String("error", v.text))
	}
	k.log.Debug(string(s.outcome), zap.String("id", d.ID), zap.Int("attempt", d.Attempt), zap.Int("snoozes", d.Snoozes), zap.Duration("delay", s.Delay), zap.String("error", v.text))
	if behind := d.DueAt.Sub(k.c.cfg.Now().Add(s.Delay)); behind > 0 && behind < maxDelay {
		// This clock is behind the publisher's. An instant before the message's own
		// would say that it is an older one.
		s.DeliverAt, s.ClockOffset, s.Delay = d.DueAt, behind, 0
	}
}

// bury sends a message straight to the dead-letter queue.
func (k *consumer) bury(s *successor, d *Delivery, v verdict) {
	reason := cmp.Or(v.reason, header.ReasonAttempts)
	k.log.Warn("dead-lettered", zap.String("id", d.ID), zap.String("reason", reason), zap.Int("attempt", d.Attempt), zap.String("error", v.text))
	s.outcome, s.DeliverAt, s.route = OutcomeDeadLettered, d.DueAt, straightTo(topology.Destination{Queue: k.dead})
	s.own[HeaderReason], s.own[HeaderQueue] = reason, k.queue
	if raw, ok := d.Headers[HeaderRaw].([]byte); ok && reason == header.ReasonUnreadable {
		s.own[HeaderRaw] = raw[:min(len(raw), header.MaxOfUser)]
	}
}

// RetryDelay returns how long the message will wait for its next delivery when the
// handler returns err: that of Snooze or RetryIn, or the consumer's back-off. It
// is the same at every call. 0 and true: the handler runs again at once, in the same
// attempt (topology.Retry.Immediate). false: there will be none, because err rejects or
// requeues the message or this was its last attempt, or the Delivery was not received by
// Consume.
func (d *Delivery) RetryDelay(err error) (delay time.Duration, ok bool) {
	if d.received == nil || err == nil {
		return 0, false
	}
	v, ok := asked(err)
	switch {
	case !ok && d.received.immediate.Load() > 0:
		return 0, true
	case v.ask == askBury, v.ask == askRequeue, v.ask != askSnooze && d.Attempt >= d.MaxAttempts:
		return 0, false
	}
	return d.received.consumer.nextDelay(d, v), true
}

// nextDelay is the delay before the next delivery, one that the strategy has: what was asked
// for, or the back-off.
func (k *consumer) nextDelay(d *Delivery, v verdict) time.Duration {
	if v.delay > 0 {
		return k.possible(v.delay)
	}
	r := d.received
	r.once.Do(func() { r.backoff = k.backoff(d, v.err) })
	return k.possible(r.backoff)
}

// growing is the retry policy's delay.
func (k *consumer) growing(d *Delivery, _ error) time.Duration {
	return k.retry.Delay(d.Attempt, rand.Float64())
}

// possible is the delay nearest to d that the strategy has: a declared one of
// ttl, or the strategy's maximum.
func (k *consumer) possible(d time.Duration) time.Duration {
	_, err := k.c.strategy.Route(topology.Destination{Queue: k.queue}, d, 0)
	de, ok := errors.AsType[*topology.DelayError](err)
	if !ok {
		return d
	}
	if len(de.Declared) == 0 {
		return min(d, k.c.strategy.MaxDelay())
	}
	best := de.Declared[0]
	for _, x := range de.Declared {
		if (x >= d && (best < d || x < best)) || (best < d && x > best) {
			best = x
		}
	}
	return best
}
