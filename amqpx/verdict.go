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
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

// verdict says what happens to a message after its handler. It is read from the handler's error once (see asked),
// because methods of an error that is not ours may panic at any call.
type verdict struct {
	ask    ask
	reason string        // for askBury
	delay  time.Duration // before the next delivery, as the error asks for; 0 for the back-off
	offset time.Duration // for askReturn: the due time's clock minus this process's clock
	err    error         // for hooks; nil on success
	text   string        // the text of err
}

const (
	askAck   ask = iota
	askRetry     // if there are attempts left
	askSnooze
	askRequeue
	askBury
	askRecount // see counts
	askReturn  // too early
)

type ask int

// ownVerdict returns the verdict for one of this package's own errors.
func ownVerdict(ask ask, reason string, err error) verdict {
	return verdict{ask: ask, reason: reason, err: err, text: err.Error()}
}

// judge runs the handler and returns the verdict. A panic of the handler, or of a method of its error, is treated
// as an error of that message.
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
		if left == 0 || v.ask != askRetry || v.delay > 0 { // the error asks for something other than a retry with back-off
			return v, panicked
		}
		k.log.Debug("failed, and tried again at once", zap.String("id", d.ID), zap.String("error", v.text))
	}
}

// unhandled returns the verdict for a message that must not reach its handler, and whether that is the case.
func (k *consumer) unhandled(d *Delivery) (v verdict, ok bool) {
	if why, ok := d.Headers[HeaderUnreadable].(string); ok {
		return ownVerdict(askBury, header.ReasonUnreadable, fmt.Errorf("cannot be read, and was not handled: %s", why)), true
	}
	if err := k.overruns.take(d); err != nil {
		return ownVerdict(askRetry, "", err), true
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

// tryOnce runs the handler once.
func (k *consumer) tryOnce(ctx context.Context, d *Delivery) (v verdict, panicked bool) {
	var err error
	p := guard.Call(k.log, "handler", func() { err = k.handler(ctx, d) }, zap.String("id", d.ID))
	if p == nil && err == nil {
		return v, false
	}
	if p == nil {
		p = guard.Call(k.log, "error of the handler", func() {
			decided := d.Verdict(err)
			v, _ = asked(decided)
			v.text = decided.Error()
		}, zap.String("id", d.ID))
	}
	if p != nil {
		v = ownVerdict(askRetry, "", p)
	}
	if v.ask == askRequeue {
		v.delay = wait.Backoff(requeueMin, requeueMax, int(min(max(d.deliveries, 0), header.MaxDeliveries))+1)
	}
	return v, p != nil
}

// requeueMin is how long a message is held before it is requeued. It doubles with each delivery that the broker
// counts, up to requeueMax.
const (
	requeueMin = time.Second
	requeueMax = 10 * time.Second
)

var (
	errDeliveries = fmt.Errorf("delivered more than %d times without an outcome: the consumer ended or lost its connection each time, or the message was taken and put back", header.MaxDeliveries)
	errRecount    = errors.New("put back once, to see whether the broker counts its deliveries")
	errGoexit     = errors.New("handler ended its goroutine (runtime.Goexit, which t.FailNow calls)")
)

// verdictError is an error to which the consumer's policy has been applied.
type verdictError struct{ error }

func (e *verdictError) Unwrap() error { return e.error }

// Verdict returns the error that the consumer's policy (WithErrorPolicy) puts in place of a handler's error. It is
// for wrappers of a Handler that keep their own record of what happens to a message. The policy is applied only
// once: an error that Verdict has returned stays unchanged. Without a policy, and for a Delivery that was not
// received by Consume, Verdict returns err.
func (d *Delivery) Verdict(err error) error {
	if d.received == nil || err == nil {
		return err
	}
	k := d.received.consumer
	_, judged := errors.AsType[*verdictError](err)
	if _, ok := asked(err); ok || judged || k.policy == nil {
		return err
	}
	return &verdictError{k.policy(d, err)}
}

// asked reads from an error what it asks for. If it asks for nothing, the verdict is askRetry, and ok is false.
func asked(err error) (v verdict, ok bool) {
	in, again := errors.AsType[*retryInError](err)
	snooze, snoozed := errors.AsType[*snoozeError](err)
	early, tooEarly := errors.AsType[*lasthop.EarlyError](err)
	requeued, rejected := IsRequeued(err), IsRejected(err)
	v = verdict{ask: askRetry, err: err}
	if again {
		v.delay = in.delay
	}
	if snoozed {
		v.ask, v.delay = askSnooze, snooze.delay
	}
	if rejected {
		v.ask, v.reason = askBury, header.ReasonRejected
	}
	if requeued {
		v.ask, v.reason = askRequeue, ""
	}
	if tooEarly {
		v.ask, v.offset = askReturn, early.Offset
	}
	return v, again || snoozed || rejected || requeued || tooEarly
}

// counts remembers delivery counts that are implausibly large. A publisher can set such a count, so it is believed
// only if it increases when the message is rejected.
type counts struct {
	mu   sync.Mutex
	last map[string]int64
}

// maxCounts is the maximum number of messages that are remembered.
const maxCounts = 1000

// put remembers a message's count. It returns the previously remembered count, and whether there was one.
func (c *counts) put(d *Delivery) (before int64, seen bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil || len(c.last) >= maxCounts {
		c.last = map[string]int64{}
	}
	key := d.identity()
	before, seen = c.last[key]
	c.last[key] = d.deliveries
	return before, seen
}

// identity returns a value that distinguishes the messages of a queue: the message's id or, without one, a hash of
// its body.
func (d *Delivery) identity() string {
	if d.ID != "" {
		return d.ID
	}
	sum := sha256.Sum256(d.Body)
	return string(sum[:])
}
