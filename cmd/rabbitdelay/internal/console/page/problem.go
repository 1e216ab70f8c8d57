package page

import (
	"errors"
	"net/http"
	"strings"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
)

// problemData is the data of the page that explains an error.
type problemData struct {
	Status  int
	Heading string
	Detail  string // the text of the error
	Advice  string
}

// kinds lists the kinds of problems. The first kind that matches the error applies.
var kinds = []struct {
	is      error
	status  int
	heading string
	advice  string
}{
	{errNoPage, http.StatusNotFound, "There is no such page", "Use the navigation to find what you need."},
	{schedule.ErrNotFound, http.StatusNotFound, "There is no such task", "Finished tasks are deleted after a while. A message that was sent without a task may be among the dead letters."},
	{schedule.ErrNoSchedule, http.StatusNotFound, "There is no such recurring task", "It may have been deleted; the audit shows by whom."},
	{service.ErrNoMessages, http.StatusNotFound, "There are no such messages", "The process that discarded them keeps them in its directory serve.discarded."},
	{service.ErrNoJob, http.StatusNotFound, "There is no such job", "The audit lists all of them."},
	{service.ErrJobState, http.StatusConflict, "This job cannot be stopped or continued now", "Another user may have been faster. Nothing was changed."},
	{service.ErrForbidden, http.StatusForbidden, "You are not allowed to do this", "Your role is viewer. Only operators can make changes. Nothing was changed."},
	{service.ErrBroker, http.StatusServiceUnavailable, "The broker does not answer", "Tasks, recurring tasks and the audit need only the database and still work. Due tasks are sent when the broker is back. The audit shows whether anything was changed."},
	{service.ErrRefused, http.StatusConflict, "The broker refused the request", "The user of this process may lack a permission on the broker; see docs/permissions.md. The audit shows whether anything was changed."},
	{service.ErrNoQueue, http.StatusNotFound, "There is no such queue", "The page Dead letters lists the existing queues."},
	{service.ErrUnavailable, http.StatusServiceUnavailable, "Not available", "The other pages still work. Nothing was changed."},
	{schedule.ErrNoTable, http.StatusServiceUnavailable, "The database has no tables for tasks", "Nothing was changed."},
	{schedule.ErrDenied, http.StatusServiceUnavailable, "The database refused the request", "Nothing was changed."},
	{schedule.ErrPooler, http.StatusServiceUnavailable, "A pooler is between this program and the database", "Nothing was changed."},
	{schedule.ErrReadOnly, http.StatusServiceUnavailable, "The database is read-only", "Nothing was changed."},
	{schedule.ErrUnique, http.StatusConflict, "Another task is pending", "Another task with the same unique key is pending. Nothing was changed."},
	{schedule.ErrStatus, http.StatusConflict, "Too late", "Another user or the handler of the task was faster. Nothing was changed."},
	{schedule.ErrExists, http.StatusConflict, "A different task with this ID exists", "Choose another ID."},
	{schedule.ErrInvalidTask, http.StatusBadRequest, "Invalid task", "Nothing was scheduled."},
	{schedule.ErrRecurring, http.StatusBadRequest, "Invalid recurring task", "Nothing was changed."},
	{schedule.ErrConfig, http.StatusBadRequest, "Invalid request", "Nothing was changed."},
	{inspect.ErrPeek, http.StatusConflict, "The queue was not read", "Nothing was taken from it."},
}

// describe explains an error to the user.
func describe(err error) problemData {
	if fe, ok := errors.AsType[*change.FieldError](err); ok {
		return problemData{http.StatusBadRequest, "Invalid input", fe.Error(), "Go back and correct it. Nothing was changed."}
	}
	for _, k := range kinds {
		if errors.Is(err, k.is) {
			return problemData{k.status, k.heading, err.Error(), k.advice}
		}
	}
	if service.DatabaseAway(err) {
		return problemData{http.StatusServiceUnavailable, "The database does not answer", err.Error(), "Dead letters and layouts need only the broker and still work. Messages that were sent before are still delivered. When the database is back, the audit shows whether anything was changed."}
	}
	return problemData{http.StatusServiceUnavailable, "Something went wrong", err.Error(), "The audit shows whether anything was changed."}
}

// maxDetail limits the text of an error, which may contain the request.
const maxDetail = 2000

// problem returns the page that explains an error. The page includes the navigation.
func (p *Pages) problem(r *request, err error) answer {
	d := describe(err)
	if d.Status >= http.StatusInternalServerError {
		p.o.Logger.Warn("a page could not be shown", zap.String("path", r.URL.Path), zap.Error(err))
	}
	if d.Detail = service.Told(r.who.Identity, err); strings.EqualFold(d.Detail, d.Heading) { // do not show the same text twice
		d.Detail = ""
	}
	d.Detail = shown.Shorten(d.Detail, maxDetail)
	return answer{name: "problem", title: r.lang.text(d.Heading), status: d.Status, data: d}
}
