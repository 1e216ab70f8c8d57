package schedule

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/pace"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/recur"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// Sentinels that errors.Is finds in what this package returns.
var (
	// ErrExists: a task with that id exists, in any status; wrapped by
	// *ExistsError. Replace() overwrites it instead.
	ErrExists = errors.New("task exists")
	// ErrNotFound: there is no task of that id (any more: finished ones are
	// purged).
	ErrNotFound = errors.New("task not found")
	// ErrStatus: the task's status does not allow the change, usually because it
	// came too late; wrapped by *StatusError.
	ErrStatus = errors.New("task's status does not allow it")
	// ErrUnique: another task of its unique key is pending, so this one cannot be;
	// wrapped by *UniqueError.
	ErrUnique = errors.New("another task of the unique key is pending")
	// ErrTask: the task is not possible; wrapped by *TaskError.
	ErrTask = errors.New("task not possible")
	// ErrNotTask: Handler got a message without a task's id or version, or one
	// without a due instant whose task is not yet due. It is dead-lettered.
	ErrNotTask = errors.New("message is not a task")
	// ErrRecurring: the recurring task is not possible; wrapped by *RecurringError.
	ErrRecurring = errors.New("recurring task not possible")
	// ErrScheduleExists: there is a recurring task of that name; Put overwrites it.
	ErrScheduleExists = recur.ErrExists
	// ErrNoSchedule: there is no recurring task of that name.
	ErrNoSchedule = recur.ErrNone
	// ErrMaxSends: a task was sent Config.MaxSends times, and no handler settled it.
	ErrMaxSends = relay.ErrMaxSends
	// ErrPoison: a message's attempts ended without an outcome, as when the process
	// dies of it; wrapped by *PoisonError. It is dead-lettered, and its task failed.
	ErrPoison = errors.New("poison message")
	// ErrLeaseLost: the lease of LeaseHandler's work ended before the work did, so
	// that another process may have begun it.
	ErrLeaseLost = errors.New("lease lost")
	// ErrConfig: wrapped by every error of Config.Validate.
	ErrConfig = errors.New("schedule configuration not possible")
	// ErrNoSender: Run on a Store that was made without a Sender.
	ErrNoSender = errors.New("the store has no sender to relay tasks with; give New a client")
	// ErrClock: the database's clock and this process's are more than a day apart. Run
	// returns it, as does Health where a clock was set while Run runs.
	ErrClock = pace.ErrClock
	// ErrNotRunning: Health of a store whose Run does not run.
	ErrNotRunning = errors.New("the store's Run does not run")
	// ErrCommit: the commit of a handler's transaction failed and may have
	// happened all the same. The message is retried, and the task's row decides.
	ErrCommit = sqldb.ErrCommit
	// ErrNoExecutor: a nil Executor was passed where a transaction or NoTx is expected.
	ErrNoExecutor = sqldb.ErrNoExecutor
	// ErrNoDatabase: a nil Database was passed.
	ErrNoDatabase = sqldb.ErrNoDatabase
	// ErrNoTable: the table rabbitdelay_tasks does not exist; run Migrate.
	ErrNoTable = sqldb.ErrNoTable
	// ErrDenied: the database's user lacks a right that docs/permissions.md lists.
	ErrDenied = sqldb.ErrDenied
)

// ExistsError lists the tasks that exist already.
type ExistsError struct{ IDs []string }

func (e *ExistsError) Error() string {
	const show = 5
	ids := e.IDs
	more := ""
	if len(ids) > show {
		more = fmt.Sprintf(" and %d more", len(ids)-show)
		ids = ids[:show]
	}
	return fmt.Sprintf("task %s%s exists; use another id, move it, or replace it", strings.Join(ids, ", "), more)
}

// Unwrap makes errors.Is(err, ErrExists) true.
func (e *ExistsError) Unwrap() error { return ErrExists }

// StatusError is the error of a change that a task's status does not allow.
type StatusError struct {
	ID     string
	Action string // cancel, reschedule, fire or revive
	Status Status
	Want   Status
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("cannot %s task %s: it is %s, expected %s", e.Action, e.ID, e.Status, e.Want)
}

// Unwrap makes errors.Is(err, ErrStatus) true.
func (e *StatusError) Unwrap() error { return ErrStatus }

// UniqueError is the error of a task that cannot be pending again, because another one of
// its unique key is.
type UniqueError struct {
	ID      string
	Key     string
	Pending string // the other task; empty if it appeared at the same instant
}

func (e *UniqueError) Error() string {
	other := "another task"
	if e.Pending != "" {
		other = "task " + e.Pending
	}
	return fmt.Sprintf("cannot revive task %s: %s with the same unique key %s is pending; cancel that one first, or leave the work to it", e.ID, other, e.Key)
}

// Unwrap makes errors.Is(err, ErrUnique) true.
func (e *UniqueError) Unwrap() error { return ErrUnique }

// TaskError names the field of a Task that is wrong, and what was expected.
type TaskError struct {
	ID     string
	Field  string
	Reason string
}

func (e *TaskError) Error() string {
	return fmt.Sprintf("task %q: %s: %s", e.ID, rows.Words(e.Field), e.Reason)
}

// Unwrap makes errors.Is(err, ErrTask) true.
func (e *TaskError) Unwrap() error { return ErrTask }

// RecurringError names the field of a Recurring that is wrong, and what was expected.
type RecurringError struct {
	Name   string
	Field  string
	Reason string
}

func (e *RecurringError) Error() string {
	return fmt.Sprintf("recurring task %q: %s: %s", e.Name, rows.Words(e.Field), e.Reason)
}

// Unwrap makes errors.Is(err, ErrRecurring) true.
func (e *RecurringError) Unwrap() error { return ErrRecurring }

// PoisonError is the error of a task that was given up because its attempts ended
// without an outcome.
type PoisonError struct {
	ID       string
	Attempts int
}

func (e *PoisonError) Error() string {
	return fmt.Sprintf("task %s: attempt %d ended without an outcome; look whether its process died (a crash, out of memory, a kill) or lost its connections", e.ID, e.Attempts)
}

// Unwrap makes errors.Is(err, ErrPoison) true.
func (e *PoisonError) Unwrap() error { return ErrPoison }

// taskError returns the error of a task with a problem, nil without one.
func taskError(id string, problem *rows.FieldError) error {
	if problem == nil {
		return nil
	}
	return &TaskError{ID: id, Field: problem.Field, Reason: problem.Reason}
}
