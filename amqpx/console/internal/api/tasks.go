package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// NewTask is a task in requests.
type NewTask struct {
	Due          string            `json:"due"                      minLength:"1"                                               doc:"an instant: 2026-12-24T08:00:00Z, \"tomorrow 08:00 Europe/Berlin\", now, or from now such as 90m"`
	Queue        string            `json:"queue,omitempty"          doc:"the destination: a queue, or exchange and routing_key"`
	Exchange     string            `json:"exchange,omitempty"`
	RoutingKey   string            `json:"routing_key,omitempty"`
	Body         string            `json:"body,omitempty"           doc:"text"`
	BodyBase64   string            `json:"body_base64,omitempty"    doc:"instead of body"`
	ContentType  string            `json:"content_type,omitempty"`
	Type         string            `json:"type,omitempty"`
	Correlation  string            `json:"correlation_id,omitempty"`
	Priority     int               `json:"priority,omitempty"       minimum:"0"                                                 maximum:"255"`
	ExpiresAfter string            `json:"expires_after,omitempty"  doc:"how long after due its effect is worth having"`
	Headers      map[string]string `json:"headers,omitempty"`
	Tags         []string          `json:"tags,omitempty"           maxItems:"20"`
}

type newTaskWithID struct {
	ID string `json:"id" minLength:"1" maxLength:"255"`
	NewTask
}

func (n NewTask) task(at, id string) (service.NewTask, error) {
	t := schedule.Task{
		ID: id, Queue: n.Queue, Exchange: n.Exchange, RoutingKey: n.RoutingKey, ContentType: n.ContentType, Type: n.Type,
		CorrelationID: n.Correlation, Priority: uint8(n.Priority), Headers: n.Headers, Tags: n.Tags, // the schema bounds it
	}
	out := service.NewTask{}
	var err error
	if t.DeliverAt, out.AnyDue, err = instant(at+".due", n.Due); err != nil {
		return out, err
	}
	if t.ExpiresAfter, err = duration(at+".expires_after", n.ExpiresAfter); err != nil {
		return out, err
	}
	t.Body, err = bytesOf(n.Body, n.BodyBase64)
	out.Task = t
	return out, err
}

// Filter is in the query of lists.
type Filter struct {
	Queue       string `query:"queue"`
	Exchange    string `query:"exchange"`
	Status      string `query:"status"    enum:"pending,running,done,cancelled,expired,failed"`
	DueFrom     string `query:"due_from"  doc:"due at or after this instant"`
	DueTo       string `query:"due_to"    doc:"due before this instant"`
	IDPrefix    string `query:"id_prefix"`
	Tag         string `query:"tag"`
	HeaderMatch string `query:"header"    doc:"name=value, for operators"`
}

func (f Filter) read(at string) (out schedule.Filter, err error) {
	out = schedule.Filter{Queue: f.Queue, Exchange: f.Exchange, Status: schedule.Status(f.Status), IDPrefix: f.IDPrefix, Tag: f.Tag}
	if out.DueFrom, _, err = instant(at+".due_from", f.DueFrom); err != nil {
		return out, err
	}
	if out.DueTo, _, err = instant(at+".due_to", f.DueTo); err != nil {
		return out, err
	}
	if !out.DueFrom.IsZero() && !out.DueTo.IsZero() && !out.DueFrom.Before(out.DueTo) {
		return out, wrong(at+".due_to", "expected an instant after due_from")
	}
	if f.HeaderMatch != "" {
		var ok bool
		if out.Header, out.HeaderValue, ok = strings.Cut(f.HeaderMatch, "="); !ok || out.Header == "" {
			return out, wrong(at+".header", quoted(f.HeaderMatch)+"; expected name=value")
		}
	}
	return out, nil
}

type tasksPage struct {
	Tasks []asjson.Task `json:"tasks"          nullable:"false"`
	Next  string        `json:"next,omitempty" doc:"the cursor of the next page; none at the end"`
}

