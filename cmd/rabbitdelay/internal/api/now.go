package api

import (
	"context"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/sse"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	broker "github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

type overview struct {
	At       string        `json:"at"                format:"date-time"`
	Problem  string        `json:"problem,omitempty" doc:"What prevents this process from working."`
	Alarms   []string      `json:"alarms"            nullable:"true"                                                                   doc:"The broker's alarms. null if they are unknown."`
	Rates    *rates        `json:"rates"             doc:"The message rates of the virtual host. null if they are unknown."`
	Horizon  []horizon     `json:"horizon"           nullable:"true"                                                                   doc:"The pending tasks by due time. null if the database was not read."`
	LastHour []ends        `json:"last_hour"         nullable:"true"                                                                   doc:"How tasks ended in the last hour, per minute. See also /history. null if the database was not read."`
	Ended    *ended        `json:"ended"             doc:"The number of tasks that ended recently. null if the database was not read."`
	Status   broker.Status `json:"status"`
}

type rates struct {
	In  float64 `json:"in"  doc:"Messages a second."`
	Out float64 `json:"out"`
}

type ended struct {
	Done         int64 `json:"done"          doc:"Tasks done in the last hour, counted up to 10000, as in the other fields."`
	Failed       int64 `json:"failed"        doc:"Tasks that failed in the last hour."`
	FailedBefore int64 `json:"failed_before" doc:"Tasks that failed in the hour before the last one."`
	FailedDay    int64 `json:"failed_day"    doc:"Tasks that failed in the last 24 hours."`
	Retried      int64 `json:"retried"       doc:"Pending tasks that had a failed attempt and will be tried again."`
}

type horizon struct {
	Name  string `json:"name"`
	Until string `json:"until,omitempty" format:"date-time"`
	Count int64  `json:"count"`
	More  bool   `json:"more"`
}

// ends counts the tasks that ended within a minute, ten minutes or an hour.
type ends struct {
	From    string  `json:"from"    format:"date-time"`
	To      string  `json:"to"      format:"date-time"`
	Done    int64   `json:"done"`
	Failed  int64   `json:"failed"`
	Retries int64   `json:"retries" doc:"The number of attempts of these tasks after their first."`
	P50     float64 `json:"p50_ms"  doc:"The median lateness of the tasks that were done."`
	P99     float64 `json:"p99_ms"`
}

func endsOf(list []taskview.CompletionStats) []ends {
	millis := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	if list == nil {
		return nil // the history was not read
	}
	out := make([]ends, len(list))
	for i, e := range list {
		out[i] = ends{shown.Instant(e.From), shown.Instant(e.To), e.Done, e.Failed, e.Retries, millis(e.Lateness(0.5)), millis(e.Lateness(0.99))}
	}
	return out
}

func overviewOf(o service.Overview) overview {
	out := overview{
		At: shown.Instant(o.At), Problem: o.Problem, Alarms: o.Alarms, Rates: (*rates)(o.Rates),
		LastHour: endsOf(o.History.Hour), Ended: (*ended)(o.Ended), Status: o.Status,
	}
	if o.Horizon != nil {
		out.Horizon = []horizon{}
	}
	for _, h := range o.Horizon {
		out.Horizon = append(out.Horizon, horizon{h.Name, asjson.Instant(h.Until), h.Count, h.More})
	}
	return out
}

const tagNow = "now"

func (a *api) now() {
	huma.Register(a.API, op("GET", "/overview", "overview", tagNow, "Get the overview that the first page of the console shows, usually at most a few seconds old"),
		func(ctx context.Context, _ *struct{}) (*body[overview], error) {
			o, err := a.svc.Overview(ctx, who(ctx))
			return answer(a, overviewOf(o), err)
		})
	huma.Register(a.API, op("GET", "/status", "status", tagNow, "Get how many messages are waiting, and where, like rabbitdelay status --json"),
		func(ctx context.Context, _ *struct{}) (*body[broker.Status], error) {
			o, err := a.svc.Overview(ctx, who(ctx))
			return answer(a, o.Status, err)
		})
	type history struct {
		Spans []ends `json:"spans" nullable:"true" doc:"The intervals in order of time, without those in which no task ended. null if the database was not read."`
	}
	huma.Register(a.API, op("GET", "/history", "history", tagNow, "Get how tasks ended, per minute of the last hour, ten minutes of the last day, or hour of the last week"),
		func(ctx context.Context, in *struct {
			Over string `query:"over" enum:"hour,day,week" default:"hour"`
		},
		) (*body[history], error) {
			o, err := a.svc.Overview(ctx, who(ctx))
			over := map[string][]taskview.CompletionStats{"hour": o.History.Hour, "day": o.History.Day, "week": o.History.Week}
			return answer(a, history{endsOf(over[in.Over])}, err)
		})
	type report struct {
		Findings  []doctor.Finding   `json:"findings"`
		Unchecked []doctor.Unchecked `json:"unchecked"`
		Notes     []string           `json:"notes"`
	}
	huma.Register(a.API, op("GET", "/doctor", "doctor", tagNow, "Get the problems of the broker, and how to fix them"),
		func(ctx context.Context, _ *struct{}) (*body[report], error) {
			o, err := a.svc.Overview(ctx, who(ctx))
			return answer(a, report{o.Status.Findings, o.Status.Unchecked, o.Status.Notes}, err)
		})
	sse.Register(a.API, op("GET", "/events", "events", tagNow, "Stream each new overview as server-sent events"),
		map[string]any{"overview": overview{}},
		func(ctx context.Context, _ *struct{}, send sse.Sender) {
			_ = a.svc.Watch(ctx, who(ctx), func(o service.Overview) error { return send.Data(overviewOf(o)) }) // the client has gone away
		})
	type plan struct {
		Layouts []broker.Layout `json:"layouts"           doc:"The earlier layouts on the broker."`
		Plan    string          `json:"plan"              doc:"What would be deleted, and what would stay."`
		Refused string          `json:"refused,omitempty" doc:"Why the layouts cannot be retired now."`
	}
	huma.Register(a.API, op("GET", "/layouts/retire", "retire-plan", tagNow, "List what retiring the layouts in delay.previous would delete"),
		func(ctx context.Context, _ *struct{}) (*body[plan], error) {
			p, err := a.svc.RetirePlan(ctx)
			return answer(a, plan{p.Layouts, p.Text, p.Refused}, err)
		})
	huma.Register(a.API, op("POST", "/layouts/retire", "retire", tagNow, "Delete the layouts of delay.previous that have drained"),
		func(ctx context.Context, _ *struct{}) (*body[job], error) {
			j, err := a.svc.Retire(ctx, who(ctx))
			return answer(a, jobOf(j), err)
		})
}
