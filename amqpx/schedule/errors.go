package schedule

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/recur"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Errors that this package returns. Use errors.Is to check for them.
var (
	// ErrExists occurs when a task with the given id exists, in any status. *ExistsError wraps it.
	// Set Task.Replace to overwrite the existing task.
	ErrExists = errors.New("task already exists")
	// ErrNotFound occurs when there is no task with the given id. The task may have been purged
	// after it finished.
	ErrNotFound = errors.New("task not found")
	// ErrStatus occurs when the task's status does not allow the change, usually because the change
	// came too late. *StatusError wraps it.
	ErrStatus = errors.New("the task's status does not allow this change")
	// ErrUnique occurs when a task cannot become pending because another task with its unique key is
	// pending.
	ErrUnique = errors.New("another task with the unique key is pending")
	// ErrInvalidTask occurs when a task is invalid. *TaskError wraps it.
	ErrInvalidTask = errors.New("invalid task")
	// ErrNotTask occurs when Handler or LeaseHandler receives a message without a task's id or version, or, before the
	// task is due, a message without a due time. The message is dead-lettered.
	ErrNotTask = errors.New("the message does not belong to a task")
	// ErrRecurring occurs when a recurring task is invalid. *RecurringError wraps it.
	ErrRecurring = errors.New("invalid recurring task")
	// ErrScheduleExists occurs when there is a recurring task with the same name. Use Put to overwrite it.
	ErrScheduleExists = recur.ErrExists
	// ErrNoSchedule occurs when there is no recurring task with the given name.
	ErrNoSchedule = recur.ErrNone
	// ErrMaxSends occurs when a task was sent Config.MaxSends times and no handler settled it.
	ErrMaxSends = relay.ErrMaxSends
	// ErrPoison occurs when the attempts of a message ended without an outcome, for example because
	// they crashed the process. The message is dead-lettered, and its task
	// fails.
	ErrPoison = errors.New("poison message")
	// ErrLeaseLost occurs when LeaseHandler lost the lease of a task before the work was finished, so that another
	// process may have started the same work.
	ErrLeaseLost = errors.New("lease lost")
	// ErrConfig is wrapped by every error of Config.Validate, and by the errors of methods whose
	// filters or options are invalid.
	ErrConfig = errors.New("invalid schedule configuration")
	// ErrNoSender is returned by Run if the Store was created without a Sender.
	ErrNoSender = errors.New("the store has no sender for tasks; pass a client to New")
	// ErrClock occurs when the clocks of the database and of this process are more than a day apart.
	// Run returns it when it starts. Health returns it if a clock was changed while Run runs.
	ErrClock = polling.ErrClock
	// ErrNotRunning is returned by Health if the store's Run is not running.
	ErrNotRunning = errors.New("the store's Run is not running")
	// ErrCommit occurs when the commit of a handler's transaction failed, although it may have taken
	// effect. The message is retried, and the task's row shows whether the effect happened.
	ErrCommit = sqldb.ErrCommit
	// ErrNoExecutor occurs when a nil Executor was passed instead of a transaction or NoTx.
	ErrNoExecutor = sqldb.ErrNoExecutor
	// ErrNoDatabase occurs when a nil Database was passed.
	ErrNoDatabase = sqldb.ErrNoDatabase
	// ErrNoTable occurs when the table rabbitdelay_tasks does not exist. Run Migrate to create it.
	ErrNoTable = sqldb.ErrNoTable
	// ErrDenied occurs when the database user lacks a permission that docs/permissions.md lists.
	ErrDenied = sqldb.ErrDenied
	// ErrPooler occurs when a pooler in transaction mode, such as PgBouncer, is between this process
	// and PostgreSQL, and the driver uses prepared statements. Add default_query_exec_mode=exec to the
	// database's URL; see docs/databases.md.
	ErrPooler = sqldb.ErrPooler
	// ErrReadOnly occurs when the database is a replica or is otherwise read-only. Connect to the
	// primary.
	ErrReadOnly = sqldb.ErrReadOnly
	// ErrNotNotified occurs when a Listener listens without an error, but notifications do not
	// arrive. This is not a fault: Run polls instead.
	ErrNotNotified = errors.New("LISTEN is accepted but notifications do not arrive, because a pooler in transaction mode is between this process and PostgreSQL; connect the relay directly or through a pool in session mode if tasks that are due immediately must not wait for the next poll")
)

// ExistsError lists the tasks that already exist.
type ExistsError struct{ IDs []string }

func (e *ExistsError) Error() string {
	if len(e.IDs) == 1 {
		return fmt.Sprintf("task %s already exists; use another id, or reschedule or replace the existing task", e.IDs[0])
	}
	const show = 5
	ids := e.IDs
	more := ""
	if len(ids) > show {
		more = fmt.Sprintf(" and %d more", len(ids)-show)
		ids = ids[:show]
	}
	return fmt.Sprintf("tasks %s%s already exist; use other ids, or reschedule or replace the existing tasks", strings.Join(ids, ", "), more)
}

// Unwrap makes errors.Is(err, ErrExists) true.
func (e *ExistsError) Unwrap() error { return ErrExists }

// StatusError is returned if a task's status does not allow a change.
type StatusError struct {
	ID     string
	Action string // cancel, reschedule, run or revive
	Status Status
	Want   Status
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("cannot %s task %s: its status is %s, expected %s", e.Action, e.ID, e.Status, e.Want)
}

// Unwrap makes errors.Is(err, ErrStatus) true.
func (e *StatusError) Unwrap() error { return ErrStatus }

// uniqueError is returned if a task cannot become pending again because another task with its unique key is pending.
type uniqueError struct {
	id      string
	key     string
	pending string // the id of the other task; empty if that task was written at the same moment
}

func (e *uniqueError) Error() string {
	other := "another task"
	if e.pending != "" {
		other = "task " + e.pending
	}
	return fmt.Sprintf("cannot revive task %s: %s with the same unique key %s is pending; cancel that task first, or let it do the work", e.id, other, e.key)
}

// Unwrap makes errors.Is(err, ErrUnique) true.
func (e *uniqueError) Unwrap() error { return ErrUnique }

// TaskError is returned for an invalid Task. It names the invalid field and what was expected.
type TaskError struct {
	ID     string
	Field  string
	Reason string
}

func (e *TaskError) Error() string {
	return fmt.Sprintf("task %q: %s: %s", e.ID, rows.Words(e.Field), e.Reason)
}

// Unwrap makes errors.Is(err, ErrInvalidTask) true.
func (e *TaskError) Unwrap() error { return ErrInvalidTask }

// RecurringError is returned for an invalid Recurring. It names the invalid field and what was expected.
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

// poisonError is returned for a task that failed because its attempts ended without an outcome.
type poisonError struct {
	id       string
	attempts int
}

func (e *poisonError) Error() string {
	return fmt.Sprintf("task %s: attempt %d ended without an outcome; check whether its process died (a crash, out of memory, a kill) or lost its connections", e.id, e.attempts)
}

// Unwrap makes errors.Is(err, ErrPoison) true.
func (e *poisonError) Unwrap() error { return ErrPoison }

// taskError converts a problem to a *TaskError, and nil to nil.
func taskError(id string, problem *rows.FieldError) error {
	if problem == nil {
		return nil
	}
	return &TaskError{ID: id, Field: problem.Field, Reason: problem.Reason}
}
