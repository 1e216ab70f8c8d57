package api

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// NewTask is a task in a request.
type NewTask struct {
	Due string `json:"due" minLength:"1" doc:"When the task is due: a time such as 2026-12-24T08:00:00Z or \"tomorrow 08:00 Europe/Berlin\", now, or a duration from now such as 90m."`

	Unique *unique `json:"unique,omitempty"`

	asjson.Content
}

// unique controls how a request treats other tasks with the same unique key.
type unique struct {
	Key        string `json:"key"                   minLength:"1"                                                                                              maxLength:"255" doc:"What the task is about. At most one pending task has this key."`
	OnConflict string `json:"on_conflict,omitempty" enum:"keep,replace,push-back"                                                                              default:"keep"  doc:"What happens to a pending task with the same key."`
	MaxWait    string `json:"max_wait,omitempty"    doc:"With push-back: the longest time from when the task was first scheduled until it is due, such as 1m."`
	Cooldown   string `json:"cooldown,omitempty"    doc:"The task is refused while another one with the key is running, and for this long after one was done."`
}

type newTaskWithID struct {
	ID string `json:"id" minLength:"1" maxLength:"255"`
	NewTask
}

// task converts the request to a task. It reports text that cannot be parsed, and a unique key together with replace.
// The store validates everything else.
func (n NewTask) task(at, id string, replace bool) (service.NewTask, error) {
	var in reader
	out := service.NewTask{Task: n.Content.Task(in.at(at)), Replace: replace}
	out.ID = id
	if u := n.Unique; u != nil {
		out.UniqueKey, out.Unique.OnConflict = u.Key, schedule.ConflictPolicy(u.OnConflict)
		out.Unique.MaxWait, out.Unique.Cooldown = in.duration(at+".unique.max_wait", u.MaxWait), in.duration(at+".unique.cooldown", u.Cooldown)
	}
	out.DeliverAt = in.instant(at+".due", n.Due)
	_, err := time.Parse(time.RFC3339Nano, n.Due)
	out.AnyDue = err != nil // the due time depends on now
	if replace && out.UniqueKey != "" {
		in.fail(at+".unique", "expected no unique key together with replace, which replaces the task with the same id; see unique.on_conflict")
	}
	return out, in.err
}

// Filter selects tasks, in a query or a body.
type Filter struct {
	Queue     string `json:"queue,omitempty"      query:"queue"`
	Exchange  string `json:"exchange,omitempty"   query:"exchange"`
	Status    string `json:"status,omitempty"     query:"status"     enum:"pending,running,done,cancelled,expired,failed"`
	DueFrom   string `json:"due_from,omitempty"   query:"due_from"   doc:"Selects tasks that are due at or after this time."`
	DueTo     string `json:"due_to,omitempty"     query:"due_to"     doc:"Selects tasks that are due before this time."`
	IDPrefix  string `json:"id_prefix,omitempty"  query:"id_prefix"`
	Tag       string `json:"tag,omitempty"        query:"tag"`
	UniqueKey string `json:"unique_key,omitempty" query:"unique_key"`
	Header    string `json:"header,omitempty"     query:"header"     doc:"Selects tasks with the header name=value. Operators only."`
	Error     string `json:"error,omitempty"      query:"error"      doc:"Selects tasks whose last error contains this text."`
	ErrorLike string `json:"error_like,omitempty" query:"error_like" doc:"Selects tasks whose last error differs from this text only in numbers, ids and quoted parts. Use the error_like of a group of /task-errors."`
}

// UnmarshalJSON rejects conditions that are empty or null. Otherwise a change could select more tasks than intended,
// for example because a variable in the caller's script was not set.
func (f *Filter) UnmarshalJSON(data []byte) error {
	type plain Filter
	var conditions map[string]any
	if err := json.Unmarshal(data, &conditions); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(conditions)) {
		if v := conditions[name]; v == nil || v == "" {
			return fmt.Errorf("filter.%.100s is empty, perhaps because of an unset variable; give a value, or omit the condition", name)
		}
	}
	return json.Unmarshal(data, (*plain)(f))
}

