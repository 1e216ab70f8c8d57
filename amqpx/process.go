package amqpx

import (
	"cmp"
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// process runs the handler on one message and settles the message's fate. It
// holds a slot while the handler runs, and until its success is acknowledged.
// The retry or dead letter of a failed message is published without a slot,
// because the broker may take long to accept it.
func (k *consumer) process(j *job) {
	if j.sub.lost() { // cannot be acknowledged any more; the broker delivers it again
		k.running.Add(-1)
		k.ids.end(j.raw.MessageId)
		<-k.slots
		return
	}
	d := k.decode(j.raw)
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
			k.wait(d, &v)
		}
		k.running.Add(-1)
		k.ids.end(j.raw.MessageId)
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

// settle acknowledges, retries or dead-letters. What it sends has the values of ctx.
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
	case v.ask == askSnooze:
		k.log.Debug("snoozed", zap.String("id", d.ID), zap.Int("snoozes", d.Snoozes), zap.Duration("delay", v.delay))
		return k.pass(ctx, j, k.again(d, v), nil, OutcomeSnoozed)
	case v.ask == askRetry && d.Attempt < d.MaxAttempts:
		k.log.Debug("retried", zap.String("id", d.ID), zap.Int("attempt", d.Attempt), zap.Duration("delay", v.delay), zap.String("error", v.text))
		return k.pass(ctx, j, k.again(d, v), nil, OutcomeRetried)
	}
	return k.bury(ctx, j, d, v)
}

