package page

import (
	"errors"
	"fmt"
	"net/http"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
)

// problemData is why a page is not there.
type problemData struct {
	Status  int
	Heading string
	Detail  string // the error, in its own words
	Advice  string
}

// kinds of problems, by what errors.Is finds.
var kinds = []struct {
	is      error
	status  int
	heading string
	advice  string
}{
	{errNoPage, http.StatusNotFound, "This leads nowhere", "The navigation has all that there are."},
	{schedule.ErrNotFound, http.StatusNotFound, "There is no such task", "Finished tasks are deleted after a while. If it was sent without a task, look among the dead letters."},
	{schedule.ErrNoSchedule, http.StatusNotFound, "There is no such recurring task", "It may have been deleted; the audit says by whom."},
	{service.ErrNoJob, http.StatusNotFound, "There is no such job", "The audit lists all of them."},
	{service.ErrJobState, http.StatusConflict, "This job cannot go on", "Somebody may have been faster. Nothing was changed by you."},
	{service.ErrForbidden, http.StatusForbidden, "You may not do this", "You may look, but changing something needs the role operator. Nothing was changed."},
	{service.ErrBroker, http.StatusServiceUnavailable, "The broker does not answer", "Tasks, recurring tasks and the audit need the database only, and still work. What is due is sent when the broker is back. Whether anything was changed, the audit says."},
	{service.ErrRefused, http.StatusConflict, "The broker refuses it", "The rights of this process's user on the broker, and docs/permissions.md, may say why. Whether anything was changed, the audit says."},
	{service.ErrNoQueue, http.StatusNotFound, "There is no such queue", "Dead letters lists those that there are."},
	{service.ErrUnavailable, http.StatusServiceUnavailable, "Not available now", "Pages that need something else still work. Nothing was changed."},
	{schedule.ErrNoTable, http.StatusServiceUnavailable, "The database has no tables for tasks", "Nothing was changed."},
	{schedule.ErrDenied, http.StatusServiceUnavailable, "The database refuses it", "Nothing was changed."},
	{schedule.ErrStatus, http.StatusConflict, "Too late", "Somebody, or the task's handler, was faster. Nothing was changed by you."},
	{schedule.ErrExists, http.StatusConflict, "There is such a task already", "Choose another id."},
	{schedule.ErrTask, http.StatusBadRequest, "This task is not possible", "Nothing was scheduled."},
	{schedule.ErrRecurring, http.StatusBadRequest, "This recurring task is not possible", "Nothing was changed."},
	{schedule.ErrConfig, http.StatusBadRequest, "This is not possible", "Nothing was changed."},
	{amqpx.ErrPeek, http.StatusConflict, "The queue was not looked into", "Nothing was taken from it."},
}

// describe says what an error means to the reader.
func describe(err error) problemData {
	if fe, ok := errors.AsType[*service.FieldError](err); ok {
		return problemData{http.StatusBadRequest, "This was not understood", fe.Error(), "Go back, and correct it. Nothing was changed."}
	}
	for _, k := range kinds {
		if errors.Is(err, k.is) {
			return problemData{k.status, k.heading, err.Error(), k.advice}
		}
	}
	if service.DatabaseAway(err) {
		return problemData{http.StatusServiceUnavailable, "The database does not answer", err.Error(), "Dead letters and layouts need the broker only, and still work; what was sent before is still delivered. Whether anything was changed, the audit says when the database is back."}
	}
	return problemData{http.StatusServiceUnavailable, "Something went wrong", err.Error(), "Whether anything was changed, the audit says."}
}

// maxDetail bounds what an error says, which may have in it what was asked for.
const maxDetail = 2000

// problem is the page for an error. It keeps the navigation.
func (p *Pages) problem(r *request, err error) answer {
	d := describe(err)
	if d.Status >= http.StatusInternalServerError {
		p.o.Logger.Warn("page", zap.String("path", r.URL.Path), zap.Error(err))
	}
	if d.Detail = service.Told(r.who.Identity, err); d.Detail == d.Heading { // the same in other words helps nobody
		d.Detail = ""
	}
	d.Detail = shown.Shorten(d.Detail, maxDetail)
	return answer{name: "problem", title: d.Heading, status: d.Status, data: d}
}

// Problem answers a request that is refused before it comes to a page, with a page
// that says why, and the navigation of who may look.
func (p *Pages) Problem(w http.ResponseWriter, r *http.Request, status int, why string) {
	q, _ := p.request(w, r) // only the form can be wrong, and nobody needs it
	p.write(w, q, answer{name: "problem", title: http.StatusText(status), status: status, data: problemData{status, http.StatusText(status), why, "Nothing was changed."}})
}

func fieldError(field, format string, args ...any) error {
	return &service.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
}
