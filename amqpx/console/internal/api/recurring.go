package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// ahead is the number of next instants in an answer.
const ahead = 10

func recurringOf(r schedule.Recurring) asjson.Recurring {
	return asjson.RecurringOf(r, time.Now(), ahead)
}

// readRecurring reads a recurring task.
func readRecurring(name string, n asjson.RecurringSpec) (r schedule.Recurring, err error) {
	r = schedule.Recurring{
		Name: name, Cron: n.Cron, TimeZone: n.TimeZone, Misfire: schedule.Misfire(n.Misfire), MisfireLimit: n.MisfireLimit, Overlap: schedule.Overlap(n.Overlap),
	}
	if r.Every, err = duration("body.every", n.Every); err != nil {
		return r, err
	}
	if r.Jitter, err = duration("body.jitter", n.Jitter); err != nil {
		return r, err
	}
	if r.Start, _, err = instant("body.start", n.Start); err != nil {
		return r, err
	}
	if r.End, _, err = instant("body.end", n.End); err != nil {
		return r, err
	}
	r.Task, err = taskOf("body", n.Content)
	return r, err
}

const tagRecurring = "recurring tasks"

func (a *api) recurring() {
	type list struct {
		Recurring []asjson.Recurring `json:"recurring" nullable:"false"`
	}
	huma.Register(a.API, op("GET", "/recurring", "list-recurring", tagRecurring, "List recurring tasks with their next ten instants"),
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
	huma.Register(a.API, op("PUT", "/recurring/{name}", "put-recurring", tagRecurring, "Create a recurring task, or change the one with the name", large(maxBody)),
		func(ctx context.Context, in *struct {
			RecurringPath

			Body asjson.RecurringSpec
		},
		) (*body[asjson.Recurring], error) {
			r, err := readRecurring(in.Name, in.Body)
			if err != nil {
				return nil, err
			}
			_, err = a.svc.PutRecurring(ctx, who(ctx), r)
			return one(ctx, in.Name, err)
		})
	huma.Register(a.API, op("POST", "/recurring/{name}/pause", "pause-recurring", tagRecurring, "Withdraw its tasks that are not due yet, and make no more"),
		func(ctx context.Context, in *RecurringPath) (*body[asjson.Recurring], error) {
			return one(ctx, in.Name, a.svc.PauseRecurring(ctx, who(ctx), in.Name))
		})
	huma.Register(a.API, op("POST", "/recurring/{name}/resume", "resume-recurring", tagRecurring, "Make tasks again from now on"),
		func(ctx context.Context, in *RecurringPath) (*body[asjson.Recurring], error) {
			return one(ctx, in.Name, a.svc.ResumeRecurring(ctx, who(ctx), in.Name))
		})
	type fired struct {
		ID string `json:"id" doc:"of the new task"`
	}
	huma.Register(a.API, op("POST", "/recurring/{name}/fire", "fire-recurring", tagRecurring, "Schedule one more occurrence, due at once"),
		func(ctx context.Context, in *RecurringPath) (*body[fired], error) {
			id, err := a.svc.FireRecurring(ctx, who(ctx), in.Name)
			return answer(a, fired{id}, err)
		})
	huma.Register(a.API, op("DELETE", "/recurring/{name}", "delete-recurring", tagRecurring, "Withdraw its tasks that are not due yet, and delete it", status(http.StatusNoContent)),
		func(ctx context.Context, in *RecurringPath) (*struct{}, error) {
			if err := a.svc.DeleteRecurring(ctx, who(ctx), in.Name); err != nil {
				return nil, a.problem(err)
			}
			return nil, nil
		})
}