// bury dead-letters.
func (k *consumer) bury(ctx context.Context, j *job, d *Delivery, v verdict) Outcome {
	level, reason := zap.WarnLevel, cmp.Or(v.reason, ReasonAttempts)
	if reason == ReasonRejected {
		level = zap.InfoLevel
	}
	k.log.Log(level, "dead-lettered", zap.String("id", d.ID), zap.String("reason", reason), zap.Int("attempt", d.Attempt), zap.String("error", v.text))
	return k.pass(ctx, j, k.deadLetter(d, v, reason), straightTo(topology.Destination{Queue: k.dead}), OutcomeDeadLettered)
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

// pass publishes a message in place of the received one and acknowledges that
// one when the broker has confirmed. Until then the received one stays
// unacknowledged, so that nothing is lost; when neither is possible it goes back
// to the queue. It looks before each try whether the received one is still here:
// once the broker delivers it again, it would become two. A consumer that ends
// waits for no second try.
func (k *consumer) pass(values context.Context, j *job, m Message, direct *topology.Route, o Outcome) Outcome {
	if m.ID == "" {
		m.ID = newID(time.Now()) // the same for all tries
	}
	for try := 1; ; try++ {
		if j.sub.lost() || j.sub.live.Err() != nil || try > 1 && k.ending.Err() != nil {
			return k.giveBack(j)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(values), passTimeout)
		stop := context.AfterFunc(j.sub.live, cancel)
		err := k.c.sendOne(ctx, m, direct)
		if errors.Is(err, ErrUnroutable) && direct != nil {
			err = errors.Join(err, within(ctx, func() error { return k.declare(ctx, j.sub.sess) }))
		}
		stop()
		cancel()
		if err == nil {
			return k.ack(j, o)
		}
		k.stuck.warn(k.log, "", "could not publish the message's "+string(o)+" form; trying again", zap.String("id", m.ID), zap.Error(err))
		switch {
		case isOfHeaders(err) && m.dropHeaders():
			k.log.Error("the message's headers cannot be published again and are dropped", zap.String("id", m.ID), zap.Error(err))
			continue
		case errors.Is(err, ErrMessage), errors.Is(err, ErrClosed):
			k.pause(j, passMax) // it comes back at once
			return k.giveBack(j)
		}
		k.pause(j, backoff(passMin, passMax, try))
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

// pause waits, at most until the message is no longer here or the consumer ends.
func (k *consumer) pause(j *job, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-j.sub.live.Done():
	case <-k.ending.Done():
	}
}

// putBack gives a message back that its handler requeues, after a pause: the broker
// delivers it again at once.
func (k *consumer) putBack(j *job, d *Delivery, v verdict) Outcome {
	k.log.Debug("requeued", zap.String("id", d.ID), zap.String("error", v.text))
	k.pause(j, backoff(requeueMin, requeueMax, int(min(max(d.deliveries(), 0), maxDeliveries))+1))
	return k.giveBack(j)
}

func (k *consumer) giveBack(j *job) Outcome {
	if err := j.raw.Nack(false, true); err != nil {
		return OutcomeLost
	}
	return OutcomeRequeued
}

// again is the message of the next delivery.
func (k *consumer) again(d *Delivery, v verdict) Message {
	m := d.message()
	m.Queue = k.queue
	m.Delay = v.delay
	if behind := d.DueAt.Sub(time.Now().Add(m.Delay)); behind > 0 && behind < maxDelay {
		// This clock is behind the publisher's. An instant before the message's own
		// would say that it is an older one.
		m.DeliverAt, m.ClockOffset, m.Delay = d.DueAt, behind, 0
	}
	m.own = amqp.Table{}
	if v.ask == askSnooze {
		m.Attempt = d.Attempt
		d.record(m.own)
		m.own[HeaderSnoozes] = int64(d.Snoozes) + 1
	} else {
		m.Attempt = d.Attempt + 1
		d.recordFailure(m.own, v.text)
	}
	d.origin(m.own)
	return m
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

// deadLetter is the message as it goes to the dead-letter queue.
func (k *consumer) deadLetter(d *Delivery, v verdict, reason string) Message {
	m := d.message()
	m.Queue = k.queue
	m.Attempt = d.Attempt
	m.DeliverAt = d.DueAt
	m.own = amqp.Table{HeaderReason: reason, HeaderQueue: k.queue}
	if raw, ok := d.Headers[HeaderRaw].([]byte); ok && reason == ReasonUnreadable {
		m.own[HeaderRaw] = raw[:min(len(raw), maxHeaders)]
	}
	d.recordFailure(m.own, v.text)
	d.origin(m.own)
	return m
}

// Bounds of what is written about failures.
const (
	maxErrorText   = 1024
	maxAttemptText = 300
	maxAttemptLog  = 32
)

// record adds the headers that tell what happened to the message before.
func (d *Delivery) record(own amqp.Table) {
	if d.Snoozes > 0 {
		own[HeaderSnoozes] = int64(d.Snoozes)
	}
	if at, ok := headerInt(d.Headers, HeaderRequeued); ok {
		own[HeaderRequeued] = at
	}
	if list := d.attempts(); len(list) > 0 {
		own[HeaderAttempts] = list
	}
	if s, ok := d.Headers[HeaderError].(string); ok {
		own[HeaderError] = cut(s, maxErrorText)
	}
	if t := d.carry(); t != nil {
		own[HeaderCarried] = t
	}
}

// recordFailure is record with this attempt added.
func (d *Delivery) recordFailure(own amqp.Table, text string) {
	d.record(own)
	list := append(d.attempts(), cut(time.Now().UTC().Format(time.RFC3339Nano)+" "+text, maxAttemptText))
	own[HeaderAttempts] = list[max(0, len(list)-maxAttemptLog):]
	own[HeaderError] = cut(text, maxErrorText)
}

// attempts is the record of the failed attempts before this one. Whatever else a
// foreign publisher wrote there is left out: it might not go over the wire again.
func (d *Delivery) attempts() []any {
	old, _ := d.Headers[HeaderAttempts].([]any)
	list := make([]any, 0, len(old)+1)
	for _, a := range old {
		if s, ok := a.(string); ok {
			list = append(list, cut(s, maxAttemptText))
		}
	}
	return list[max(0, len(list)-maxAttemptLog):]
}

// cut shortens s to n bytes, at a character's boundary.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}
