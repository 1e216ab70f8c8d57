package page

import (
	"errors"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// taskData is one task with its history.
type taskData struct {
	service.TaskDetail

	Events  []event
	Acts    []act
	Notice  string // what has just been done
	Problem string // why what was asked for was not done
	Why     string
}

// event is a line of a task's history.
type event struct {
	At   time.Time
	Text string
	Note string
}

// act is what may be done to a task in its status.
type act struct{ Name, Label, Path string }

// taskActs are what can be done to one task.
var taskActs = map[string]struct {
	label, past, question string
	from                  schedule.Status
	at                    string // the field for an instant, with its default
}{
	"fire":   {label: "Fire now", past: "fired: it is due now", question: "Make this task due now?", from: schedule.StatusPending},
	"move":   {label: "Move", past: "moved", question: "Move this task to another instant?", from: schedule.StatusPending, at: "+1h"},
	"cancel": {label: "Cancel", past: "cancelled", question: "End this task without its effect?", from: schedule.StatusPending},
	"revive": {label: "Revive", past: "revived: it is pending again", question: "Make this failed task pending again?", from: schedule.StatusFailed, at: "+0s"},
}

func (p *Pages) task(r *request) (answer, error) {
	return p.taskPage(r, r.form.Get("id"), nil)
}

// taskPage shows a task, and beside it why a change was refused.
func (p *Pages) taskPage(r *request, id string, refused error) (answer, error) {
	t, err := p.svc.Task(r.Context(), r.who.Identity, id)
	if err != nil {
		return answer{}, err
	}
	d := taskData{TaskDetail: t, Events: history(t), Acts: actsOf(t.Task.Status), Why: t.Why}
	if !r.who.Role.May(service.RoleOperator) {
		d.Task.Body, d.Acts = nil, nil
	}
	a := answer{name: "task", title: "Task " + shown.Line(shown.Shorten(id, 40))}
	if did, ok := taskActs[r.URL.Query().Get("done")]; ok && refused == nil {
		d.Notice = "The task was " + did.past + "."
	}
	if r.URL.Query().Get("done") == "scheduled" {
		d.Notice = "The task was scheduled."
	}
	if refused != nil {
		problem := describe(refused)
		d.Problem, a.status = problem.Heading+": "+problem.Detail, problem.Status
	}
	a.data = d
	return a, nil
}

func actsOf(s schedule.Status) []act {
	var list []act
	for _, name := range []string{"fire", "move", "revive", "cancel"} {
		if taskActs[name].from == s {
			list = append(list, act{name, taskActs[name].label, "task-" + name})
		}
	}
	return list
}

// history is what is known of a task, in order.
func history(t service.TaskDetail) []event {
	x := t.Task
	var list []event
	add := func(at time.Time, text, note string) {
		if !at.IsZero() {
			list = append(list, event{at, text, note})
		}
	}
	add(x.CreatedAt, "scheduled", "")
	add(x.SentAt, "sent to the broker, "+plural(int64(x.Sends), "time", "times")+" in version "+grouped(x.Version), "")
	if x.Status == schedule.StatusPending {
		add(x.DeliverAt, "due", "")
	}
	for _, e := range t.Effects {
		add(e.DoneAt, "effect in "+shown.Line(e.Queue), "of version "+grouped(e.Version))
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
	add(x.FinishedAt, string(x.Status), x.LastError)
	slices.SortStableFunc(list, func(a, b event) int { return a.At.Compare(b.At) })
	return list
}

// actData is the question whether to change one thing.
type actData struct {
	Name, Label, Question, Path string
	IDField, ID                 string
	AtField, At                 string
	BackHref                    string
	Danger                      bool
	Detail                      string
	Problem                     string
}

func (p *Pages) askTask(name string) handler {
	return func(r *request) (answer, error) {
		t, err := p.svc.Task(r.Context(), r.who.Identity, r.form.Get("id"))
		if err != nil {
			return answer{}, err
		}
		a := taskActs[name]
		d := actData{
			Name: name, Label: a.label, Question: a.question, Path: "task-" + name, IDField: "id", ID: t.Task.ID, BackHref: link("task", "id", t.Task.ID),
			Danger: name == "cancel", Detail: "for " + shown.Line(t.Task.Destination().String()) + ", due " + r.stamp(t.Task.DeliverAt).Text + " (" + shown.FromNow(t.Task.DeliverAt, r.now) + ")",
		}
		if a.at != "" {
			d.AtField, d.At = "at", a.at
			if r.get("at") != "" {
				d.At = r.get("at")
			}
		}
		if t.Task.Status != a.from {
			d.Problem = "The task is " + string(t.Task.Status) + "; this needs one that is " + string(a.from) + "."
		}
		return answer{name: "task-act", title: a.label, data: d}, nil
	}
}

func (p *Pages) doTask(name string) handler {
	return func(r *request) (answer, error) {
		id := r.form.Get("id")
		err := p.change(r, name, id)
		if err == nil {
			return answer{to: link("task", "id", id, "done", name)}, nil
		}
		if errors.Is(err, schedule.ErrStatus) || describe(err).Status == 400 {
			return p.taskPage(r, id, err)
		}
		return answer{}, err
	}
}

func (p *Pages) change(r *request, name, id string) error {
	ctx, who := r.Context(), r.who.Identity
	switch name {
	case "cancel":
		return p.svc.Cancel(ctx, who, id)
	case "fire":
		return p.svc.Fire(ctx, who, id)
	}
	at, err := r.instant("at")
	switch {
	case err != nil:
		return err
	case name == "revive" && at.IsZero():
		at = r.now
	case at.IsZero():
		return fieldError("at", "no instant; expected one such as tomorrow 08:00 Europe/Berlin or +90m")
	}
	if name == "revive" {
		return p.svc.Revive(ctx, who, id, at)
	}
	return p.svc.Move(ctx, who, id, at)
}

// expiry is a duration as a form has it; empty for none.
func expiry(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return topology.FormatDuration(d)
}
