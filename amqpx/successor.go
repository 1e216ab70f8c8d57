package amqpx

import (
	"cmp"

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
		return k.rest(d, v)
	case v.ask == askSnooze:
		return k.later(d, v, OutcomeSnoozed)
	case v.ask == askRetry && d.Attempt < d.MaxAttempts:
		return k.later(d, v, OutcomeRetried)
	}
	return k.deadLetter(d, v)
}

// copyOf is the delivery as a message to its queue again, with what is known of its past.
func (k *consumer) copyOf(d *Delivery, v verdict, o Outcome) successor {
	s := successor{Message: d.message(), outcome: o}
	s.Queue, s.Attempt, s.own = k.queue, d.Attempt, amqp.Table{}
	header.Origin(s.own, d.Exchange, d.RoutingKey)
	d.properties().Record(s.own, d.Snoozes)
	if o == OutcomeRetried || o == OutcomeDeadLettered {
		header.RecordFailure(s.own, v.text)
	}
	return s
}

// later is the message after a delay, for the next attempt or, snoozed, for the same one.
func (k *consumer) later(d *Delivery, v verdict, o Outcome) successor {
	delay := k.nextDelay(d, v.delay, v.err)
	k.log.Debug(string(o), zap.String("id", d.ID), zap.Int("attempt", d.Attempt), zap.Int("snoozes", d.Snoozes), zap.Duration("delay", delay), zap.String("error", v.text))
	s := k.copyOf(d, v, o)
	if o == OutcomeSnoozed {
		s.own[HeaderSnoozes] = int64(d.Snoozes) + 1
	} else {
		s.Attempt++
	}
	s.Delay = delay
	if behind := d.DueAt.Sub(k.c.cfg.Now().Add(delay)); behind > 0 && behind < maxDelay {
		// This clock is behind the publisher's. An instant before the message's own
		// would say that it is an older one.
		s.DeliverAt, s.ClockOffset, s.Delay = d.DueAt, behind, 0
	}
	return s
}

// rest is a message that is too early, for the rest of its delay. It is no attempt, and keeps
// its instant, whose clock is ahead of this process's by v.offset. It has a route where the
// strategy has not just the delay that is left.
func (k *consumer) rest(d *Delivery, v verdict) successor {
	k.log.Debug("sent back: too early", zap.String("id", d.ID), zap.Time("due", d.DueAt))
	s := k.copyOf(d, v, OutcomeReturned)
	s.DeliverAt, s.ClockOffset = d.DueAt, v.offset
	s.own[HeaderReturned] = d.returned + 1
	left := d.DueAt.Add(-v.offset).Sub(k.c.cfg.Now())
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
	s := k.copyOf(d, v, OutcomeDeadLettered)
	s.DeliverAt, s.route = d.DueAt, straightTo(topology.Destination{Queue: k.dead})
	s.own[HeaderReason], s.own[HeaderQueue] = reason, k.queue
	if raw, ok := d.Headers[HeaderRaw].([]byte); ok && reason == header.ReasonUnreadable {
		s.own[HeaderRaw] = raw[:min(len(raw), header.MaxOfUser)]
	}
	return s
}
