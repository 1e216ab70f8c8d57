package amqpx

import (
	"cmp"
	"errors"
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
// early.
func (k *consumer) successor(d *Delivery, v verdict) successor {
	switch {
	case v.ask == askReturn:
		return k.rest(d, v.offset)
	case v.ask == askSnooze:
		k.log.Debug("snoozed", zap.String("id", d.ID), zap.Int("snoozes", d.Snoozes), zap.Duration("delay", v.delay))
		s := k.later(d, v.delay, OutcomeSnoozed)
		s.Attempt = d.Attempt
		d.properties().Record(s.own, d.Snoozes)
		s.own[HeaderSnoozes] = int64(d.Snoozes) + 1
		return s
	case v.ask == askRetry && d.Attempt < d.MaxAttempts:
		k.log.Debug("retried", zap.String("id", d.ID), zap.Int("attempt", d.Attempt), zap.Duration("delay", v.delay), zap.String("error", v.text))
		s := k.later(d, v.delay, OutcomeRetried)
		s.Attempt = d.Attempt + 1
		d.properties().RecordFailure(s.own, d.Snoozes, v.text)
		return s
	}
	return k.deadLetter(d, v)
}

// copyOf is the delivery as a message to its queue again, with nothing of its past.
func (k *consumer) copyOf(d *Delivery, o Outcome) successor {
	s := successor{Message: d.message(), outcome: o}
	s.Queue, s.own = k.queue, amqp.Table{}
	header.Origin(s.own, d.Exchange, d.RoutingKey)
	return s
}

// later is the message after a delay.
func (k *consumer) later(d *Delivery, delay time.Duration, o Outcome) successor {
	s := k.copyOf(d, o)
	s.Delay = delay
	if behind := d.DueAt.Sub(time.Now().Add(delay)); behind > 0 && behind < maxDelay {
		// This clock is behind the publisher's. An instant before the message's own
		// would say that it is an older one.
		s.DeliverAt, s.ClockOffset, s.Delay = d.DueAt, behind, 0
	}
	return s
}

// rest is a message that is too early, for the rest of its delay. It is no attempt, and keeps
// its instant, whose clock is ahead of this process's by offset. It has a route where the
// strategy has not just the delay that is left.
func (k *consumer) rest(d *Delivery, offset time.Duration) successor {
	k.log.Debug("sent back: too early", zap.String("id", d.ID), zap.Time("due", d.DueAt))
	s := k.copyOf(d, OutcomeReturned)
	s.Attempt, s.DeliverAt, s.ClockOffset = d.Attempt, d.DueAt, offset
	returned, _ := header.Int(d.Headers, HeaderReturned)
	s.own[HeaderReturned] = max(returned, 0) + 1
	d.properties().Record(s.own, d.Snoozes)
	left := time.Until(d.DueAt.Add(-offset))
	delay := k.possible(left)
	if delay == left {
		return s
	}
	if route, err := k.c.strategy.Route(topology.Destination{Queue: k.queue}, delay, 0); err == nil { // or the send says why
		s.route = &route
	}
	return s
}

// deadLetter is the message as it goes to the dead-letter queue.
func (k *consumer) deadLetter(d *Delivery, v verdict) successor {
	level, reason := zap.WarnLevel, cmp.Or(v.reason, header.ReasonAttempts)
	if reason == header.ReasonRejected {
		level = zap.InfoLevel
	}
	k.log.Log(level, "dead-lettered", zap.String("id", d.ID), zap.String("reason", reason), zap.Int("attempt", d.Attempt), zap.String("error", v.text))
	s := k.copyOf(d, OutcomeDeadLettered)
	s.Attempt, s.DeliverAt, s.route = d.Attempt, d.DueAt, straightTo(topology.Destination{Queue: k.dead})
	s.own[HeaderReason], s.own[HeaderQueue] = reason, k.queue
	if raw, ok := d.Headers[HeaderRaw].([]byte); ok && reason == header.ReasonUnreadable {
		s.own[HeaderRaw] = raw[:min(len(raw), header.MaxOfUser)]
	}
	d.properties().RecordFailure(s.own, d.Snoozes, v.text)
	return s
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