func (f Filter) read(at string) (schedule.Filter, error) {
	var in reader
	out := schedule.Filter{
		Queue: f.Queue, Exchange: f.Exchange, Status: schedule.Status(f.Status), IDPrefix: f.IDPrefix, Tag: f.Tag, UniqueKey: f.UniqueKey,
		Error: f.Error, ErrorLike: f.ErrorLike,
		DueFrom: in.instant(at+".due_from", f.DueFrom), DueTo: in.instant(at+".due_to", f.DueTo),
	}
	if !out.DueFrom.IsZero() && !out.DueTo.IsZero() && !out.DueFrom.Before(out.DueTo) {
		in.fail(at+".due_to", "expected a time after due_from")
	}
	var ok bool
	if out.Header, out.HeaderValue, ok = strings.Cut(f.Header, "="); f.Header != "" && (!ok || out.Header == "") {
		in.fail(at+".header", quoted(f.Header)+"; expected name=value")
	}
	return out, in.err
}

type tasksPage struct {
	Tasks []asjson.Task `json:"tasks"          nullable:"false"`
	Next  string        `json:"next,omitempty" doc:"The cursor of the next page. Absent on the last page."`
}

type taskDetail struct {
	Task    asjson.Task     `json:"task"`
	Why     string          `json:"why"                doc:"What happened to the task, or why nothing has happened yet."`
	TraceID string          `json:"trace_id,omitempty"`
	Effects []asjson.Effect `json:"effects"            nullable:"false"`
	Records []asjson.Record `json:"records"            nullable:"false"`
	Audit   []entry         `json:"audit"              nullable:"false"`
}

