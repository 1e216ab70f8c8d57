package amqpx

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/lasthop"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

// settle acknowledges, requeues or replaces a message according to the verdict. Messages that it publishes have
// the context values of ctx.
func (k *consumer) settle(ctx context.Context, j *job, v verdict) Outcome {
	k.settling.Add(1)
	defer k.settling.Add(-1)
	switch v.ask {
	case askAck:
		return j.ack(OutcomeAcked)
	case askRequeue: // after a pause, because the broker redelivers it immediately
		k.log.Debug("requeued", zap.String("id", j.d.ID), zap.String("error", v.text))
		k.linger(j, v.delay)
		return j.giveBack()
	case askRecount:
		if err := j.raw.Reject(true); err != nil { // RabbitMQ 4.3 counts basic.reject as a delivery, but not basic.nack
			return OutcomeLost
		}
		return OutcomeRequeued
	case askReturn:
		if v.err != nil && j.d.returned >= lasthop.Patience {
			// The handler's clock says that the message is early, and a broker whose clock is ahead of the
			// handler's would deliver it here again and again. A header cannot tell the next consumer about this,
			// so the wait happens here.
			rest := j.d.DueAt.Add(-v.offset).Sub(k.c.cfg.Now())
			k.linger(j, min(max(rest, 0), lasthop.MaxHold))
		}
	}
	return k.replace(ctx, j, k.successor(j.d, v))
}

// passTimeout bounds one attempt to publish a retry or a dead letter. The pause between attempts is passMin,
// doubled each time up to passMax.
const (
	passTimeout = 10 * time.Second
	passMin     = 100 * time.Millisecond
	passMax     = 10 * time.Second
)

// replace publishes a message in place of the received one, and acknowledges the received one when the broker has
// confirmed the new one. Until then the received message stays unacknowledged, so it cannot be lost. If neither is
// possible, it is requeued. Before each try, replace checks that the received message has not been taken back,
// because publishing after the broker has redelivered it would create a duplicate. If the consumer is shutting
// down, there is no second try.
func (k *consumer) replace(values context.Context, j *job, m successor) Outcome {
	if m.ID == "" {
		m.ID = newID(time.Now()) // the same for all tries
	}
	for try := 1; ; try++ {
		if j.sub.lost() || j.sub.live.Err() != nil || try > 1 && k.ending.Err() != nil {
			return j.giveBack()
		}
		err := k.sendInPlace(values, j, m)
		switch {
		case err == nil:
			if m.outcome == OutcomeReturned {
				k.returned.Add(1)
			}
			return j.ack(m.outcome)
		case isOfHeaders(err) && m.dropHeaders():
			k.log.Error("the message's headers cannot be published again and are dropped", zap.String("id", m.ID), zap.Error(err))
			continue
		case errors.Is(err, ErrMessage), errors.Is(err, ErrClosed):
			k.linger(j, passMax) // it is redelivered immediately after that
			return j.giveBack()
		}
		k.linger(j, wait.Backoff(passMin, passMax, try))
	}
}

// sendInPlace tries once to publish a message in place of the received one. If its queue is missing, sendInPlace
// declares it for the next try.
func (k *consumer) sendInPlace(values context.Context, j *job, m successor) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(values), passTimeout)
	defer cancel()
	defer context.AfterFunc(j.sub.live, cancel)()
	err := k.c.sendOne(ctx, m.Message, m.route)
	if errors.Is(err, ErrUnroutable) && m.route != nil {
		err = errors.Join(err, wait.Done(ctx, func() error { return k.declare(ctx, j.sub.sess) }))
	}
	if err != nil {
		k.stuck.Warn(k.log, "", "could not publish what takes the message's place; trying again", zap.String("id", m.ID), zap.String("outcome", string(m.outcome)), zap.Error(err))
	}
	return err
}

// dropHeaders removes headers of another publisher, first the message's own headers and, on further calls, those
// that are carried. It reports whether there were any. Such headers may be impossible to publish again because
// they are too large or have types that amqp091 cannot write, and the body matters more.
func (m *Message) dropHeaders() bool {
	if m.Headers != nil {
		m.Headers = nil
		return true
	}
	for _, name := range []string{HeaderRaw, HeaderCarried} {
		if _, ok := m.own[name]; ok {
			delete(m.own, name)
			return true
		}
	}
	return false
}

// linger waits for d, or until the message is no longer held here or the consumer ends.
func (k *consumer) linger(j *job, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-j.sub.live.Done():
	case <-k.ending.Done():
	}
}

// ack acknowledges the message and returns o, or OutcomeLost if that fails.
func (j *job) ack(o Outcome) Outcome {
	if err := j.raw.Ack(false); err != nil {
		return OutcomeLost
	}
	return o
}

// giveBack requeues the message.
func (j *job) giveBack() Outcome {
	if err := j.raw.Nack(false, true); err != nil {
		return OutcomeLost
	}
	return OutcomeRequeued
}
