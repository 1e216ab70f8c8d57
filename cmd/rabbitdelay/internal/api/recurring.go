package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ahead is the number of upcoming occurrences in a response.
const ahead = 10

func recurringOf(r schedule.Recurring) asjson.Recurring {
	return asjson.RecurringOf(r, time.Now(), ahead)
}

const tagRecurring = "recurring tasks"

func (a *api) recurring() {
	type list struct {
		Recurring []asjson.Recurring `json:"recurring" nullable:"false"`
	}
	huma.Register(a.API, op("GET", "/recurring", "list-recurring", tagRecurring, "List recurring tasks with their next ten occurrences"),
		func(ctx context.Context, _ *struct{}) (*body[list], error) {
			all, err := a.svc.Recurring(ctx, who(ctx))
			out := list{Recurring: []asjson.Recurring{}}
			for _, r := range all {
				out.Recurring = append(out.Recurring, recurringOf(r))
			}
			return answer(a, out, err)
		})
	one := func(ctx context.Context, name string, err error) (*body[asjson.Recurring], error) {
		if err != nil {
			return nil, a.problem(err)
		}
		r, err := a.svc.RecurringTask(ctx, who(ctx), name)
		return answer(a, recurringOf(r), err)
	}
	huma.Register(a.API, op("GET", "/recurring/{name}", "get-recurring", tagRecurring, "Get one recurring task"),
		func(ctx context.Context, in *RecurringPath) (*body[asjson.Recurring], error) {
			return one(ctx, in.Name, nil)
		})
	huma.Register(a.API, op("PUT", "/recurring/{name}", "put-recurring", tagRecurring, "Create or change the recurring task with this name", large),
		func(ctx context.Context, in *struct {
			RecurringPath

			Body asjson.RecurringSpec
		},
		) (*body[asjson.Recurring], error) {
			var text reader
			n := in.Body
			r := schedule.Recurring{
				Name: in.Name, Cron: n.Cron, TimeZone: n.TimeZone, Every: text.duration("body.every", n.Every), Jitter: text.duration("body.jitter", n.Jitter),
				Start: text.instant("body.start", n.Start), End: text.instant("body.end", n.End),
				Misfire: schedule.Misfire(n.Misfire), MisfireLimit: n.MisfireLimit, Overlap: schedule.Overlap(n.Overlap), Task: n.Content.Task(text.at("body")),
			}
			if text.err != nil {
				return nil, text.err
			}
			_, err := a.svc.PutRecurring(ctx, who(ctx), r)
			return one(ctx, in.Name, err)
		})
	huma.Register(a.API, op("POST", "/recurring/{name}/pause", "pause-recurring", tagRecurring, "Pause a recurring task, and withdraw its tasks that are not due yet"),
		func(ctx context.Context, in *RecurringPath) (*body[asjson.Recurring], error) {
			return one(ctx, in.Name, a.svc.PauseRecurring(ctx, who(ctx), in.Name))
		})
	huma.Register(a.API, op("POST", "/recurring/{name}/resume", "resume-recurring", tagRecurring, "Resume a recurring task from now on"),
		func(ctx context.Context, in *RecurringPath) (*body[asjson.Recurring], error) {
			return one(ctx, in.Name, a.svc.ResumeRecurring(ctx, who(ctx), in.Name))
		})
	type extra struct {
		ID string `json:"id" doc:"The id of the new task."`
	}
	huma.Register(a.API, op("POST", "/recurring/{name}/run", "run-recurring", tagRecurring, "Schedule one more occurrence, due now"),
		func(ctx context.Context, in *RecurringPath) (*body[extra], error) {
			id, err := a.svc.RunRecurring(ctx, who(ctx), in.Name)
			return answer(a, extra{id}, err)
		})
	huma.Register(a.API, op("DELETE", "/recurring/{name}", "delete-recurring", tagRecurring, "Delete a recurring task, and withdraw its tasks that are not due yet", func(o *huma.Operation) { o.DefaultStatus = http.StatusNoContent }),
		func(ctx context.Context, in *RecurringPath) (*struct{}, error) {
			if err := a.svc.DeleteRecurring(ctx, who(ctx), in.Name); err != nil {
				return nil, a.problem(err)
			}
			return nil, nil
		})
}

