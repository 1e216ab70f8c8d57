package page

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
)

// taskData is one task with its history.
type taskData struct {
	service.TaskDetail

	Events  []event
	Acts    []actLink
	Notice  string // what was just done
	Problem string // why it was not done
}

// event is a line of a task's history.
type event struct {
	At   time.Time
	Text string
	Note string
}

func (p *Pages) task(r *request) (answer, error) {
	return p.taskPage(r, r.form.Get("id"), nil)
}

// taskPage shows a task, and why a change of it was refused.
func (p *Pages) taskPage(r *request, id string, refused error) (answer, error) {
	t, err := p.svc.Task(r.Context(), r.who.Identity, id)
	if err != nil {
		return answer{}, err
	}
	d := taskData{TaskDetail: t, Events: history(t), Acts: actsOf(t.Task.Status)}
	if !r.who.Role.May(service.RoleOperator) {
		d.Task.Body, d.Acts = nil, nil
	}
	a := answer{name: "task", title: "Task " + shown.Line(shown.Shorten(id, 40))}
	if done := r.URL.Query().Get("done"); refused == nil && done != "" {
		for _, did := range append(acts, act{name: "scheduled", past: "scheduled"}) {
			if did.name == done {
				d.Notice = "The task was " + did.past + "."
			}
		}
		d.Notice = cmp.Or(d.Notice, uniqueNotices[schedule.UniqueOutcome(done)])
	}
	if refused != nil {
		problem := describe(refused)
		d.Problem, a.status = problem.Heading+": "+problem.Detail, problem.Status
	}
	a.data = d
	return a, nil
}

// uniqueNotices are the outcomes of a task with a unique key, on the page of the one that stands.
var uniqueNotices = map[schedule.UniqueOutcome]string{
	schedule.UniqueCreated:    "The task was scheduled.",
	schedule.UniqueKept:       "This task of the unique key was pending, and was kept as it is.",
	schedule.UniqueReplaced:   "This task of the unique key was pending, and was replaced.",
	schedule.UniquePushedBack: "This task of the unique key was pending, and was pushed back.",
	schedule.UniqueRefused:    "Nothing was scheduled: this task of the unique key is running, or was done within the cooldown.",
}

// actLink leads to a change of one task.
type actLink struct{ Name, Label, Path string }

func actsOf(s schedule.Status) []actLink {
	var list []actLink
	for _, a := range acts {
		if a.name != "" && a.takes(s) {
			list = append(list, actLink{a.name, a.button, "task-" + a.name})
		}
	}
	return list
}

// history returns what is known of a task, in order.
func history(t service.TaskDetail) []event {
	x := t.Task
	var list []event
	add := func(at time.Time, text, note string) {
		if !at.IsZero() {
			list = append(list, event{at, text, note})
		}
	}
	add(x.CreatedAt, "scheduled", "")
	add(x.SentAt, "sent to the broker, "+shown.Count(x.Sends, "time", "times")+" in version "+shown.Number(x.Version), "")
	if x.Status == schedule.StatusPending {
		add(x.DeliverAt, "due", "")
	}
	for _, e := range t.Effects {
		add(e.DoneAt, "effect in "+shown.Line(e.Queue), "of version "+shown.Number(e.Version))
		add(e.LeaseUntil, "a handler of "+shown.Line(e.Queue)+" has it to itself until then", "")
	}
	for _, rec := range t.Records {
		text := "recorded by " + shown.Line(rec.Scope)
		if rec.Guarded {
			text += ", which left the effect out"
		}
		add(rec.ProcessedAt, text, "")
	}
	for _, e := range t.Audit {
		add(e.At, e.Action+" by "+shown.Line(e.Who), e.Detail+e.Error)
	}
	add(x.FinishedAt, string(x.Status), "")
	slices.SortStableFunc(list, func(a, b event) int { return a.At.Compare(b.At) })
	return list
}

// actData asks whether to change one thing.
type actData struct {
	Label, Question, Path string
	IDField, ID           string
	At                    string // in the field at; empty without one
	BackHref              string
	Danger                bool
	Detail                string
	Problem               string
}

func (p *Pages) askTask(a act) handler {
	return func(r *request) (answer, error) {
		t, err := p.svc.Task(r.Context(), r.who.Identity, r.form.Get("id"))
		if err != nil {
			return answer{}, err
		}
		d := actData{
			Label: a.button, Question: a.question, Path: "task-" + a.name, IDField: "id", ID: t.Task.ID, BackHref: link("task", "id", t.Task.ID), Danger: a.danger,
			Detail: "for " + shown.Line(t.Task.Destination().String()) + ", due " + r.stamp(t.Task.DeliverAt).Text + " (" + shown.FromNow(t.Task.DeliverAt, r.now) + ")",
		}
		if a.at {
			d.At = cmp.Or(r.get("at"), a.preset)
		}
		if !a.takes(t.Task.Status) {
			d.Problem = "The task is " + string(t.Task.Status) + "; this needs one that is " + a.noun() + "."
		}
		return answer{name: "task-act", title: a.button, data: d}, nil
	}
}

func (p *Pages) doTask(a act) handler {
	return func(r *request) (answer, error) {
		id := r.form.Get("id")
		x, err := a.read(r)
		if err == nil {
			err = p.svc.Change(r.Context(), r.who.Identity, id, x)
		}
		if err == nil {
			return answer{to: link("task", "id", id, "done", a.name)}, nil
		}
		if errors.Is(err, schedule.ErrStatus) || errors.Is(err, schedule.ErrUnique) || describe(err).Status == http.StatusBadRequest {
			return p.taskPage(r, id, err)
		}
		return answer{}, err
	}
}