type taskDetail struct {
	Task    asjson.Task     `json:"task"`
	Why     string          `json:"why"                doc:"what has become of it, or why nothing has"`
	TraceID string          `json:"trace_id,omitempty"`
	Effects []asjson.Effect `json:"effects"            nullable:"false"`
	Records []asjson.Record `json:"records"            nullable:"false"`
	Audit   []entry         `json:"audit"              nullable:"false"`
}

type scheduled struct {
	ID      string `json:"id"`
	Created bool   `json:"created"         doc:"false: a task that says the same was there"`
	Error   string `json:"error,omitempty"`
}

type outcomes struct {
	Created int         `json:"created"`
	Failed  int         `json:"failed"`
	Tasks   []scheduled `json:"tasks"   nullable:"false"`
}

const tagTasks = "tasks"

func (a *api) tasks() {
	huma.Register(a.API, op("GET", "/tasks", "list-tasks", tagTasks, "List tasks in the order of their due instants, without bodies"),
		func(ctx context.Context, in *struct {
			Filter

			Cursor string `query:"cursor" doc:"next of the page before"`
			Limit  int    `query:"limit"  default:"100"                 minimum:"1" maximum:"1000"`
		},
		) (*body[tasksPage], error) {
			f, err := in.Filter.read("query")
			if err != nil {
				return nil, err
			}
			if in.Cursor != "" {
				if f.After, err = schedule.ParseCursor(in.Cursor); err != nil {
					return nil, wrong("query.cursor", err.Error())
				}
			}
			f.Limit = in.Limit
			page, err := a.svc.Tasks(ctx, who(ctx), f)
			return answer(a, tasksPage{asjson.TasksOf(page.Tasks), page.Next.String()}, err)
		})
	huma.Register(a.API, op("GET", "/tasks/{id}", "get-task", tagTasks, "Get one task and what has become of it"),
		func(ctx context.Context, in *TaskPath) (*body[taskDetail], error) {
			d, err := a.svc.Task(ctx, who(ctx), in.ID)
			return answer(a, taskDetail{asjson.TaskOf(d.Task), d.Why, d.TraceID, asjson.EffectsOf(d.Effects), asjson.RecordsOf(d.Records), entriesOf(d.Audit)}, err)
		})
	huma.Register(a.API, op("PUT", "/tasks/{id}", "schedule-task", tagTasks, "Schedule a task, once: a task of the id that says the same is no error", large(maxBody)), a.put)
	put := a.OpenAPI().Paths[base+"/tasks/{id}"].Put
	put.Responses["201"] = &huma.Response{Description: "Created", Content: put.Responses["200"].Content}
	huma.Register(a.API, op("POST", "/tasks", "schedule-tasks", tagTasks, "Schedule up to 1000 tasks; each has a result of its own", large(maxBody)), a.batch)
	type movement struct {
		To string `json:"to,omitempty" doc:"an instant, such as 2026-12-24T08:00:00Z or \"tomorrow 08:00 Europe/Berlin\""`
		By string `json:"by,omitempty" doc:"instead of to: a duration, such as 2h or -1d"`
	}
	a.change("cancel", "End a pending task without its effect", func(ctx context.Context, id string) error { return a.svc.Cancel(ctx, who(ctx), id) })
	a.change("fire", "Make a pending task due at once", func(ctx context.Context, id string) error { return a.svc.Fire(ctx, who(ctx), id) })
	huma.Register(a.API, op("POST", "/tasks/{id}/move", "move-task", tagTasks, "Move a pending task to another instant"),
		func(ctx context.Context, in *struct {
			TaskPath

			Body movement
		},
		) (*body[asjson.Task], error) {
			if (in.Body.To == "") == (in.Body.By == "") {
				return nil, wrong("body.to", "expected one of to and by")
			}
			if in.Body.By != "" {
				by, err := shift("body.by", in.Body.By)
				if err != nil {
					return nil, err
				}
				return a.changed(ctx, in.ID, a.svc.MoveBy(ctx, who(ctx), in.ID, by))
			}
			to, _, err := instant("body.to", in.Body.To)
			if err != nil {
				return nil, err
			}
			return a.changed(ctx, in.ID, a.svc.Move(ctx, who(ctx), in.ID, to))
		})
	type revival struct {
		Due string `json:"due,omitempty" doc:"an instant; default now"`
	}
	huma.Register(a.API, op("POST", "/tasks/{id}/revive", "revive-task", tagTasks, "Make a failed task pending again"),
		func(ctx context.Context, in *struct {
			TaskPath

			Body *revival `required:"false"`
		},
		) (*body[asjson.Task], error) {
			at := time.Now()
			if in.Body != nil && in.Body.Due != "" {
				var err error
				if at, _, err = instant("body.due", in.Body.Due); err != nil {
					return nil, err
				}
			}
			return a.changed(ctx, in.ID, a.svc.Revive(ctx, who(ctx), in.ID, at))
		})
}