type scheduled struct {
	Asked   string `json:"asked,omitempty"   doc:"In a batch: the id of the task in the request."`
	ID      string `json:"id"                doc:"The id of the task that exists now."`
	Created bool   `json:"created"           doc:"False if an equal task, or a task with the unique key, existed already."`
	Outcome string `json:"outcome,omitempty" enum:"created,kept,replaced,pushed-back,refused,ended"                        doc:"For a task with a unique key: what happened. ended means that an equal task with this id was scheduled before and has ended."`
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

			Sort   string `query:"sort"   enum:"due,due-last,ended,ended-last"                               default:"due" doc:"The order: by due time, or by the time at which tasks ended, which lists only tasks that have ended. With -last, the latest are first."`
			Cursor string `query:"cursor" doc:"The value of next from the previous page, in the same order."`
			Limit  int    `query:"limit"  default:"100"                                                      minimum:"1"   maximum:"1000"`
		},
		) (*body[tasksPage], error) {
			f, err := in.Filter.read("query")
			if err != nil {
				return nil, err
			}
			f.After = schedule.Cursor(in.Cursor)
			if err := taskview.CheckCursor(f.After); err != nil {
				return nil, wrong("query.cursor", err.Error())
			}
			if in.Sort != "due" {
				f.Sort = schedule.Sort(in.Sort)
			}
			f.Limit = in.Limit
			page, err := a.svc.Tasks(ctx, who(ctx), f)
			return answer(a, tasksPage{asjson.TasksOf(page.Tasks), string(page.Next)}, err)
		})
	huma.Register(a.API, op("GET", "/task-errors", "group-task-errors", tagTasks, "Group failed tasks, or tasks of another status, by error"),
		func(ctx context.Context, in *struct {
			Filter

			Order  taskview.ErrorGroupOrder `query:"order"  enum:"newest,oldest,most" default:"newest" doc:"Which groups come first."`
			Limit  int                      `query:"limit"  default:"50"              minimum:"1"      maximum:"1000"                 doc:"The maximum number of groups."`
			Sample int                      `query:"sample" default:"100000"          minimum:"1"      maximum:"1000000"              doc:"The maximum number of tasks to read, newest first. The response's field more says whether there are others."`
		},
		) (*body[taskview.ErrorGroups], error) {
			f, err := in.Filter.read("query")
			if err != nil {
				return nil, err
			}
			g, err := a.svc.TaskErrors(ctx, who(ctx), f, taskview.ErrorGroupOptions{Limit: in.Limit, Order: in.Order, Sample: in.Sample})
			return answer(a, g, err)
		})
	huma.Register(a.API, op("GET", "/tasks/{id}", "get-task", tagTasks, "Get one task and what happened to it"),
		func(ctx context.Context, in *TaskPath) (*body[taskDetail], error) {
			d, err := a.svc.Task(ctx, who(ctx), in.ID)
			return answer(a, taskDetail{asjson.TaskOf(d.Task), d.Why, d.TraceID, asjson.EffectsOf(d.Effects), asjson.RecordsOf(d.Records), entriesOf(d.Audit)}, err)
		})
	huma.Register(a.API, op("PUT", "/tasks/{id}", "schedule-task", tagTasks, "Schedule a task once. It is not an error if an equal task with the same id exists", large), a.put)
	put := a.OpenAPI().Paths[base+"/tasks/{id}"].Put
	put.Responses["201"] = &huma.Response{Description: "Created", Content: put.Responses["200"].Content}
	huma.Register(a.API, op("POST", "/tasks", "schedule-tasks", tagTasks, "Schedule up to 1000 tasks, each with its own result", large), a.batch)
	type instant struct {
		To string `json:"to,omitempty" doc:"The new due time, such as 2026-12-24T08:00:00Z or \"tomorrow 08:00 Europe/Berlin\"."`
		By string `json:"by,omitempty" doc:"Instead of to: how much later the task is due, such as 2h, or earlier, such as -1d."`
	}
	for kind, summary := range map[change.Kind]string{change.Cancel: "Cancel a pending task, so that it has no effect", change.RunNow: "Make a pending task due now"} {
		huma.Register(a.API, op("POST", "/tasks/{id}/"+string(kind), string(kind)+"-task", tagTasks, summary),
			func(ctx context.Context, in *TaskPath) (*body[asjson.Task], error) {
				return a.changed(ctx, in.ID, change.Action{Kind: kind}, nil)
			})
	}
	huma.Register(a.API, op("POST", "/tasks/{id}/reschedule", "reschedule-task", tagTasks, "Reschedule a pending task"),
		func(ctx context.Context, in *struct {
			TaskPath

			Body instant
		},
		) (*body[asjson.Task], error) {
			if (in.Body.To == "") == (in.Body.By == "") {
				return nil, wrong("body.to", "expected one of to and by")
			}
			var text reader
			act := change.Action{Kind: change.Reschedule, At: text.instant("body.to", in.Body.To)}
			if in.Body.By != "" {
				act = change.Action{Kind: change.RescheduleBy, By: text.shift("body.by", in.Body.By)}
			}
			return a.changed(ctx, in.ID, act, text.err)
		})
	type revival struct {
		Due string `json:"due,omitempty" doc:"When the task is due. The default is now."`
	}
	huma.Register(a.API, op("POST", "/tasks/{id}/revive", "revive-task", tagTasks, "Make a failed task pending again"),
		func(ctx context.Context, in *struct {
			TaskPath

			Body *revival `required:"false"`
		},
		) (*body[asjson.Task], error) {
			act := change.Action{Kind: change.Revive}
			var text reader
			if in.Body != nil {
				act.At = text.instant("body.due", in.Body.Due)
			}
			return a.changed(ctx, in.ID, act, text.err)
		})
}

// changed executes an action on a task and returns the changed task. The parameter err is an error in the request. If
// it is not nil, changed only returns it as a response.
func (a *api) changed(ctx context.Context, id string, act change.Action, err error) (*body[asjson.Task], error) {
	if err != nil {
		return nil, a.problem(err)
	}
	t, err := a.svc.Change(ctx, who(ctx), id, act)
	return answer(a, asjson.TaskOf(t), err)
}

type putTask struct {
	TaskPath

	Replace bool `query:"replace" doc:"Replaces an existing task with this id if it differs, if it has ended, or if the given due time is relative to now."`
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
	Replace bool `query:"replace" doc:"Replaces existing tasks that differ, that have ended, or whose given due time is relative to now."`
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
