package api

import (
	"context"
	"io"

	"github.com/danielgtaylor/huma/v2"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
)

type job struct {
	ID       string `json:"id"`
	Action   string `json:"action"`
	Target   string `json:"target,omitempty"`
	Detail   string `json:"detail,omitempty"`
	Who      string `json:"who"`
	State    string `json:"state"              enum:"running,done,failed,interrupted,stopped"`
	Total    int64  `json:"total"              doc:"the most that it changes"`
	Done     int64  `json:"done"`
	Result   string `json:"result,omitempty"`
	Error    string `json:"error,omitempty"`
	Started  string `json:"started"            format:"date-time"`
	Finished string `json:"finished,omitempty" format:"date-time"`
}

func jobOf(j service.Job) job {
	return job{
		ID: j.ID, Action: j.Entry.Action, Target: j.Entry.Target, Detail: j.Entry.Detail, Who: j.Entry.Who, State: string(j.State),
		Total: j.Total, Done: j.Done, Result: j.Result, Error: j.Entry.Error, Started: shown.Instant(j.Entry.At), Finished: asjson.Instant(j.Finished),
	}
}

type entry struct {
	ID     string `json:"id"`
	At     string `json:"at"               format:"date-time"`
	Who    string `json:"who"`
	Action string `json:"action"`
	Target string `json:"target,omitempty"`
	Detail string `json:"detail,omitempty"`
	Error  string `json:"error,omitempty"  doc:"why it was not done"`
	Result string `json:"result,omitempty" doc:"what a job or a command has done"`
}

func entriesOf(list []service.Entry) []entry {
	out := []entry{}
	for _, e := range list {
		out = append(out, entry{e.ID, shown.Instant(e.At), e.Who, e.Action, e.Target, e.Detail, e.Error, e.Result})
	}
	return out
}

// Most is the query parameter that limits the length of a list.
type Most struct {
	Limit int `query:"limit" default:"50" minimum:"1" maximum:"500"`
}

const tagRecords = "jobs and audit"

func (a *api) records() {
	type jobs struct {
		Jobs []job `json:"jobs" nullable:"false"`
	}
	type jobPath struct {
		ID string `path:"id" minLength:"1" maxLength:"36"`
	}
	huma.Register(a.API, op("GET", "/jobs", "list-jobs", tagRecords, "List the newest jobs"),
		func(ctx context.Context, in *Most) (*body[jobs], error) {
			list, err := a.svc.Jobs(ctx, who(ctx), in.Limit)
			out := jobs{Jobs: []job{}}
			for _, j := range list {
				out.Jobs = append(out.Jobs, jobOf(j))
			}
			return answer(a, out, err)
		})
	one := func(j service.Job, err error) (*body[job], error) { return answer(a, jobOf(j), err) }
	huma.Register(a.API, op("GET", "/jobs/{id}", "get-job", tagRecords, "Get a job"),
		func(ctx context.Context, in *jobPath) (*body[job], error) {
			return one(a.svc.Job(ctx, who(ctx), in.ID))
		})
	huma.Register(a.API, op("POST", "/jobs/{id}/stop", "stop-job", tagRecords, "Stop a running job after its present step"),
		func(ctx context.Context, in *jobPath) (*body[job], error) {
			return one(a.svc.StopJob(ctx, who(ctx), in.ID))
		})
	huma.Register(a.API, op("POST", "/jobs/{id}/continue", "continue-job", tagRecords, "Continue a job that failed, or was interrupted or stopped"),
		func(ctx context.Context, in *jobPath) (*body[job], error) {
			return one(a.svc.ContinueJob(ctx, who(ctx), in.ID))
		})
	huma.Register(a.API, op("GET", "/jobs/{id}/messages", "discarded-messages", tagRecords, "Get the messages that a discard has removed, if this process keeps them: JSON lines, for rabbitdelay requeue --from"),
		func(ctx context.Context, in *jobPath) (*huma.StreamResponse, error) {
			kept, err := a.svc.Discarded(ctx, who(ctx), in.ID)
			if err != nil {
				return nil, a.problem(err)
			}
			return &huma.StreamResponse{Body: func(to huma.Context) {
				defer func() { _ = kept.Close() }() // closing a file that was only read
				to.SetHeader("Content-Type", "application/jsonl")
				to.SetHeader("Content-Disposition", `attachment; filename="discarded-`+in.ID+`.jsonl"`)
				if _, err := io.Copy(to.BodyWriter(), kept); err != nil {
					a.log.Warn("discarded messages were not sent in full", zap.String("job", in.ID), zap.Error(err))
				}
			}}, nil
		})
	type audit struct {
		Entries []entry `json:"entries"        nullable:"false"`
		Next    string  `json:"next,omitempty" doc:"before for the next page; none at the end"`
	}
	huma.Register(a.API, op("GET", "/audit", "audit", tagRecords, "Who changed what, the newest first"),
		func(ctx context.Context, in *struct {
			Most

			Target string `query:"target" doc:"a task's id (with the bulk changes that changed it), a queue, or a name"`
			Before string `query:"before" doc:"next of the previous page"`
		},
		) (*body[audit], error) {
			list, err := a.svc.Audit(ctx, who(ctx), in.Target, in.Before, in.Limit)
			out := audit{Entries: entriesOf(list)}
			if len(list) == in.Limit {
				out.Next = list[len(list)-1].ID
			}
			return answer(a, out, err)
		})
}