// Destination is the destination in a request.
type Destination struct {
	Queue    string `json:"queue,omitempty"    maxLength:"255"`
	Exchange string `json:"exchange,omitempty" maxLength:"255" doc:"An exchange with all its routing keys, instead of a queue."`
}

func (d Destination) topology() topology.Destination {
	return topology.Destination{Queue: d.Queue, Exchange: d.Exchange}
}

const tagDestinations = "destinations"

func (a *api) held() {
	type destinations struct {
		Destinations []asjson.Held `json:"destinations" nullable:"false"`
	}
	huma.Register(a.API, op("GET", "/destinations", "list-held", tagDestinations, "List destinations that are paused or have a rate limit"),
		func(ctx context.Context, _ *struct{}) (*body[destinations], error) {
			found, err := a.svc.Destinations(ctx)
			out := destinations{Destinations: []asjson.Held{}}
			for _, d := range found {
				out.Destinations = append(out.Destinations, asjson.HeldOf(d))
			}
			return answer(a, out, err)
		})
	one := func(ctx context.Context, d topology.Destination, do func() error) (*body[asjson.Held], error) {
		before, err := a.svc.Destination(ctx, d)
		if err == nil {
			err = do()
		}
		if err != nil {
			return nil, a.problem(err)
		}
		state, err := a.svc.Destination(ctx, d)
		held := asjson.HeldOf(state)
		if err == nil && (state.String() != "" || before.String() == "") {
			held.Note, err = a.svc.UnknownDestination(ctx, d)
		}
		return answer(a, held, err)
	}
	huma.Register(a.API, op("POST", "/destinations/pause", "pause-destination", tagDestinations, "Pause a destination, and keep its tasks in the table"),
		func(ctx context.Context, in *struct{ Body Destination }) (*body[asjson.Held], error) {
			d := in.Body.topology()
			return one(ctx, d, func() error { return a.svc.PauseDestination(ctx, who(ctx), d) })
		})
	type rateLimit struct {
		Destination

		PerSecond float64 `json:"per_second"      minimum:"0" maximum:"100000"                                                                                                  doc:"Tasks a second, such as 50 or 0.1. 0 means no rate limit."`
		Burst     int     `json:"burst,omitempty" minimum:"0" doc:"How many tasks may be sent together after an idle period. The default is a tenth of per_second, at least 1."`
	}
	huma.Register(a.API, op("POST", "/destinations/rate-limit", "set-rate-limit", tagDestinations, "Limit the task rate of a destination across all relays"),
		func(ctx context.Context, in *struct{ Body rateLimit }) (*body[asjson.Held], error) {
			d := in.Body.topology()
			return one(ctx, d, func() error {
				return a.svc.SetRateLimit(ctx, who(ctx), schedule.RateLimit{Queue: d.Queue, Exchange: d.Exchange, PerSecond: in.Body.PerSecond, Burst: in.Body.Burst})
			})
		})
	type resumed struct {
		Destination

		Spread string `json:"spread,omitempty" doc:"Sends the tasks that came due during the pause over this duration, such as 30m. By default they are sent immediately."`
	}
	huma.Register(a.API, op("POST", "/destinations/resume", "resume-destination", tagDestinations, "End the pause of a destination"),
		func(ctx context.Context, in *struct{ Body resumed }) (*body[asjson.Held], error) {
			var text reader
			spread := text.duration("body.spread", in.Body.Spread)
			if text.err != nil {
				return nil, text.err
			}
			d := in.Body.topology()
			return one(ctx, d, func() error { return a.svc.ResumeDestination(ctx, who(ctx), d, spread) })
		})
}
