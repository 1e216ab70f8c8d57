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

// successor is the message that replaces a received one, with the same id.
type successor struct {
	Message

	route   *topology.Route // nil for the strategy's route
	outcome Outcome         // the received message's outcome when this one is confirmed
}

// successor builds the message that replaces one that failed, was snoozed or arrived too early. It is the delivery
// as a message to the same queue, or to the dead-letter queue, with a record of its past.
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

// rest prepares a message that arrived too early for the rest of its delay. This does not count as an attempt, and
// the message keeps its due time, whose clock is ahead of this process's by v.offset. If the strategy does not
// have exactly the remaining delay, the message gets a route with the nearest one.
func (k *consumer) rest(s *successor, d *Delivery, v verdict) {
	k.log.Debug("sent back: too early", zap.String("id", d.ID), zap.Time("due", d.DueAt))
	s.outcome, s.DeliverAt, s.ClockOffset = OutcomeReturned, d.DueAt, v.offset
	s.own[HeaderReturned] = d.returned + 1
	left := d.DueAt.Add(-v.offset).Sub(k.c.cfg.Now())
	delay := k.possible(left)
	if delay == left {
		return
	}
	// If Route fails, the send reports the error.
	if route, err := k.c.strategy.Route(topology.Destination{Queue: k.queue}, delay, 0); err == nil {
		s.route = &route
	}
}

// later sets the delay before the next attempt or, after Snooze, before the same attempt.
func (k *consumer) later(s *successor, d *Delivery, v verdict) {
	s.Delay = k.nextDelay(d, v)
	if s.outcome == OutcomeRetried { // further ones within a minute are only counted
		k.failures.Warn(k.log, "", "a handler failed; its message is tried again", zap.String("id", d.ID), zap.Int("attempt", d.Attempt), zap.Int("max_attempts", d.MaxAttempts), zap.Duration("delay", s.Delay), zap.String("error", v.text))
	}
	k.log.Debug(string(s.outcome), zap.String("id", d.ID), zap.Int("attempt", d.Attempt), zap.Int("snoozes", d.Snoozes), zap.Duration("delay", s.Delay), zap.String("error", v.text))
	if behind := d.DueAt.Sub(k.c.cfg.Now().Add(s.Delay)); behind > 0 && behind < maxDelay {
		// This process's clock is behind the publisher's. A due time before the message's current one would make
		// it look like an older message.
		s.DeliverAt, s.ClockOffset, s.Delay = d.DueAt, behind, 0
	}
}

// bury prepares a message for the dead-letter queue, without a delay.
func (k *consumer) bury(s *successor, d *Delivery, v verdict) {
	reason := cmp.Or(v.reason, header.ReasonAttempts)
	k.log.Warn("dead-lettered", zap.String("id", d.ID), zap.String("reason", reason), zap.Int("attempt", d.Attempt), zap.String("error", v.text))
	s.outcome, s.DeliverAt, s.route = OutcomeDeadLettered, d.DueAt, straightTo(topology.Destination{Queue: k.dead})
	s.own[HeaderReason], s.own[HeaderQueue] = reason, k.queue
	if raw, ok := d.Headers[HeaderRaw].([]byte); ok && reason == header.ReasonUnreadable {
		s.own[HeaderRaw] = raw[:min(len(raw), header.MaxOfUser)]
	}
}

// RetryDelay returns how long the message will wait for its next delivery if the handler returns err: the delay of
// Snooze or RetryIn, or the consumer's back-off. Every call returns the same delay. A delay of 0 with true means
// that the handler will run again immediately, in the same attempt (topology.Retry.Immediate). RetryDelay returns
// false if there will be no further delivery after a delay, because err rejects or requeues the message, this was
// its last attempt, or the Delivery was not received by Consume.
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

// nextDelay returns the delay before the next delivery, which is the requested one or the back-off, adapted to the
// delays that the strategy has.
func (k *consumer) nextDelay(d *Delivery, v verdict) time.Duration {
	if v.delay > 0 {
		return k.possible(v.delay)
	}
	r := d.received
	r.once.Do(func() { r.backoff = k.backoff(d, v.err) })
	return k.possible(r.backoff)
}

// growing returns the retry policy's delay.
func (k *consumer) growing(d *Delivery, _ error) time.Duration {
	return k.retry.Delay(d.Attempt, rand.Float64())
}

// possible returns d if the strategy has that delay. Otherwise it returns the next longer declared delay (ttl), or
// the longest one there is.
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
