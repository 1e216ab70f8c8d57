package amqpx

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

// process runs the handler on one message and settles the message's fate. It
// holds a slot while the handler runs, and until its success is acknowledged.
// The retry or dead letter of a failed message is published without a slot,
// because the broker may take long to accept it.
func (k *consumer) process(j *job) {
	if j.sub.lost() { // cannot be acknowledged any more; the broker delivers it again
		k.running.Add(-1)
		k.ids.unmark(j.raw.MessageId)
		<-k.slots
		return
	}
	d := k.deliveryOf(j.raw)
	ctx := k.c.hooks.handleStart(k.handlers, d)
	end := HandleEnd{Delivery: d, Panicked: true}
	var v verdict
	judged := false
	start := time.Now()
	if !d.DueAt.IsZero() {
		end.Lateness = start.Sub(d.DueAt)
	}
	k.begunAt.Store(start.UnixNano())
	k.lateness.Store(int64(end.Lateness))
	defer func() { // also when the handler ends this goroutine
		if !judged {
			v = ownVerdict(askRetry, "", errGoexit)
			k.setWait(d, &v)
		}
		k.running.Add(-1)
		k.ids.unmark(j.raw.MessageId)
		end.Duration, end.Err = time.Since(start), v.err
		if v.err == nil {
			defer func() { <-k.slots }()
		} else {
			<-k.slots
		}
		k.handled.Add(1)
		if v.err != nil {
			k.failed.Add(1)
		}
		k.settling.Add(1)
		end.Outcome = k.settle(ctx, j, d, v)
		k.settling.Add(-1)
		k.c.hooks.handleEnd(ctx, end)
	}()
	v, end.Panicked = k.judge(ctx, d)
	judged = true
}

// settle acknowledges a message, gives it back or replaces it. What it sends has the values
// of ctx.
func (k *consumer) settle(ctx context.Context, j *job, d *Delivery, v verdict) Outcome {
	switch {
	case v.err == nil:
		return k.ack(j, OutcomeAcked)
	case v.ask == askRequeue:
		return k.putBack(j, d, v)
	case v.ask == askRecount:
		if err := j.raw.Reject(true); err != nil { // which RabbitMQ 4.3 counts, unlike basic.nack
			return OutcomeLost
		}
		return OutcomeRequeued
	}
	return k.replace(ctx, j, k.successor(d, v))
}

// refuse sends back a message that no handler has begun.
func (k *consumer) refuse(j *job) {
	k.settling.Add(1)
	k.replace(k.handlers, j, k.rest(k.deliveryOf(j.raw), arrival(j.raw).Offset))
	k.settling.Add(-1)
}

func (k *consumer) ack(j *job, o Outcome) Outcome {
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

// requeueMin, doubled with each delivery that the broker counts, up to requeueMax,
// is how long a requeued message is kept from the queue.
const (
	requeueMin = time.Second
	requeueMax = 10 * time.Second
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
			return k.giveBack(j)
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
			return k.ack(j, m.outcome)
		}
		k.stuck.Warn(k.log, "", "could not publish the message's "+string(m.outcome)+" form; trying again", zap.String("id", m.ID), zap.Error(err))
		switch {
		case isOfHeaders(err) && m.dropHeaders():
			k.log.Error("the message's headers cannot be published again and are dropped", zap.String("id", m.ID), zap.Error(err))
			continue
		case errors.Is(err, ErrMessage), errors.Is(err, ErrClosed):
			k.linger(j, passMax) // it comes back at once
			return k.giveBack(j)
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

// putBack returns a message that its handler requeues to the queue, after a pause: the
// broker delivers it again at once.
func (k *consumer) putBack(j *job, d *Delivery, v verdict) Outcome {
	k.log.Debug("requeued", zap.String("id", d.ID), zap.String("error", v.text))
	k.linger(j, wait.Backoff(requeueMin, requeueMax, int(min(max(d.deliveries(), 0), header.MaxDeliveries))+1))
	return k.giveBack(j)
}

func (k *consumer) giveBack(j *job) Outcome {
	if err := j.raw.Nack(false, true); err != nil {
		return OutcomeLost
	}
	return OutcomeRequeued
}
