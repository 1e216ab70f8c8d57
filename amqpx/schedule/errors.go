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
	// ErrExists occurs when a task with the given id exists, in any status. *ExistsError wraps it.
	// Use Replace() to overwrite the existing task.
	ErrExists = errors.New("task exists")
	// ErrNotFound occurs when there is no task with the given id. The task may have been purged
	// after it finished.
	ErrNotFound = errors.New("task not found")
	// ErrStatus occurs when the task's status does not allow the change, usually because the change
	// came too late. *StatusError wraps it.
	ErrStatus = errors.New("task's status does not allow it")
	// ErrUnique occurs when a task cannot become pending because another task with its unique key is
	// pending. *UniqueError wraps it.
	ErrUnique = errors.New("another task of the unique key is pending")
	// ErrTask occurs when a task is invalid. *TaskError wraps it.
	ErrTask = errors.New("task not possible")
	// ErrNotTask occurs when Handler gets a message without a task's id or version, or a message
	// without a due time before its task is due. The message is dead-lettered.
	ErrNotTask = errors.New("message is not a task")
	// ErrRecurring occurs when a recurring task is invalid. *RecurringError wraps it.
	ErrRecurring = errors.New("recurring task not possible")
	// ErrScheduleExists occurs when there is a recurring task of the same name. Use Put to overwrite it.
	ErrScheduleExists = recur.ErrExists
	// ErrNoSchedule occurs when there is no recurring task of the given name.
	ErrNoSchedule = recur.ErrNone
	// ErrMaxSends occurs when a task was sent Config.MaxSends times and no handler settled it.
	ErrMaxSends = relay.ErrMaxSends
	// ErrPoison occurs when the attempts of a message ended without an outcome, for example because
	// they crashed the process. *PoisonError wraps it. The message is dead-lettered, and its task
	// fails.
	ErrPoison = errors.New("poison message")
	// ErrLeaseLost occurs when the lease of LeaseHandler's work ended before the work did, so that
	// another process may have begun the same work.
	ErrLeaseLost = errors.New("lease lost")
	// ErrConfig is wrapped by every error of Config.Validate, and by the errors of methods whose
	// filters or options are invalid.
	ErrConfig = errors.New("schedule configuration not possible")
	// ErrNoSender is returned by Run if the Store was created without a Sender.
	ErrNoSender = errors.New("the store has no sender to relay tasks with; give New a client")
	// ErrClock occurs when the clocks of the database and of this process are more than a day apart.
	// Run returns it when it starts. Health returns it if a clock was changed while Run runs.
	ErrClock = pace.ErrClock
	// ErrNotRunning is returned by Health if the store's Run is not running.
	ErrNotRunning = errors.New("the store's Run does not run")
	// ErrCommit occurs when the commit of a handler's transaction failed, although it may have taken
	// effect. The message is retried, and the task's row shows whether the effect happened.
	ErrCommit = sqldb.ErrCommit
	// ErrNoExecutor occurs when a nil Executor was passed instead of a transaction or NoTx.
	ErrNoExecutor = sqldb.ErrNoExecutor
	// ErrNoDatabase occurs when a nil Database was passed.
	ErrNoDatabase = sqldb.ErrNoDatabase
	// ErrNoTable occurs when the table rabbitdelay_tasks does not exist. Run Migrate to create it.
	ErrNoTable = sqldb.ErrNoTable
	// ErrDenied occurs when the database's user lacks a permission that docs/permissions.md lists.
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

// UniqueError is the error of a task that cannot become pending again, because another task with its
// unique key is pending.
type UniqueError struct {
	ID      string
	Key     string
	Pending string // the id of the other task; empty if that was written at the same moment
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

// TaskError is the error of an invalid Task. It names the wrong field and what was expected.
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

// RecurringError is the error of an invalid Recurring. It names the wrong field and what was expected.
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

// PoisonError is the error of a task that failed because its attempts ended without an outcome.
type PoisonError struct {
	ID       string
	Attempts int
}

func (e *PoisonError) Error() string {
	return fmt.Sprintf("task %s: attempt %d ended without an outcome; look whether its process died (a crash, out of memory, a kill) or lost its connections", e.ID, e.Attempts)
}

// Unwrap makes errors.Is(err, ErrPoison) true.
func (e *PoisonError) Unwrap() error { return ErrPoison }

// taskError converts a problem to a *TaskError, and nil to nil.
func taskError(id string, problem *rows.FieldError) error {
	if problem == nil {
		return nil
	}
	return &TaskError{ID: id, Field: problem.Field, Reason: problem.Reason}
}
