package amqpx

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

// process runs the handler on one message and settles the message's fate. It
// holds a slot while the handler runs, and until its success is acknowledged.
// The retry or dead letter of a failed message is published without a slot,
// because the broker may take long to accept it.
func (k *consumer) process(j *job) {
	ctx := k.c.hooks.handleStart(k.handlers, j.d)
	end := HandleEnd{Delivery: j.d, Panicked: true}
	start := time.Now()
	if !j.d.DueAt.IsZero() {
		end.Lateness = start.Sub(j.d.DueAt)
	}
	k.begunAt.Store(start.UnixNano())
	k.lateness.Store(int64(end.Lateness))
	v := ownVerdict(askRetry, "", errGoexit)
	defer func() { // also when the handler ends this goroutine
		end.Duration, end.Err = time.Since(start), v.err
		k.running.Add(-1)
		k.ids.unmark(j.d)
		k.handled.Add(1)
		if v.err == nil {
			defer func() { <-k.slots }()
		} else {
			k.failed.Add(1)
			<-k.slots
		}
		end.Outcome = k.settle(ctx, j, v)
		k.c.hooks.handleEnd(ctx, end)
	}()
	v, end.Panicked = k.judge(ctx, j.d)
}

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
	}
	return k.replace(ctx, j, k.successor(j.d, v))
}

// refuse sends back a message that no handler has begun.
func (k *consumer) refuse(j *job) {
	k.settle(k.handlers, j, verdict{ask: askReturn, offset: j.offset})
}

func (j *job) ack(o Outcome) Outcome {
	if err := j.raw.Ack(false); err != nil {
		return OutcomeLost
	}
	return o
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
		ctx, cancel := context.WithTimeout(context.WithoutCancel(values), passTimeout)
		stop := context.AfterFunc(j.sub.live, cancel)
		err := k.c.sendOne(ctx, m.Message, m.route)
		if errors.Is(err, ErrUnroutable) && m.route != nil {
			err = errors.Join(err, wait.Done(ctx, func() error { return k.declare(ctx, j.sub.sess) }))
		}
		stop()
		cancel()
		if err == nil {
			if m.outcome == OutcomeReturned {
				k.returned.Add(1)
			}
			return j.ack(m.outcome)
		}
		k.stuck.Warn(k.log, "", "could not publish the message's "+string(m.outcome)+" form; trying again", zap.String("id", m.ID), zap.Error(err))
		switch {
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

// dropHeaders takes off what a foreign publisher wrote, first as headers and then what is
// carried, and tells whether there was any. That may be more than can be published again
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

func (j *job) giveBack() Outcome {
	if err := j.raw.Nack(false, true); err != nil {
		return OutcomeLost
	}
	return OutcomeRequeued
}
