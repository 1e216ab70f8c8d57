package page

import (
	"errors"
	"net/http"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
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
	{schedule.ErrNoSchedule, http.StatusNotFound, "There is no such recurring task", "It may have been deleted; the audit says by whom."},
	{service.ErrNoMessages, http.StatusNotFound, "There are no such messages", "The process that has discarded them keeps them, in the directory serve.discarded."},
	{service.ErrNoJob, http.StatusNotFound, "There is no such job", "The audit lists all of them."},
	{service.ErrJobState, http.StatusConflict, "This job cannot be stopped or continued now", "Somebody else may have been faster. You changed nothing."},
	{service.ErrForbidden, http.StatusForbidden, "You may not do this", "Your role is viewer. Only an operator can change something. Nothing was changed."},
	{service.ErrBroker, http.StatusServiceUnavailable, "The broker does not answer", "Tasks, recurring tasks and the audit need only the database and still work. What is due is sent when the broker is back. The audit says whether anything was changed."},
	{service.ErrRefused, http.StatusConflict, "The broker refuses it", "The user of this process may lack a permission on the broker; see docs/permissions.md. The audit says whether anything was changed."},
	{service.ErrNoQueue, http.StatusNotFound, "There is no such queue", "The page Dead letters lists the existing ones."},
	{service.ErrUnavailable, http.StatusServiceUnavailable, "Not available now", "The other pages still work. Nothing was changed."},
	{schedule.ErrNoTable, http.StatusServiceUnavailable, "The database has no tables for tasks", "Nothing was changed."},
	{schedule.ErrDenied, http.StatusServiceUnavailable, "The database refuses it", "Nothing was changed."},
	{schedule.ErrUnique, http.StatusConflict, "Another task is pending", "Another task of the unique key is pending. You changed nothing."},
	{schedule.ErrStatus, http.StatusConflict, "Too late", "Somebody else, or the task's handler, was faster. You changed nothing."},
	{schedule.ErrExists, http.StatusConflict, "There is already such a task", "Choose another id."},
	{schedule.ErrTask, http.StatusBadRequest, "This task is not possible", "Nothing was scheduled."},
	{schedule.ErrRecurring, http.StatusBadRequest, "This recurring task is not possible", "Nothing was changed."},
	{schedule.ErrConfig, http.StatusBadRequest, "This is not possible", "Nothing was changed."},
	{inspect.ErrPeek, http.StatusConflict, "The queue was not read", "Nothing was taken from it."},
}

// describe explains an error to the user.
func describe(err error) problemData {
	if fe, ok := errors.AsType[*service.FieldError](err); ok {
		return problemData{http.StatusBadRequest, "This was not understood", fe.Error(), "Go back and correct it. Nothing was changed."}
	}
	for _, k := range kinds {
		if errors.Is(err, k.is) {
			return problemData{k.status, k.heading, err.Error(), k.advice}
		}
	}
	if service.DatabaseAway(err) {
		return problemData{http.StatusServiceUnavailable, "The database does not answer", err.Error(), "Dead letters and layouts need only the broker and still work; what was sent before is still delivered. When the database is back, the audit says whether anything was changed."}
	}
	return problemData{http.StatusServiceUnavailable, "Something went wrong", err.Error(), "The audit says whether anything was changed."}
}

// maxDetail limits the text of an error, which may contain the request.
const maxDetail = 2000

// problem returns the page for an error. The page keeps the navigation.
func (p *Pages) problem(r *request, err error) answer {
	d := describe(err)
	if d.Status >= http.StatusInternalServerError {
		p.o.Logger.Warn("page", zap.String("path", r.URL.Path), zap.Error(err))
	}
	if d.Detail = service.Told(r.who.Identity, err); d.Detail == d.Heading { // do not show the same text twice
		d.Detail = ""
	}
	d.Detail = shown.Shorten(d.Detail, maxDetail)
	return answer{name: "problem", title: d.Heading, status: d.Status, data: d}
}
