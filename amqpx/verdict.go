package amqpx

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/lasthop"
)

// verdict is what is to become of a message. It is read from the handler's error once,
// because what others wrote may panic at any call.
type verdict struct {
	ask    ask
	reason string        // of askBury
	delay  time.Duration // of what is sent again
	offset time.Duration // of askReturn: the clock of the due instant minus this process's
	err    error         // for hooks; nil: success
	text   string        // of err
}

type ask int

const (
	askRetry ask = iota // while there are attempts left
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

// unhandled is the verdict on a message that does not get to its handler, and ok.
func (k *consumer) unhandled(d *Delivery) (v verdict, ok bool) {
	if why, ok := d.Headers[HeaderUnreadable].(string); ok {
		return ownVerdict(askBury, header.ReasonUnreadable, fmt.Errorf("cannot be read, and was not handled: %s", why)), true
	}
	n := d.deliveries()
	if n <= header.MaxDeliveries {
		return verdict{}, false
	}
	switch before, seen := k.counts.put(d, n); {
	case !seen:
		return ownVerdict(askRecount, "", errRecount), true
	case n > before:
		return ownVerdict(askBury, header.ReasonDeliveries, errDeliveries), true
	}
	return verdict{}, false
}

// deliveries is how often the message was delivered before, as far as it says so.
func (d *Delivery) deliveries() int64 {
	if !d.Redelivered {
		return 0
	}
	n, _ := header.Int(d.Headers, header.Deliveries)
	return n
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
func (c *counts) put(d *Delivery, n int64) (before int64, seen bool) {
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
	c.last[key] = n
	return before, seen
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
		if v, panicked = k.tryOnce(ctx, d); left == 0 || !v.repeatable() {
			return v, panicked
		}
		k.log.Debug("failed, and tried again at once", zap.String("id", d.ID), zap.String("error", v.text))
	}
}

// repeatable reports whether the handler may run again at once: its error asks for nothing
// else.
func (v verdict) repeatable() bool { return v.err != nil && v.ask == askRetry && !asksFor(v.err) }

// tryOnce runs the handler once.
func (k *consumer) tryOnce(ctx context.Context, d *Delivery) (v verdict, panicked bool) {
	p := guard.Call("handler", func() { v.err = k.handler(ctx, d) })
	if p == nil && v.err == nil {
		return v, false
	}
	if p == nil {
		p = guard.Call("error of the handler", func() { v.err = d.Verdict(v.err) })
	}
	if p == nil {
		p = guard.Call("error of the handler", func() { k.complete(d, &v) })
	}
	if p != nil {
		p.Log(k.log, zap.String("id", d.ID))
		v.err, v.text = p, p.Error()
		k.setWait(d, &v)
	}
	return v, p != nil
}

// complete fills in what the error of a verdict means.
func (k *consumer) complete(d *Delivery, v *verdict) {
	switch {
	case IsRequeued(v.err):
		v.ask = askRequeue
	case IsRejected(v.err):
		v.ask, v.reason = askBury, header.ReasonRejected
	case IsSnoozed(v.err):
		v.ask = askSnooze
	}
	if early, ok := errors.AsType[*lasthop.EarlyError](v.err); ok {
		v.ask, v.offset = askReturn, early.Offset
	}
	k.setWait(d, v)
	v.text = v.err.Error()
}

// setWait sets how long the message waits, if it is to be sent again.
func (k *consumer) setWait(d *Delivery, v *verdict) {
	if v.repeatable() && d.received.immediate.Load() > 0 {
		return
	}
	if v.delay == 0 && (v.ask == askSnooze || v.ask == askRetry && d.Attempt < d.MaxAttempts) {
		v.delay = k.retryDelay(d, v.err)
	}
}
