package service

import (
	"errors"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Errors that the methods of a Core return, in addition to those of package schedule (ErrNotFound, ErrExists,
// ErrStatus, ErrNoSchedule, *TaskError, *RecurringError).
var (
	// ErrForbidden means that the caller must be an operator.
	ErrForbidden = errors.New("only an operator may do this")
	// ErrUnavailable means that this process lacks what the method needs, such as a database. The wrapping error says
	// what is missing.
	ErrUnavailable = errors.New("not available")
	// ErrNoJob means that there is no job with the given id.
	ErrNoJob = errors.New("there is no such job")
	// ErrNoMessages means that the job has not discarded any messages, or that another process saved them.
	ErrNoMessages = errors.New("this process has not saved any messages that the job discarded")
	// ErrJobState means that the job is in a state in which it cannot be continued or stopped.
	ErrJobState = errors.New("the state of the job does not allow this")

	// ErrBroker means that the broker does not answer. ErrRefused means that it refuses the request. ErrNoQueue means
	// that it has no such queue.
	ErrBroker  = errors.New("the broker does not answer")
	ErrRefused = errors.New("the broker refused the request")
	ErrNoQueue = errors.New("there is no such queue")
	// ErrDatabase means that the database does not answer. The errors of drivers do not wrap it, so use DatabaseAway
	// to recognise them.
	ErrDatabase = errors.New("the database does not answer")

	errLongQueue = errors.New("the queue is too long to be read while you wait; use \"rabbitdelay errors\", which has no time limit")

	errSlow = errors.New("the database took too long; narrow the filter by a queue, a status or due times")
)

// ErrNotRecorded means that the audit entry could not be written, so the change was not made.
var ErrNotRecorded = errors.New("nothing was done, because the change could not be recorded in the audit")

// within returns a *change.FieldError unless n is between 1 and the given maximum.
func within(field string, n, most int) error {
	if n < 1 || n > most {
		return &change.FieldError{Field: field, Reason: fmt.Sprintf("%s is %d; expected 1 to %d", field, n, most)}
	}
	return nil
}

// ofBroker wraps an error from the broker in ErrBroker, ErrRefused or ErrNoQueue. Other errors are returned unchanged.
func ofBroker(err error) error {
	if err == nil || ours(err) || errors.Is(err, inspect.ErrPeek) {
		return err
	}
	kind := ErrBroker
	if e, ok := errors.AsType[*amqp.Error](err); ok && e.Server {
		switch e.Code {
		case amqp.NotFound:
			kind = ErrNoQueue
		case amqp.AccessRefused, amqp.NotAllowed, amqp.ResourceLocked, amqp.PreconditionFailed, amqp.NotImplemented:
			kind = ErrRefused
		}
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// DatabaseAway reports whether err means that the database does not answer.
func DatabaseAway(err error) bool {
	return !errors.Is(err, ErrBroker) && !errors.Is(err, ErrRefused) && (errors.Is(err, ErrDatabase) || errors.Is(err, errSlow) || sqldb.Away(err))
}

// ours reports whether an error is about the request, with a text that this program has written.
func ours(err error) bool {
	if _, ok := errors.AsType[*change.FieldError](err); ok {
		return true
	}
	return slices.ContainsFunc([]error{
		ErrForbidden, ErrNoJob, ErrNoMessages, ErrJobState, ErrUnavailable, schedule.ErrNotFound, schedule.ErrNoSchedule, schedule.ErrExists, schedule.ErrStatus, schedule.ErrUnique,
		schedule.ErrInvalidTask, schedule.ErrRecurring, schedule.ErrConfig, amqpx.ErrConfig, errSlow, errLongQueue,
	}, func(known error) bool { return errors.Is(err, known) })
}
