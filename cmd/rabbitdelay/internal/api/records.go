package api

import (
	"context"
	"io"

	"github.com/danielgtaylor/huma/v2"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
)

type job struct {
	ID       string `json:"id"`
	Action   string `json:"action"`
	Target   string `json:"target,omitempty"`
	Detail   string `json:"detail,omitempty"`
	Who      string `json:"who"`
	State    string `json:"state"              enum:"running,done,failed,interrupted,stopped"`
	Total    int64  `json:"total"              doc:"The maximum number of tasks or messages that the job changes."`
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
	Error  string `json:"error,omitempty"  doc:"Why the change failed."`
	Result string `json:"result,omitempty" doc:"What the job or command did."`
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
	huma.Register(a.API, op("POST", "/jobs/{id}/stop", "stop-job", tagRecords, "Stop a running job after its current step"),
		func(ctx context.Context, in *jobPath) (*body[job], error) {
			return one(a.svc.StopJob(ctx, who(ctx), in.ID))
		})
	huma.Register(a.API, op("POST", "/jobs/{id}/continue", "continue-job", tagRecords, "Continue a job that failed, or was interrupted or stopped"),
		func(ctx context.Context, in *jobPath) (*body[job], error) {
			return one(a.svc.ContinueJob(ctx, who(ctx), in.ID))
		})
	huma.Register(a.API, op("GET", "/jobs/{id}/messages", "discarded-messages", tagRecords, "Get the messages that a discard removed, if this process has saved them, as JSON lines for rabbitdelay requeue --from"),
		func(ctx context.Context, in *jobPath) (*huma.StreamResponse, error) {
			kept, err := a.svc.Discarded(ctx, who(ctx), in.ID)
			if err != nil {
				return nil, a.problem(err)
			}
			return &huma.StreamResponse{Body: func(to huma.Context) {
				defer func() { _ = kept.Close() }() // the file was only read, so closing it cannot lose data
				to.SetHeader("Content-Type", "application/jsonl")
				to.SetHeader("Content-Disposition", `attachment; filename="discarded-`+in.ID+`.jsonl"`)
				if _, err := io.Copy(to.BodyWriter(), kept); err != nil {
					a.log.Warn("could not send all discarded messages to the client", zap.String("job", in.ID), zap.Error(err))
				}
			}}, nil
		})
	type audit struct {
		Entries []entry `json:"entries"        nullable:"false"`
		Next    string  `json:"next,omitempty" doc:"The value of before for the next page. Absent on the last page."`
	}
	huma.Register(a.API, op("GET", "/audit", "audit", tagRecords, "List who changed what, newest first"),
		func(ctx context.Context, in *struct {
			Most

			Target string `query:"target" doc:"The id of a task (which also selects bulk changes of the task), a queue, or the name of a recurring task."`
			Before string `query:"before" doc:"The value of next from the previous page."`
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
