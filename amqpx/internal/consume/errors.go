package consume

import (
	"errors"
	"time"
)

// ErrDrainTimeout means that handlers of a consumer were still running 2 s after the end of the drain time. Their
// messages were not acknowledged and will be delivered again.
var ErrDrainTimeout = errors.New("drain timeout")

// Errors by which a handler requests something other than a retry with back-off.
type (
	// RejectError requests that the message be dead-lettered.
	RejectError struct{ Err error }
	// RetryInError requests a retry after a delay.
	RetryInError struct {
		Delay time.Duration
		Err   error
	}
	// SnoozeError requests another delivery after a delay, without counting an attempt.
	SnoozeError struct{ Delay time.Duration }
	// RequeueError requests that the message be requeued unchanged.
	RequeueError struct{ Err error }
)

func (e *RejectError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RejectError) Unwrap() error { return e.Err }

func (e *RetryInError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RetryInError) Unwrap() error { return e.Err }

func (e *SnoozeError) Error() string { return "snoozed" }

func (e *RequeueError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RequeueError) Unwrap() error { return e.Err }

// noDelay replaces any delay below shortestDelay. Such a delay may be 0, negative, or a number whose unit was
// forgotten. Without noDelay, a handler that keeps returning such a delay would keep itself and the broker busy.
const (
	noDelay       = time.Second
	shortestDelay = 10 * time.Millisecond
)

// UsableDelay returns d, or a second if d is too short for a retry.
func UsableDelay(d time.Duration) time.Duration {
	if d < shortestDelay {
		return noDelay
	}
	return d
}

// policyError is an error to which the consumer's error policy has been applied.
type policyError struct{ error }

func (e *policyError) Unwrap() error { return e.error }

// PolicyApplied marks an error as the result of an error policy, so that no policy is applied to it again.
func PolicyApplied(err error) error { return &policyError{err} }

// ApplyPolicy returns the error that the consumer's error policy substitutes for a handler's error. Errors that already
// request something, and errors that ApplyPolicy has returned, are not changed.
func (d *Delivery) ApplyPolicy(err error) error {
	if err == nil {
		return nil
	}
	_, applied := errors.AsType[*policyError](err)
	if _, asks := dispositionOf(err); asks || applied {
		return err
	}
	return d.handling.ApplyPolicy(err)
}
