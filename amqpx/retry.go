package amqpx

import (
	"cmp"
	"errors"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/lasthop"
)

type rejectError struct{ err error }

func (e *rejectError) Error() string { return e.err.Error() }
func (e *rejectError) Unwrap() error { return e.err }

// Reject returned by a handler dead-letters the message now, whatever its
// attempts. A nil err stands for "rejected".
func Reject(err error) error {
	if err == nil {
		err = errors.New("rejected")
	}
	return &rejectError{err}
}

// IsRejected reports whether err was made by Reject, for wrappers of a Handler that
// keep their own record of a message's fate.
func IsRejected(err error) bool {
	_, ok := errors.AsType[*rejectError](err)
	return ok
}

type retryInError struct {
	delay time.Duration
	err   error
}

func (e *retryInError) Error() string { return e.err.Error() }
func (e *retryInError) Unwrap() error { return e.err }

// noDelay is what a delay below shortestDelay stands for: 0 or less, and a number
// without its unit. A handler that returns one again and again would otherwise keep
// itself and the broker busy with nothing else.
const (
	noDelay       = time.Second
	shortestDelay = 10 * time.Millisecond
)

func orNoDelay(d time.Duration) time.Duration {
	if d < shortestDelay {
		return noDelay
	}
	return d
}

// RetryIn returned by a handler retries the message after d instead of the
// consumer's back-off; below 10 ms, such as 0, after 1 s. It counts as an attempt. A
// nil err stands for "retry".
func RetryIn(d time.Duration, err error) error {
	if err == nil {
		err = errors.New("retry")
	}
	return &retryInError{delay: orNoDelay(d), err: err}
}

type snoozeError struct{ delay time.Duration }

func (e *snoozeError) Error() string { return "snoozed" }

// Snooze returned by a handler delivers the message again after d (below 10 ms, such as
// 0, after 1 s), because what it waits for has not happened yet. It does not count as an attempt, however
// often it is returned; Delivery.Snoozes counts them, for a handler that wants an
// end.
func Snooze(d time.Duration) error { return &snoozeError{delay: orNoDelay(d)} }

// IsSnoozed reports whether err was made by Snooze, for wrappers of a Handler that
// keep their own record of a message's fate.
func IsSnoozed(err error) bool {
	_, ok := errors.AsType[*snoozeError](err)
	return ok
}

type requeueError struct{ err error }

func (e *requeueError) Error() string { return e.err.Error() }
func (e *requeueError) Unwrap() error { return e.err }

// Requeue returned by a handler gives the message back to its queue as it is
// (basic.nack with requeue): nothing is published, no attempt is counted, and it
// keeps its properties and headers. It goes back after a pause of up to 1 s, which
// doubles with each delivery that the broker counts, to 10 s; until then it takes a
// place in the consumer's prefetch. Since RabbitMQ 4.0, and in classic queues, it comes
// before those behind it: what fails for its own sake had better be retried. A quorum
// queue counts it as a delivery, and after more than 200 it is dead-lettered. A nil
// err stands for "requeued".
func Requeue(err error) error {
	if err == nil {
		err = errors.New("requeued")
	}
	return &requeueError{err}
}

// IsRequeued reports whether err was made by Requeue, for wrappers of a Handler that
// keep their own record of a message's fate.
func IsRequeued(err error) bool {
	_, ok := errors.AsType[*requeueError](err)
	return ok
}

// verdictError is an error that the consumer's policy has judged.
type verdictError struct{ error }

func (e *verdictError) Unwrap() error { return e.error }

// Verdict returns what the consumer's policy (WithErrorPolicy) makes of a handler's error,
// for wrappers of a Handler that keep their own record of a message's fate. The policy is
// asked once: what Verdict returned stays as it is. Without a policy, and for a Delivery
// that was not received by Consume, that is err.
func (d *Delivery) Verdict(err error) error {
	if d.received == nil || err == nil {
		return err
	}
	k := d.received.consumer
	_, judged := errors.AsType[*verdictError](err)
	if _, ok := asked(err); ok || judged || k.policy == nil {
		return err
	}
	verdict := err
	guard.Observe(k.log, "WithErrorPolicy's function", func() { verdict = cmp.Or(k.policy(d, err), err) })
	return &verdictError{verdict}
}

// asked reads what an error itself says is to become of its message. Unless ok it says nothing,
// which is askRetry.
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

// RetryDelay returns how long the message will wait for its next delivery when the
// handler returns err: that of Snooze or RetryIn, or the consumer's back-off. It
// is the same at every call. 0 and true: the handler runs again at once, in the same
// attempt (topology.Retry.Immediate). false: there will be none, because err rejects or
// requeues the message or this was its last attempt, or the Delivery was not received by
// Consume.
func (d *Delivery) RetryDelay(err error) (delay time.Duration, ok bool) {
	if d.received == nil || err == nil {
		return 0, false
	}
	v, ok := asked(err)
	switch {
	case !ok && d.received.immediate.Load() > 0:
		return 0, true
	case v.ask == askBury, v.ask == askRequeue, v.ask != askSnooze && d.Attempt >= d.MaxAttempts:
		return 0, false
	}
	return d.received.consumer.nextDelay(d, v), true
}
