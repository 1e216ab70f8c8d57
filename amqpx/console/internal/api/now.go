package api

import (
	"context"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/sse"

	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	broker "github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

type overview struct {
	At       string        `json:"at"                format:"date-time"`
	Problem  string        `json:"problem,omitempty" doc:"what keeps this process from working"`
	Alarms   []string      `json:"alarms"            nullable:"false"`
	Rates    *rates        `json:"rates,omitempty"`
	Horizon  []horizon     `json:"horizon"           nullable:"false"`
	LastHour []ends        `json:"last_hour"         nullable:"false"                           doc:"how tasks ended, by minute; see also /history"`
	Ended    *ended        `json:"ended,omitempty"   doc:"how many tasks ended"`
	Status   broker.Status `json:"status"`
}

type rates struct {
	In  float64 `json:"in"  doc:"messages a second"`
	Out float64 `json:"out"`
}

type ended struct {
	Done         int64 `json:"done"          doc:"in the last hour; up to 10000, like the others"`
	Failed       int64 `json:"failed"        doc:"in the last hour"`
	FailedBefore int64 `json:"failed_before" doc:"in the hour before"`
	FailedDay    int64 `json:"failed_day"    doc:"in the last 24 hours"`
	Retried      int64 `json:"retried"       doc:"an attempt has failed, and they are tried again"`
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
	Retries int64   `json:"retries" doc:"attempts of these tasks after their first"`
	P50     float64 `json:"p50_ms"  doc:"lateness of the done ones"`
	P99     float64 `json:"p99_ms"`
}

func endsOf(list []schedule.Ends) []ends {
	millis := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	out := make([]ends, len(list))
	for i, e := range list {
		out[i] = ends{shown.Instant(e.From), shown.Instant(e.To), e.Done, e.Failed, e.Retries, millis(e.Lateness(0.5)), millis(e.Lateness(0.99))}
	}
	return out
}

func overviewOf(o service.Overview) overview {
	out := overview{
		At: shown.Instant(o.At), Problem: o.Problem, Alarms: append([]string{}, o.Alarms...), Rates: (*rates)(o.Rates), Horizon: []horizon{},
		LastHour: endsOf(o.History.Hour), Ended: (*ended)(o.Ended), Status: o.Status,
	}
	for _, h := range o.Horizon {
		out.Horizon = append(out.Horizon, horizon{h.Name, asjson.Instant(h.Until), h.Count, h.More})
	}
	return out
}

const tagNow = "now"

func (a *api) now() {
	huma.Register(a.API, op("GET", "/overview", "overview", tagNow, "Everything at a glance, at most a few seconds old"),
		func(ctx context.Context, _ *struct{}) (*body[overview], error) {
			o, err := a.svc.Overview(ctx, who(ctx))
			return answer(a, overviewOf(o), err)
		})
	huma.Register(a.API, op("GET", "/status", "status", tagNow, "What waits, where and until when, like rabbitdelay status --json"),
		func(ctx context.Context, _ *struct{}) (*body[broker.Status], error) {
			o, err := a.svc.Overview(ctx, who(ctx))
			return answer(a, o.Status, err)
		})
	type history struct {
		Spans []ends `json:"spans" nullable:"false" doc:"in their order; those without a task are left out"`
	}
	huma.Register(a.API, op("GET", "/history", "history", tagNow, "How tasks ended: by minute of the last hour, by ten minutes of the last day, or by hour of the last week"),
		func(ctx context.Context, in *struct {
			Over string `query:"over" enum:"hour,day,week" default:"hour"`
		},
		) (*body[history], error) {
			o, err := a.svc.Overview(ctx, who(ctx))
			over := map[string][]schedule.Ends{"hour": o.History.Hour, "day": o.History.Day, "week": o.History.Week}
			return answer(a, history{endsOf(over[in.Over])}, err)
		})
	type report struct {
		Findings []doctor.Finding `json:"findings"`
		Unseen   []doctor.Unseen  `json:"unseen"`
		Notes    []string         `json:"notes"`
	}
	huma.Register(a.API, op("GET", "/doctor", "doctor", tagNow, "What is wrong with the broker, and how to fix it"),
		func(ctx context.Context, _ *struct{}) (*body[report], error) {
			o, err := a.svc.Overview(ctx, who(ctx))
			return answer(a, report{o.Status.Findings, o.Status.Unseen, o.Status.Notes}, err)
		})
	sse.Register(a.API, op("GET", "/events", "events", tagNow, "Each new overview, as server-sent events"),
		map[string]any{"overview": overview{}},
		func(ctx context.Context, _ *struct{}, send sse.Sender) {
			_ = a.svc.Watch(ctx, who(ctx), func(o service.Overview) error { return send.Data(overviewOf(o)) }) // the client has gone away
		})
	type plan struct {
		Layouts []broker.Layout `json:"layouts"           doc:"earlier ones on the broker"`
		Plan    string          `json:"plan"              doc:"what would be deleted, and what would stay"`
		Refused string          `json:"refused,omitempty" doc:"why it cannot be done now"`
	}
	huma.Register(a.API, op("GET", "/layouts/retire", "retire-plan", tagNow, "What retiring the layouts of delay.previous would delete"),
		func(ctx context.Context, _ *struct{}) (*body[plan], error) {
			p, err := a.svc.RetirePlan(ctx)
			return answer(a, plan{p.Layouts, p.Text, p.Refused}, err)
		})
	huma.Register(a.API, op("POST", "/layouts/retire", "retire", tagNow, "Delete the layouts of delay.previous, which have drained"),
		func(ctx context.Context, _ *struct{}) (*body[job], error) {
			j, err := a.svc.Retire(ctx, who(ctx))
			return answer(a, jobOf(j), err)
		})
}
