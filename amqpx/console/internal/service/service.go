// Package service is what the console's pages and the API behind it share: what
// can be seen, what can be changed, by whom, and the record of who did.
package service

import (
	"context"
	"errors"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/amqpx/trace"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Role is what somebody may do.
type Role string

// Roles, each of which may do what the one before may.
const (
	RoleViewer   Role = "viewer"   // look at everything but bodies
	RoleOperator Role = "operator" // see bodies, and change things
)

// Identity is who asks.
type Identity struct {
	Name string
	Role Role
}

// May tells whether somebody of this role may do what needs another.
func (r Role) May(need Role) bool {
	return r == RoleOperator || r == RoleViewer && need == RoleViewer
}

// Caller is who makes a request, and what a page needs to answer it. The handler
// before pages and API puts it into the request's context.
type Caller struct {
	Identity

	// FormToken stands in every form, in the field FormTokenField.
	FormToken string
	// Prefix stands before every path of a link or a form: empty, or such as
	// /rabbitdelay.
	Prefix string
	// Session tells that somebody has logged in by the form, and may log out.
	Session bool
}

// FormTokenField is the hidden field of every form.
const FormTokenField = "token"

type callerKey struct{}

// WithCaller is a context that knows its caller.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf is the caller of a request's context; the zero value, which may do
// nothing, without one.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// Errors beside those of schedule (ErrNotFound, ErrExists, ErrStatus, ErrNoSchedule,
// *TaskError, *RecurringError).
var (
	// ErrForbidden: it needs an operator.
	ErrForbidden = errors.New("it needs the role operator")
	// ErrUnavailable: what it needs is not there; the error says what.
	ErrUnavailable = errors.New("not available")
	// ErrNoJob: there is no job of that id.
	ErrNoJob = errors.New("there is no such job")
	// ErrJobState: the job cannot be continued.
	ErrJobState = errors.New("expected one that failed, or was interrupted or stopped")
)

// FieldError says which input is wrong, and what was expected.
type FieldError struct{ Field, Reason string }

func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }

// Service is all of it. Methods that change something need an operator
// (ErrForbidden), and record who did it before it is done. What a part needs that
// is not there (no database, no broker) is ErrUnavailable.
type Service interface {
	Now
	Tasks
	Schedules
	DeadLetters
	Records
}

// Now is what is seen at a glance.
type Now interface {
	// Overview is at most a few seconds old, and shared by all who ask. Why something
	// is not seen or not done is for an operator only, here and elsewhere.
	Overview(ctx context.Context, who Identity) (Overview, error)
	// Watch calls each with every new Overview until ctx ends or each fails. All
	// watchers share one look at broker and database.
	Watch(ctx context.Context, who Identity, each func(Overview) error) error
	// Histogram counts pending tasks by due instant: from and to are the bounds
	// of what is shown; zero for from the oldest overdue to a year ahead.
	Histogram(ctx context.Context, f schedule.Filter, from, to time.Time, bins int) (Histogram, error)
	// RetirePlan says what would be deleted, and what stands in the way.
	RetirePlan(ctx context.Context) (RetirePlan, error)
	// Retire starts a job that deletes the layouts of delay.previous.
	Retire(ctx context.Context, who Identity) (Job, error)
}

// Tasks are those of the database.
type Tasks interface {
	// Tasks is a page of at most f.Limit tasks, in order of their due instants,
	// after f.After. Bodies are left out. Who is no operator sees of most headers the
	// names only, here and elsewhere, and cannot filter by them.
	Tasks(ctx context.Context, who Identity, f schedule.Filter) (TaskPage, error)
	// Count counts what f chooses, up to limit.
	Count(ctx context.Context, f schedule.Filter, limit int64) (n int64, more bool, err error)
	// Task has a Body only for an operator.
	Task(ctx context.Context, who Identity, id string) (TaskDetail, error)
	// Trace looks for a message or task in the dead-letter queues too, which takes
	// seconds. Bodies are for an operator only.
	Trace(ctx context.Context, who Identity, id string) (trace.Trace, error)
	TaskChanges
}

// TaskChanges are what becomes of tasks.
type TaskChanges interface {
	// Schedule writes each of the tasks, or says in its result why not.
	Schedule(ctx context.Context, who Identity, tasks []NewTask) ([]ScheduleResult, error)
	Cancel(ctx context.Context, who Identity, id string) error
	Move(ctx context.Context, who Identity, id string, to time.Time) error
	MoveBy(ctx context.Context, who Identity, id string, by time.Duration) error
	Fire(ctx context.Context, who Identity, id string) error
	Revive(ctx context.Context, who Identity, id string, at time.Time) error
	// BulkCount is how many tasks Bulk would change now.
	BulkCount(ctx context.Context, f schedule.Filter, a BulkAction) (int64, error)
	// Bulk starts a job that changes at most count of the tasks that f chooses:
	// what was counted and confirmed.
	Bulk(ctx context.Context, who Identity, f schedule.Filter, a BulkAction, count int64) (Job, error)
}

// Schedules are the recurring tasks.
type Schedules interface {
	Recurring(ctx context.Context, who Identity) ([]schedule.Recurring, error)
	RecurringTask(ctx context.Context, who Identity, name string) (schedule.Recurring, error)
	PutRecurring(ctx context.Context, who Identity, r schedule.Recurring) (schedule.Change, error)
	PauseRecurring(ctx context.Context, who Identity, name string) error
	ResumeRecurring(ctx context.Context, who Identity, name string) error
	FireRecurring(ctx context.Context, who Identity, name string) (id string, err error)
	DeleteRecurring(ctx context.Context, who Identity, name string) error
}

