package page

import (
	"context"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/deadletters"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/trace"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Service is the part of service.Core that the pages need. service.Core documents the methods.
type Service interface {
	overviews
	tasks
	recurringTasks
	heldDestinations
	deadLetters
	records
}

type overviews interface {
	Overview(ctx context.Context, who service.Identity) (service.Overview, error)
	Watch(ctx context.Context, who service.Identity, each func(service.Overview) error) error
	Histogram(ctx context.Context, f schedule.Filter, from, to time.Time, bins int) (service.Histogram, error)
	RetirePlan(ctx context.Context) (service.RetirePlan, error)
	Retire(ctx context.Context, who service.Identity) (service.Job, error)
}

type tasks interface {
	Tasks(ctx context.Context, who service.Identity, f schedule.Filter) (service.TaskPage, error)
	Count(ctx context.Context, f schedule.Filter, limit int64) (n int64, more bool, err error)
	TaskErrors(ctx context.Context, who service.Identity, f schedule.Filter, o taskview.ErrorGroupOptions) (taskview.ErrorGroups, error)
	Suggest(ctx context.Context) (service.Suggestions, error)
	Task(ctx context.Context, who service.Identity, id string) (service.TaskDetail, error)
	Trace(ctx context.Context, who service.Identity, id string) (trace.Trace, error)
	Schedule(ctx context.Context, who service.Identity, tasks []service.NewTask) ([]service.ScheduleResult, error)
	Change(ctx context.Context, who service.Identity, id string, a change.Action) (schedule.TaskRow, error)
	BulkCount(ctx context.Context, f schedule.Filter, a change.Action) (int64, error)
	Bulk(ctx context.Context, who service.Identity, f schedule.Filter, a change.Action, count int64) (service.Job, error)
}

type recurringTasks interface {
	Recurring(ctx context.Context, who service.Identity) ([]schedule.Recurring, error)
	LastRuns(ctx context.Context, names []string) (map[string]schedule.TaskRow, error)
	RecurringTask(ctx context.Context, who service.Identity, name string) (schedule.Recurring, error)
	PutRecurring(ctx context.Context, who service.Identity, r schedule.Recurring) (schedule.Change, error)
	PauseRecurring(ctx context.Context, who service.Identity, name string) error
	ResumeRecurring(ctx context.Context, who service.Identity, name string) error
	RunRecurring(ctx context.Context, who service.Identity, name string) (id string, err error)
	DeleteRecurring(ctx context.Context, who service.Identity, name string) error
}

type heldDestinations interface {
	Destinations(ctx context.Context) ([]schedule.DestinationState, error)
	Destination(ctx context.Context, d topology.Destination) (schedule.DestinationState, error)
	UnknownDestination(ctx context.Context, d topology.Destination) (string, error)
	PauseDestination(ctx context.Context, who service.Identity, d topology.Destination) error
	SetRateLimit(ctx context.Context, who service.Identity, x schedule.RateLimit) error
	ResumeDestination(ctx context.Context, who service.Identity, d topology.Destination, spread time.Duration) error
}

type deadLetters interface {
	Peek(ctx context.Context, who service.Identity, queue string, limit int) (inspect.Peeked, error)
	ErrorGroups(ctx context.Context, queue string, order deadletters.GroupOrder, limit int) (deadletters.ErrorGroups, error)
	RequeueDryRun(ctx context.Context, who service.Identity, r service.Requeue) (inspect.RequeueReport, error)
	Requeue(ctx context.Context, who service.Identity, r service.Requeue) (service.Job, error)
}

type records interface {
	Jobs(ctx context.Context, who service.Identity, limit int) ([]service.Job, error)
	Job(ctx context.Context, who service.Identity, id string) (service.Job, error)
	StopJob(ctx context.Context, who service.Identity, id string) (service.Job, error)
	ContinueJob(ctx context.Context, who service.Identity, id string) (service.Job, error)
	Audit(ctx context.Context, who service.Identity, target, before string, limit int) ([]service.Entry, error)
	AuditLongerThan(ctx context.Context, target string, n int) (bool, error)
}
