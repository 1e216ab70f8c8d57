package amqpx

import (
	"errors"
	"time"
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
// consumer's back-off; below 10 ms, such as 0, after 1 s. A strategy that does not have
// just this delay takes the next longer one that it has, and beyond its longest that: ttl the
// declared delays, bucket up to MaxDelay. It counts as an attempt. A nil err stands for "retry".
func RetryIn(d time.Duration, err error) error {
	if err == nil {
		err = errors.New("retry")
	}
	return &retryInError{delay: orNoDelay(d), err: err}
}

type snoozeError struct{ delay time.Duration }

func (e *snoozeError) Error() string { return "snoozed" }

// Snooze returned by a handler delivers the message again after d (below 10 ms, such as
// 0, after 1 s; see RetryIn for delays that the strategy does not have), because what it waits for has not happened yet. It does not count as an attempt, however
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