// DeadLetters are messages that lie somewhere.
type DeadLetters interface {
	// Peek shows what lies at the head of a dead-letter queue or the parked queue,
	// bodies for an operator only.
	Peek(ctx context.Context, who Identity, queue string, limit int) (amqpx.Peeked, error)
	// RequeueDryRun says what a requeue would do. It needs an operator, because it
	// takes each message and puts it back.
	RequeueDryRun(ctx context.Context, who Identity, r Requeue) (amqpx.RequeueReport, error)
	// Requeue starts a job that sends at most r.Limit messages.
	Requeue(ctx context.Context, who Identity, r Requeue) (Job, error)
}

// Records are what was done.
type Records interface {
	// Jobs are the newest ones.
	Jobs(ctx context.Context, who Identity, limit int) ([]Job, error)
	// StopJob ends a running job after what it is doing, also in another process;
	// ContinueJob goes on with one that was interrupted or stopped.
	StopJob(ctx context.Context, who Identity, id string) (Job, error)
	ContinueJob(ctx context.Context, who Identity, id string) (Job, error)
	// Job is one that was started, in this process or in another on this database.
	Job(ctx context.Context, who Identity, id string) (Job, error)
	// Audit are the newest entries, before the one with the id before ("" for the
	// newest); with a target only those about it.
	Audit(ctx context.Context, who Identity, target, before string, limit int) ([]Entry, error)
}

// Overview is the first page: what one sees in the first five seconds.
type Overview struct {
	At     time.Time
	Status status.Status
	// Counts are the pending tasks by how far ahead they are due, from overdue on.
	Horizon []HorizonCount
	// Lateness is that of tasks whose effect was in the last hour, by minute.
	Lateness []LatenessPoint
	// Ended is how tasks came to an end in the last hour; nil if unknown.
	Ended *Ended
	// Rates are messages a second, of the last minute; nil if unknown.
	Rates *Rates
	// Alarms are the broker's memory and disk alarms, by node.
	Alarms []string
	// Problem is what keeps this process from working; empty if nothing.
	Problem string
	// Brokerless: the process has no broker to look at.
	Brokerless bool
}

// Blind says why there is nothing of the broker; empty if there is.
func (o Overview) Blind() string {
	switch {
	case o.Status.Broker != nil:
		return ""
	case o.Brokerless:
		return "This console has no broker to look at."
	}
	return "The broker could not be looked at."
}

// HorizonCount counts the pending tasks due until an instant, and after that of
// the one before.
type HorizonCount struct {
	Name  string // overdue, 1m, 1h, 1d, 7d, 30d, later
	Until time.Time
	Count int64
	More  bool // not all were counted
}

// LatenessPoint is the lateness of tasks that were done in a minute.
type LatenessPoint struct {
	From     time.Time
	P50, P99 time.Duration
	Count    int64
}

// Ended counts the tasks that were done or failed within an hour, and those that failed
// in the hour before. Each count stops at 10,000.
type Ended struct{ Done, Failed, FailedBefore int64 }

// Rates are messages a second.
type Rates struct{ In, Out float64 }

// Histogram counts pending tasks by due instant, in bins of growing width if the
// span is long: overdue ones first.
type Histogram struct {
	From, To time.Time
	Bins     []schedule.Bin
	// Before and After are how many lie outside.
	Before, After int64
}

// TaskPage is one page of tasks.
type TaskPage struct {
	Tasks []schedule.Task
	Next  schedule.Cursor // its ID is empty at the end
}

// TaskDetail is one task and what has become of it.
type TaskDetail struct {
	Task    schedule.Task
	Effects []schedule.Effect
	Records []idempotency.Record
	Why     string // what has become of it, or why nothing has, in a sentence
	// TraceID is that of the trace context that the task carries; empty without.
	TraceID string
	Audit   []Entry
}

// NewTask is a task to be written. A task that is there already and says the same is
// no error.
type NewTask struct {
	schedule.Task

	Replace bool // one of the same id that says something else, in whatever status
	AnyDue  bool // one that differs only in its due instant says the same
}

// ScheduleResult is what became of one task of a Schedule.
type ScheduleResult struct {
	ID      string
	Created bool // false: the same task was there already
	Err     error
}

// BulkAction is one of cancel, delete, fire, revive, move-to, move-by.
type BulkAction struct {
	Kind   string
	At     time.Time     // of move-to and revive
	By     time.Duration // of move-by
	Spread time.Duration
}

// Requeue is what to requeue.
type Requeue struct {
	Queue  string
	Filter amqpx.DeadLetterFilter
	To     topology.Destination
	Limit  int
	Rate   float64
}

// RetirePlan is what a retirement would do.
type RetirePlan struct {
	Layouts []status.Layout
	Text    string // as the command prints it
	Refused string // why it cannot be done now; empty if it can
}

// JobState is how far a job is.
type JobState string

// States of a job.
const (
	JobRunning     JobState = "running"
	JobDone        JobState = "done"
	JobFailed      JobState = "failed"
	JobInterrupted JobState = "interrupted" // its process ended
	JobStopped     JobState = "stopped"     // by StopJob
)

// Job is something long that was started here.
type Job struct {
	ID       string
	Entry    Entry
	State    JobState
	Total    int64
	Done     int64
	Result   string // a line when it is over
	Finished time.Time
}

// Entry says who did what.
type Entry struct {
	ID     string
	At     time.Time
	Who    string
	Action string // task.cancel, bulk.move-to, recurring.pause, requeue, retire, login ...
	Target string // a task's id, a queue, a name; empty for a filter
	Detail string // the filter, the instant
	Error  string // why it was not done
}
