package api

import (
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Times and durations are parsed in all accepted formats. Errors contain the value, and only the first error is kept.
func TestReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in the bubble, it is midnight
		for text, want := range map[string]string{
			"":                             "0001-01-01T00:00:00Z",
			"now":                          "2000-01-01T00:00:00Z",
			"90m":                          "2000-01-01T01:30:00Z",
			"+1d":                          "2000-01-02T00:00:00Z",
			"-7d":                          "1999-12-25T00:00:00Z",
			"2026-12-24T08:00:00+02:00":    "2026-12-24T06:00:00Z",
			"tomorrow 08:00 Europe/Berlin": "2000-01-02T07:00:00Z",
			"soon":                         `"soon" is not a time`,
			"--1h":                         "is not a time",
			"+-1h":                         "is not a time",
		} {
			var r reader
			got := r.instant("body.due", text).UTC().Format(time.RFC3339)
			if r.err != nil {
				got = r.err.Error()
			}
			if !strings.Contains(got, want) {
				t.Errorf("the time %q: got %s, want %s", text, got, want)
			}
		}
	})
	for text, want := range map[string]string{"2h": "2h0m0s", "-1d": "-24h0m0s", "+90s": "1m30s", "": "is not a duration",
		"1": "is not a duration", "--1h": "is not a duration"} {
		var r reader
		got := r.shift("body.by", text).String()
		if r.err != nil {
			got = r.err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("the shift %q: got %s, want %s", text, got, want)
		}
	}
	for text, want := range map[string]string{"": "0s", "1d": "24h0m0s", "never": "never", "-1h": "-1h"} {
		var r reader
		got := r.duration("body.spread", text).String()
		if r.err != nil {
			got = r.err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("the duration %q: got %s, want %s", text, got, want)
		}
	}
	var r reader
	r.shift("first", "x")
	r.shift("second", "y")
	if e, ok := errors.AsType[*huma.ErrorModel](r.err); !ok || e.Errors[0].Location != "first" {
		t.Errorf(`got error %v, want a *huma.ErrorModel whose first error has the location "first"`, r.err)
	}
}

// A long text is shortened at a character boundary.
func TestShortened(t *testing.T) {
	for text, want := range map[string]string{"": "", "abc": "abc", "abcd": "abc…", "aüü": "aü…", "üü": "ü…"} {
		if got := shortened(text, 3); got != want {
			t.Errorf("shortened(%q, 3) = %q, want %q", text, got, want)
		}
	}
}

// An id is taken from the path or, if the path has - in its place, from the query.
func TestResolve(t *testing.T) {
	for _, x := range []struct{ path, query, want string }{
		{"a", "", "a"}, {"-", "a/b", "a/b"}, {"a", "a", "a"}, {"-", "-", "-"}, {"-", "", "-"}, {"a", "b", "query.id"},
	} {
		path := x.path
		got := path
		if errs := resolve(&path, x.query, "id"); len(errs) == 0 {
			got = path
		} else if d, ok := errors.AsType[*huma.ErrorDetail](errs[0]); ok {
			got = d.Location
		}
		if got != x.want {
			t.Errorf("%+v: got %s, want %s", x, got, x.want)
		}
	}
	task, recurring, queue := TaskPath{"-", "a"}, RecurringPath{"-", "b"}, QueuePath{"-", "c"}
	for _, err := range append(append(task.Resolve(nil), recurring.Resolve(nil)...), queue.Resolve(nil)...) {
		t.Errorf("resolving a path with a hyphen: got %v, want no error", err)
	}
	if got := task.ID + recurring.Name + queue.Queue; got != "abc" {
		t.Errorf(`the resolved ids are %s, want "abc"`, got)
	}
}

// Each field is reported with its location in requests.
func TestPlace(t *testing.T) {
	for field, want := range map[string]string{
		"ID": "id", "Name": "name", "Status": "body.filter.status", "OnConflict": "body.unique.on_conflict",
		"MaxWait": "body.unique.max_wait", "Cooldown": "body.unique.cooldown",
		"UniqueKey": "body.unique.key", "DeliverAt": "body.due", "CorrelationID": "body.correlation_id", "To": "body.to_queue",
		"RoutingKey": "body.routing_key", "Queue": "body.queue",
	} {
		if got := place(field); got != want {
			t.Errorf("place(%q) = %s, want %s", field, got, want)
		}
	}
}

// Each error is returned with the right code, and without the errors of drivers.
func TestProblems(t *testing.T) {
	a := &api{log: zap.NewNop()}
	secret := errors.New("dial tcp 10.9.8.7: refused")
	for name, x := range map[string]struct {
		err  error
		code int
	}{
		"made here":           {wrong("body", "x"), http.StatusUnprocessableEntity},
		"a field":             {&change.FieldError{Field: "body.by", Reason: "x"}, http.StatusUnprocessableEntity},
		"a task's field":      {&schedule.TaskError{Field: "Queue", Reason: "x"}, http.StatusUnprocessableEntity},
		"a recurring one's":   {&schedule.RecurringError{Field: "Cron", Reason: "x"}, http.StatusUnprocessableEntity},
		"a topology's":        {&topology.FieldError{Field: "PerSecond", Want: "x"}, http.StatusUnprocessableEntity},
		"no queue":            {fmt.Errorf("%w: %w", service.ErrNoQueue, secret), http.StatusNotFound},
		"refused":             {fmt.Errorf("%w: %w", service.ErrRefused, secret), http.StatusConflict},
		"not looked into":     {fmt.Errorf("%w: %w", inspect.ErrPeek, secret), http.StatusConflict},
		"forbidden":           {service.ErrForbidden, http.StatusForbidden},
		"no task":             {schedule.ErrNotFound, http.StatusNotFound},
		"no recurring task":   {schedule.ErrNoSchedule, http.StatusNotFound},
		"no job":              {service.ErrNoJob, http.StatusNotFound},
		"no messages":         {service.ErrNoMessages, http.StatusNotFound},
		"a different task":    {schedule.ErrExists, http.StatusConflict},
		"a status":            {schedule.ErrStatus, http.StatusConflict},
		"a unique key":        {schedule.ErrUnique, http.StatusConflict},
		"the state of a job":  {service.ErrJobState, http.StatusConflict},
		"a wrong request":     {schedule.ErrConfig, http.StatusUnprocessableEntity},
		"the broker":          {fmt.Errorf("%w: %w", service.ErrBroker, secret), http.StatusServiceUnavailable},
		"the database":        {sql.ErrConnDone, http.StatusServiceUnavailable},
		"anything else":       {secret, http.StatusServiceUnavailable},
		"nothing of its kind": {service.ErrUnavailable, http.StatusServiceUnavailable},
	} {
		got, ok := errors.AsType[huma.StatusError](a.problem(x.err))
		if !ok {
			t.Errorf("%s: got an error without a status code, want one with a code", name)
			continue
		}
		if got.GetStatus() != x.code {
			t.Errorf("%s: got %d, want %d", name, got.GetStatus(), x.code)
		}
		if strings.Contains(got.Error(), "10.9.8.7") {
			t.Errorf(`%s: got %v, want no "10.9.8.7" in it`, name, got)
		}
	}
}
