package amqpx

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/lasthop"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

// settle acknowledges a message, gives it back or replaces it. What it sends has the values
// of ctx.
func (k *consumer) settle(ctx context.Context, j *job, v verdict) Outcome {
	k.settling.Add(1)
	defer k.settling.Add(-1)
	switch v.ask {
	case askAck:
		return j.ack(OutcomeAcked)
	case askRequeue: // after a pause: the broker delivers it again at once
		k.log.Debug("requeued", zap.String("id", j.d.ID), zap.String("error", v.text))
		k.linger(j, v.delay)
		return j.giveBack()
	case askRecount:
		if err := j.raw.Reject(true); err != nil { // which RabbitMQ 4.3 counts, unlike basic.nack
			return OutcomeLost
		}
		return OutcomeRequeued
	case askReturn:
		if v.err != nil && j.d.returned >= lasthop.Patience {
			// The handler's clock says that it is early, and a broker whose clock is ahead of that one sends it here
			// again and again. A header cannot tell the next consumer so.
			rest := j.d.DueAt.Add(-v.offset).Sub(k.c.cfg.Now())
			k.linger(j, min(max(rest, 0), lasthop.MaxHold))
		}
	}
	return k.replace(ctx, j, k.successor(j.d, v))
}

// passTimeout bounds one attempt to publish a retry or a dead letter; between
// attempts it waits passMin, doubled each time, up to passMax.
const (
	passTimeout = 10 * time.Second
	passMin     = 100 * time.Millisecond
	passMax     = 10 * time.Second
)

// replace publishes a message in place of the received one and acknowledges that
// one when the broker has confirmed. Until then the received one stays
// unacknowledged, so that nothing is lost; when neither is possible it goes back
// to the queue. It looks before each try whether the received one is still here:
// once the broker delivers it again, it would become two. A consumer that ends
// waits for no second try.
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
			k.linger(j, passMax) // it comes back at once
			return j.giveBack()
		}
		k.linger(j, wait.Backoff(passMin, passMax, try))
	}
}

// sendInPlace is one attempt to publish a message in place of the received one. Where a queue for
// it is missing, it is declared for the next.
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

// dropHeaders takes off what a foreign publisher wrote, first as headers and then what is
// carried, and reports whether there was any. That may be more than can be published again
// (too large, types that amqp091 cannot write): the body matters more.
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

// linger waits, at most until the message is no longer here or the consumer ends.
func (k *consumer) linger(j *job, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-j.sub.live.Done():
	case <-k.ending.Done():
	}
}

func (j *job) ack(o Outcome) Outcome {
	if err := j.raw.Ack(false); err != nil {
		return OutcomeLost
	}
	return o
}

func (j *job) giveBack() Outcome {
	if err := j.raw.Nack(false, true); err != nil {
		return OutcomeLost
	}
	return OutcomeRequeued
}
