package amqpx

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/topology"
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

// refuse sends back a message that no handler has begun.
func (k *consumer) refuse(j *job) {
	k.settle(k.handlers, j, verdict{ask: askReturn, offset: j.offset})
}

// verdict is what is to become of a message. It is read from the handler's error once (asked),
// because what others wrote may panic at any call.
type verdict struct {
	ask    ask
	reason string        // of askBury
	delay  time.Duration // before it comes again, as its error asks for; 0: back-off
	offset time.Duration // of askReturn: the clock of the due instant minus this process's
	err    error         // for hooks; nil: success
	text   string        // of err
}

type ask int

const (
	askAck   ask = iota
	askRetry     // while there are attempts left
	askSnooze
	askRequeue
	askBury
	askRecount // see counts
	askReturn  // too early
)

var (
	errDeliveries = fmt.Errorf("delivered more than %d times without an outcome: the consumer ended or lost its connection each time, or the message was taken and put back", header.MaxDeliveries)
	errRecount    = errors.New("put back once, to see whether the broker counts its deliveries")
	errGoexit     = errors.New("handler ended its goroutine (runtime.Goexit, which t.FailNow calls)")
)

// ownVerdict is the verdict on an error that is not the user's.
func ownVerdict(ask ask, reason string, err error) verdict {
	return verdict{ask: ask, reason: reason, err: err, text: err.Error()}
}

// judge runs the handler. A panic, also one of its error's methods, is an error of that
// message.
func (k *consumer) judge(ctx context.Context, d *Delivery) (v verdict, panicked bool) {
	if v, ok := k.unhandled(d); ok {
		return v, false
	}
	for left := k.retry.Immediate; ; left-- {
		if ctx.Err() != nil { // the drain time is over
			left = 0
		}
		d.received.immediate.Store(int32(left))
		v, panicked = k.tryOnce(ctx, d)
		if left == 0 || v.ask != askRetry || v.delay > 0 { // it asks for something else
			return v, panicked
		}
		k.log.Debug("failed, and tried again at once", zap.String("id", d.ID), zap.String("error", v.text))
	}
}

// unhandled is the verdict on a message that does not get to its handler, and ok.
func (k *consumer) unhandled(d *Delivery) (v verdict, ok bool) {
	if why, ok := d.Headers[HeaderUnreadable].(string); ok {
		return ownVerdict(askBury, header.ReasonUnreadable, fmt.Errorf("cannot be read, and was not handled: %s", why)), true
	}
	if d.deliveries <= header.MaxDeliveries {
		return verdict{}, false
	}
	switch before, seen := k.counts.put(d); {
	case !seen:
		return ownVerdict(askRecount, "", errRecount), true
	case d.deliveries > before:
		return ownVerdict(askBury, header.ReasonDeliveries, errDeliveries), true
	}
	return verdict{}, false
}

// counts are the large counts of deliveries that messages had. Only one that rises when
// the message is rejected is believed.
type counts struct {
	mu   sync.Mutex
	last map[string]int64
}

// maxCounts bounds the messages that are remembered.
const maxCounts = 1000

// put keeps a message's count, and returns the one before.
func (c *counts) put(d *Delivery) (before int64, seen bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil || len(c.last) >= maxCounts {
		c.last = map[string]int64{}
	}
	key := d.ID
	if key == "" {
		sum := sha256.Sum256(d.Body)
		key = string(sum[:])
	}
	before, seen = c.last[key]
	c.last[key] = d.deliveries
	return before, seen
}

// tryOnce runs the handler once.
func (k *consumer) tryOnce(ctx context.Context, d *Delivery) (v verdict, panicked bool) {
	var err error
	p := guard.Call("handler", func() { err = k.handler(ctx, d) })
	if p == nil && err == nil {
		return v, false
	}
	if p == nil {
		p = guard.Call("error of the handler", func() {
			v, _ = asked(d.Verdict(err))
			v.text = v.err.Error()
		})
	}
	if p != nil {
		p.Log(k.log, zap.String("id", d.ID))
		v = ownVerdict(askRetry, "", p)
	}
	if v.ask == askRequeue {
		v.delay = wait.Backoff(requeueMin, requeueMax, int(min(max(d.deliveries, 0), header.MaxDeliveries))+1)
	}
	return v, p != nil
}

// requeueMin, doubled with each delivery that the broker counts, up to requeueMax,
// is how long a requeued message is kept from the queue.
const (
	requeueMin = time.Second
	requeueMax = 10 * time.Second
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
	}
	return k.replace(ctx, j, k.successor(j.d, v))
}

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

// later is the message after a delay, for the next attempt or, snoozed, for the same one.
func (k *consumer) later(d *Delivery, v verdict, o Outcome) successor {
	delay := k.nextDelay(d, v)
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

// nextDelay is the delay before the next delivery, one that the strategy has: what was asked
// for, or the back-off.
func (k *consumer) nextDelay(d *Delivery, v verdict) time.Duration {
	if v.delay > 0 {
		return k.possible(v.delay)
	}
	r := d.received
	r.once.Do(func() {
		r.backoff = k.retry.Delay(d.Attempt, rand.Float64())
		if k.backoff != nil {
			guard.Observe(k.log, "WithBackoff's function", func() { r.backoff = orNoDelay(k.backoff(d, v.err)) })
		}
	})
	return k.possible(r.backoff)
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
