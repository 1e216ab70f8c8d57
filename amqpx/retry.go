package amqpx

import (
	"errors"
	"time"
)

type rejectError struct{ err error }

func (e *rejectError) Error() string { return e.err.Error() }
func (e *rejectError) Unwrap() error { return e.err }

// Reject returns an error with which a handler dead-letters the message immediately, whatever its number of
// attempts. A nil err stands for "rejected".
func Reject(err error) error {
	if err == nil {
		err = errors.New("rejected")
	}
	return &rejectError{err}
}

// IsRejected reports whether err was made by Reject. It is for wrappers of a Handler that keep their own record of
// what happens to a message.
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

// noDelay replaces any delay below shortestDelay, which may be 0, negative, or a number whose unit was forgotten.
// Without this, a handler that keeps returning such a delay would keep itself and the broker busy.
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

// RetryIn returns an error with which a handler retries the message after d, in place of the consumer's back-off.
// It counts as an attempt. A d below 10 ms, such as 0, becomes 1 s. If the strategy does not have exactly this
// delay, the next longer one is used, or the longest one if there is none: ttl has the declared delays, bucket all
// delays up to MaxDelay. A nil err stands for "retry".
func RetryIn(d time.Duration, err error) error {
	if err == nil {
		err = errors.New("retry")
	}
	return &retryInError{delay: orNoDelay(d), err: err}
}

type snoozeError struct{ delay time.Duration }

func (e *snoozeError) Error() string { return "snoozed" }

// Snooze returns an error with which a handler has the message delivered again after d, because a condition that
// it needs is not met yet. It does not count as an attempt, however often it is returned. Delivery.Snoozes counts
// snoozes, for a handler that wants to stop at some point. A d below 10 ms, such as 0, becomes 1 s. RetryIn
// describes what happens to delays that the strategy does not have.
func Snooze(d time.Duration) error { return &snoozeError{delay: orNoDelay(d)} }

// IsSnoozed reports whether err was made by Snooze. It is for wrappers of a Handler that keep their own record of
// what happens to a message.
func IsSnoozed(err error) bool {
	_, ok := errors.AsType[*snoozeError](err)
	return ok
}

type requeueError struct{ err error }

func (e *requeueError) Error() string { return e.err.Error() }
func (e *requeueError) Unwrap() error { return e.err }

// Requeue returns an error with which a handler returns the message to its queue unchanged (basic.nack with
// requeue). Nothing is published, no attempt is counted, and the message keeps its properties and headers. A nil
// err stands for "requeued".
//
// The message is requeued after a pause of up to 1 s, whose limit doubles with each delivery that the broker
// counts, to 10 s. During the pause it takes a place in the consumer's prefetch. In classic queues, and in quorum
// queues since RabbitMQ 4.0, it returns ahead of the messages behind it, so retry a message that fails because of
// its own content, and do not requeue it. Before RabbitMQ 4.3, a quorum queue counts a requeue as a delivery, and
// after more than 200 deliveries the message is dead-lettered. Since 4.3 it does not count requeues.
func Requeue(err error) error {
	if err == nil {
		err = errors.New("requeued")
	}
	return &requeueError{err}
}

// IsRequeued reports whether err was made by Requeue. It is for wrappers of a Handler that keep their own record
// of what happens to a message.
func IsRequeued(err error) bool {
	_, ok := errors.AsType[*requeueError](err)
	return ok
}
