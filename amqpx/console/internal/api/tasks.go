package api

import (
	"context"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// NewTask is a task in a request.
type NewTask struct {
	Due string `json:"due" minLength:"1" doc:"an instant: 2026-12-24T08:00:00Z, \"tomorrow 08:00 Europe/Berlin\", now, or from now such as 90m"`

	Unique *unique `json:"unique,omitempty"`

	asjson.Content
}

// unique controls how a request treats other tasks with the same unique key.
type unique struct {
	Key       string `json:"key"                  minLength:"1"                                                                                 maxLength:"255" doc:"what the task is about; at most one pending task has it"`
	OnPending string `json:"on_pending,omitempty" enum:"keep,replace,push-back"                                                                 default:"keep"  doc:"what happens to a pending task of the key"`
	MaxWait   string `json:"max_wait,omitempty"   doc:"with push-back: how long after it was scheduled a task is due at the latest, such as 1m"`
	Cooldown  string `json:"cooldown,omitempty"   doc:"the task is refused while one of the key is running, and for so long after one was done"`
}

type newTaskWithID struct {
	ID string `json:"id" minLength:"1" maxLength:"255"`
	NewTask
}

// task converts the request to a task. It validates the texts, and the store validates the rest.
func (n NewTask) task(at, id string, replace bool) (service.NewTask, error) {
	var in reader
	out := service.NewTask{Task: in.content(at, n.Content), Replace: replace}
	out.ID = id
	if u := n.Unique; u != nil {
		out.UniqueKey, out.Unique.OnPending = u.Key, schedule.OnPending(u.OnPending)
		out.Unique.MaxWait, out.Unique.Cooldown = in.duration(at+".unique.max_wait", u.MaxWait), in.duration(at+".unique.cooldown", u.Cooldown)
	}
	out.DeliverAt = in.instant(at+".due", n.Due)
	_, err := time.Parse(time.RFC3339Nano, n.Due)
	out.AnyDue = err != nil // the due time depends on now
	if replace && out.UniqueKey != "" {
		in.fail(at+".unique", "expected no unique key with replace, which is about the id; see unique.on_pending")
	}
	return out, in.err
}

// content converts the destination and the message of a task.
func (r *reader) content(at string, c asjson.Content) schedule.Task {
	t := schedule.Task{
		Queue: c.Queue, Exchange: c.Exchange, RoutingKey: c.RoutingKey, ContentType: c.ContentType, Type: c.Type,
		CorrelationID: c.CorrelationID, Priority: uint8(c.Priority), Headers: c.Headers, Tags: c.Tags, // the schema limits the priority
		ExpiresAfter: r.duration(at+".expires_after", c.ExpiresAfter), Body: []byte(c.Body),
	}
	if c.BodyBase64 == "" {
		return t
	}
	if c.Body != "" {
		r.fail(at+".body_base64", "both body and body_base64; give one")
	}
	var err error
	if t.Body, err = base64.StdEncoding.DecodeString(c.BodyBase64); err != nil {
		r.fail(at+".body_base64", "expected base64 (RFC 4648, with padding)")
	}
	return t
}

// Filter selects tasks, in a query or a body.
type Filter struct {
	Queue     string `json:"queue,omitempty"      query:"queue"`
	Exchange  string `json:"exchange,omitempty"   query:"exchange"`
	Status    string `json:"status,omitempty"     query:"status"     enum:"pending,running,done,cancelled,expired,failed"`
	DueFrom   string `json:"due_from,omitempty"   query:"due_from"   doc:"due at or after this instant"`
	DueTo     string `json:"due_to,omitempty"     query:"due_to"     doc:"due before this instant"`
	IDPrefix  string `json:"id_prefix,omitempty"  query:"id_prefix"`
	Tag       string `json:"tag,omitempty"        query:"tag"`
	UniqueKey string `json:"unique_key,omitempty" query:"unique_key"`
	Header    string `json:"header,omitempty"     query:"header"     doc:"name=value, for operators"`
	Error     string `json:"error,omitempty"      query:"error"      doc:"part of the last error"`
	ErrorLike string `json:"error_like,omitempty" query:"error_like" doc:"tasks whose last error differs from it in numbers, ids and quoted parts only, as /task-errors has it"`
}

func (f Filter) read(at string) (schedule.Filter, error) {
	var in reader
	out := schedule.Filter{
		Queue: f.Queue, Exchange: f.Exchange, Status: schedule.Status(f.Status), IDPrefix: f.IDPrefix, Tag: f.Tag, UniqueKey: f.UniqueKey,
		Error: f.Error, ErrorLike: f.ErrorLike,
		DueFrom: in.instant(at+".due_from", f.DueFrom), DueTo: in.instant(at+".due_to", f.DueTo),
	}
	if !out.DueFrom.IsZero() && !out.DueTo.IsZero() && !out.DueFrom.Before(out.DueTo) {
		in.fail(at+".due_to", "expected an instant after due_from")
	}
	var ok bool
	if out.Header, out.HeaderValue, ok = strings.Cut(f.Header, "="); f.Header != "" && (!ok || out.Header == "") {
		in.fail(at+".header", quoted(f.Header)+"; expected name=value")
	}
	return out, in.err
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
	Asked   string `json:"asked,omitempty"   doc:"in a batch: the id that the request gave the task"`
	ID      string `json:"id"                doc:"of the task that stands"`
	Created bool   `json:"created"           doc:"false: an equal task existed, or one of the unique key"`
	Outcome string `json:"outcome,omitempty" enum:"created,kept,replaced,pushed-back,refused,ended"       doc:"of a task with a unique key; ended: an equal task with this id was scheduled before and has ended"`
	Error   string `json:"error,omitempty"`
}

type outcomes struct {
	Created int         `json:"created"`
	Failed  int         `json:"failed"`
	Tasks   []scheduled `json:"tasks"   nullable:"false"`
}

const tagTasks = "tasks"

func (a *api) tasks() {
	huma.Register(a.API, op("GET", "/tasks", "list-tasks", tagTasks, "List tasks, without bodies"),
		func(ctx context.Context, in *struct {
			Filter

			Sort   string `query:"sort"   enum:"due,due-last,ended,ended-last"               default:"due" doc:"the order: by due instant, or by when they ended, which leaves out the others; -last is from the last one on"`
			Cursor string `query:"cursor" doc:"next of the previous page, of the same order"`
			Limit  int    `query:"limit"  default:"100"                                      minimum:"1"   maximum:"1000"`
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
			if in.Sort != "due" {
				f.Sort = schedule.Sort(in.Sort)
			}
			f.Limit = in.Limit
			page, err := a.svc.Tasks(ctx, who(ctx), f)
			return answer(a, tasksPage{asjson.TasksOf(page.Tasks), page.Next.String()}, err)
		})
	huma.Register(a.API, op("GET", "/task-errors", "group-task-errors", tagTasks, "Group failed tasks, or those of another status, by their errors"),
		func(ctx context.Context, in *struct {
			Filter

			Order schedule.ErrorGroupOrder `query:"order" enum:"newest,oldest,most" default:"newest" doc:"which groups come first"`
			Limit int                      `query:"limit" default:"50"              minimum:"1"      maximum:"1000"                doc:"the most groups"`
			Look  int                      `query:"look"  default:"100000"          minimum:"1"      maximum:"1000000"             doc:"the most tasks to read, the newest first; more in the answer says whether there are others"`
		},
		) (*body[schedule.ErrorGroups], error) {
			f, err := in.Filter.read("query")
			if err != nil {
				return nil, err
			}
			g, err := a.svc.TaskErrors(ctx, who(ctx), f, schedule.ErrorGroupOptions{Limit: in.Limit, Order: in.Order, Look: in.Look})
			return answer(a, g, err)
		})
	huma.Register(a.API, op("GET", "/tasks/{id}", "get-task", tagTasks, "Get one task and what has become of it"),
		func(ctx context.Context, in *TaskPath) (*body[taskDetail], error) {
			d, err := a.svc.Task(ctx, who(ctx), in.ID)
			return answer(a, taskDetail{asjson.TaskOf(d.Task), d.Why, d.TraceID, asjson.EffectsOf(d.Effects), asjson.RecordsOf(d.Records), entriesOf(d.Audit)}, err)
		})
	huma.Register(a.API, op("PUT", "/tasks/{id}", "schedule-task", tagTasks, "Schedule a task once: an equal task with the same id is no error", large), a.put)
	put := a.OpenAPI().Paths[base+"/tasks/{id}"].Put
	put.Responses["201"] = &huma.Response{Description: "Created", Content: put.Responses["200"].Content}
	huma.Register(a.API, op("POST", "/tasks", "schedule-tasks", tagTasks, "Schedule up to 1000 tasks, each with its own result", large), a.batch)
	type movement struct {
		To string `json:"to,omitempty" doc:"an instant, such as 2026-12-24T08:00:00Z or \"tomorrow 08:00 Europe/Berlin\""`
		By string `json:"by,omitempty" doc:"instead of to: a duration, such as 2h or -1d"`
	}
	for kind, summary := range map[service.Kind]string{service.Cancel: "Cancel a pending task, so that it has no effect", service.Fire: "Make a pending task due at once"} {
		huma.Register(a.API, op("POST", "/tasks/{id}/"+string(kind), string(kind)+"-task", tagTasks, summary),
			func(ctx context.Context, in *TaskPath) (*body[asjson.Task], error) {
				return a.changed(ctx, in.ID, service.Action{Kind: kind}, nil)
			})
	}
	huma.Register(a.API, op("POST", "/tasks/{id}/move", "move-task", tagTasks, "Move a pending task to another instant"),
		func(ctx context.Context, in *struct {
			TaskPath

			Body movement
		},
		) (*body[asjson.Task], error) {
			if (in.Body.To == "") == (in.Body.By == "") {
				return nil, wrong("body.to", "expected one of to and by")
			}
			var text reader
			act := service.Action{Kind: service.MoveTo, At: text.instant("body.to", in.Body.To)}
			if in.Body.By != "" {
				act = service.Action{Kind: service.MoveBy, By: text.shift("body.by", in.Body.By)}
			}
			return a.changed(ctx, in.ID, act, text.err)
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
			act := service.Action{Kind: service.Revive}
			var text reader
			if in.Body != nil {
				act.At = text.instant("body.due", in.Body.Due)
			}
			return a.changed(ctx, in.ID, act, text.err)
		})
}

// changed makes a change and returns the task after it. If err is not nil, it returns err instead.
func (a *api) changed(ctx context.Context, id string, act service.Action, err error) (*body[asjson.Task], error) {
	if err == nil {
		err = a.svc.Change(ctx, who(ctx), id, act)
	}
	if err != nil {
		return nil, a.problem(err)
	}
	d, err := a.svc.Task(ctx, who(ctx), id)
	return answer(a, asjson.TaskOf(d.Task), err)
}

type putTask struct {
	TaskPath

	Replace bool `query:"replace" doc:"overwrite an existing task with the id if it differs, has ended, or the given due instant counts from now"`
	Body    NewTask
}

type putOutcome struct {
	Status int
	Body   scheduled
}

func (a *api) put(ctx context.Context, in *putTask) (*putOutcome, error) {
	t, err := in.Body.task("body", in.ID, in.Replace)
	if err != nil {
		return nil, err
	}
	list, err := a.svc.Schedule(ctx, who(ctx), []service.NewTask{t})
	if err == nil {
		err = list[0].Err
	}
	if err != nil {
		return nil, a.problem(err)
	}
	out := &putOutcome{Status: http.StatusOK, Body: scheduled{ID: list[0].ID, Created: list[0].Created, Outcome: string(list[0].Outcome)}}
	if list[0].Created {
		out.Status = http.StatusCreated
	}
	return out, nil
}

type putTasks struct {
	Replace bool `query:"replace" doc:"overwrite existing tasks that differ, have ended, or whose given due instants count from now"`
	Body    struct {
		Tasks []newTaskWithID `json:"tasks" minItems:"1" maxItems:"1000" nullable:"false"`
	}
}

func (a *api) batch(ctx context.Context, in *putTasks) (*body[outcomes], error) {
	var tasks []service.NewTask
	for i, n := range in.Body.Tasks {
		t, err := n.task("body.tasks["+strconv.Itoa(i)+"]", n.ID, in.Replace)
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, t)
	}
	list, err := a.svc.Schedule(ctx, who(ctx), tasks)
	if err != nil {
		return nil, a.problem(err)
	}
	out := outcomes{Tasks: []scheduled{}}
	for _, r := range list {
		s := scheduled{Asked: r.Asked, ID: r.ID, Created: r.Created, Outcome: string(r.Outcome)}
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