// change registers what one does to a task without saying more.
func (a *api) change(verb, summary string, do func(ctx context.Context, id string) error) {
	huma.Register(a.API, op("POST", "/tasks/{id}/"+verb, verb+"-task", tagTasks, summary),
		func(ctx context.Context, in *TaskPath) (*body[asjson.Task], error) {
			return a.changed(ctx, in.ID, do(ctx, in.ID))
		})
}

// changed is the task after a change.
func (a *api) changed(ctx context.Context, id string, err error) (*body[asjson.Task], error) {
	if err != nil {
		return nil, a.problem(err)
	}
	d, err := a.svc.Task(ctx, who(ctx), id)
	return answer(a, asjson.TaskOf(d.Task), err)
}

type putTask struct {
	TaskPath

	Replace bool `query:"replace" doc:"overwrite a task of the id that says something else, has ended, or was given a due instant that counts from now"`
	Body    NewTask
}

type putOutcome struct {
	Status int
	Body   scheduled
}

func (a *api) put(ctx context.Context, in *putTask) (*putOutcome, error) {
	t, err := in.Body.task("body", in.ID)
	if err != nil {
		return nil, err
	}
	t.Replace = in.Replace
	list, err := a.svc.Schedule(ctx, who(ctx), []service.NewTask{t})
	if err == nil {
		err = list[0].Err
	}
	if err != nil {
		return nil, a.problem(err)
	}
	out := &putOutcome{Status: http.StatusOK, Body: scheduled{ID: in.ID, Created: list[0].Created}}
	if list[0].Created {
		out.Status = http.StatusCreated
	}
	return out, nil
}

type putTasks struct {
	Replace bool `query:"replace" doc:"overwrite tasks that say something else, have ended, or were given a due instant that counts from now"`
	Body    struct {
		Tasks []newTaskWithID `json:"tasks" minItems:"1" maxItems:"1000" nullable:"false"`
	}
}

func (a *api) batch(ctx context.Context, in *putTasks) (*body[outcomes], error) {
	var tasks []service.NewTask
	for i, n := range in.Body.Tasks {
		t, err := n.task("body.tasks["+itoa(i)+"]", n.ID)
		if err != nil {
			return nil, err
		}
		t.Replace = in.Replace
		tasks = append(tasks, t)
	}
	list, err := a.svc.Schedule(ctx, who(ctx), tasks)
	if err != nil {
		return nil, a.problem(err)
	}
	out := outcomes{Tasks: []scheduled{}}
	for _, r := range list {
		s := scheduled{ID: r.ID, Created: r.Created}
		if r.Err != nil {
			s.Error = r.Err.Error()
			out.Failed++
		}
		if r.Created {
			out.Created++
		}
		out.Tasks = append(out.Tasks, s)
	}
	return &body[outcomes]{out}, nil
}
