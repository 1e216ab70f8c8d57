package page

import (
	"maps"
	"net/url"
	"strconv"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
)

// recurringData are all recurring tasks.
type recurringData struct {
	Tasks  []recurringRow
	Notice string
}

// recurringRow is one of them.
type recurringRow struct {
	Recurring schedule.Recurring
	State     schedule.RecurringState
	Next      []schedule.Occurrence
}

// ahead is how many of the next occurrences a page of one has.
const ahead = 10

func (p *Pages) recurring(r *request) (answer, error) {
	list, err := p.svc.Recurring(r.Context(), r.who.Identity)
	if err != nil {
		return answer{}, err
	}
	var d recurringData
	for _, t := range list {
		d.Tasks = append(d.Tasks, rowOf(t, r.now, 1))
	}
	if r.form.Get("done") == "delete" {
		d.Notice = "The recurring task was deleted."
	}
	return answer{name: "recurring", title: "Recurring tasks", data: d}, nil
}

func rowOf(r schedule.Recurring, now time.Time, next int) recurringRow {
	return recurringRow{r, r.State(now), r.Upcoming(now, next)}
}

// recurringTaskData is one with its next instants.
type recurringTaskData struct {
	recurringRow

	Audit  []service.Entry
	Notice string
}

// recurringActs are what can be done to one.
var recurringActs = map[string]struct{ label, past, question string }{
	"pause":  {"Pause", "The recurring task was paused.", "Pause this recurring task? No occurrence follows until it is resumed."},
	"resume": {"Resume", "The recurring task was resumed.", "Resume this recurring task?"},
	"fire":   {"Fire now", "", "Let it happen once more, now?"},
	"delete": {"Delete", "", "Delete this recurring task? Its next occurrence is withdrawn."},
}

func (p *Pages) recurringTask(r *request) (answer, error) {
	name := r.form.Get("name")
	t, err := p.svc.RecurringTask(r.Context(), r.who.Identity, name)
	if err != nil {
		return answer{}, err
	}
	d := recurringTaskData{recurringRow: rowOf(t, r.now, ahead), Notice: recurringActs[r.form.Get("done")].past}
	if !r.who.Role.May(service.RoleOperator) {
		d.Recurring.Task.Body = nil
	}
	if r.form.Get("done") == "put" {
		d.Notice = "The recurring task was saved."
	}
	const entries = 20
	if d.Audit, err = p.svc.Audit(r.Context(), r.who.Identity, name, "", entries); err != nil {
		d.Audit = nil // the task itself is worth showing
	}
	return answer{name: "recurring-task", title: "Recurring task " + shown.Line(shown.Shorten(name, 40)), data: d}, nil
}

func (p *Pages) askRecurringAct(name string) handler {
	return func(r *request) (answer, error) {
		t, err := p.svc.RecurringTask(r.Context(), r.who.Identity, r.form.Get("name"))
		if err != nil {
			return answer{}, err
		}
		a := recurringActs[name]
		return answer{name: "task-act", title: a.label, data: actData{
			Name: name, Label: a.label, Question: a.question, Path: "recurring-" + name, IDField: "name", ID: t.Name,
			BackHref: link("recurring-task", "name", t.Name), Danger: name == "delete", Detail: shown.Line(t.Timetable()) + ", for " + shown.Line(t.Task.Destination().String()),
		}}, nil
	}
}

func (p *Pages) doRecurringAct(name string) handler {
	return func(r *request) (answer, error) {
		ctx, who, task := r.Context(), r.who.Identity, r.form.Get("name")
		to := link("recurring-task", "name", task, "done", name)
		var err error
		switch name {
		case "pause":
			err = p.svc.PauseRecurring(ctx, who, task)
		case "resume":
			err = p.svc.ResumeRecurring(ctx, who, task)
		case "delete":
			to, err = link("recurring", "done", "delete"), p.svc.DeleteRecurring(ctx, who, task)
		case "fire":
			var id string
			id, err = p.svc.FireRecurring(ctx, who, task)
			to = link("task", "id", id, "done", "scheduled")
		}
		return answer{to: to}, err
	}
}

// askRecurring is the form for one, new or there already.
func (p *Pages) askRecurring(r *request) (answer, error) {
	d := formData{Fields: url.Values{}, BackHref: "recurring"}
	if name := r.form.Get("edit"); name != "" {
		t, err := p.svc.RecurringTask(r.Context(), r.who.Identity, name)
		if err != nil {
			return answer{}, err
		}
		writeRecurring(d.Fields, t)
		d.Editing, d.BackHref = true, link("recurring-task", "name", name)
	}
	maps.Copy(d.Fields, r.form)
	return answer{name: "recurring-edit", title: "Recurring task", data: d}, nil
}

func writeRecurring(v url.Values, r schedule.Recurring) {
	writeMessage(v, r.Task)
	paused := ""
	if r.Paused {
		paused = "1"
	}
	for name, value := range map[string]string{
		"name": r.Name, "cron": r.Cron, "time-zone": r.TimeZone, "every": expiry(r.Every), "start": exact(r.Start), "end": exact(r.End), "jitter": expiry(r.Jitter),
		"misfire": string(r.Misfire), "misfire-limit": strconv.Itoa(r.MisfireLimit), "overlap": string(r.Overlap), "paused": paused,
	} {
		v.Set(name, value)
	}
}

func readRecurring(r *request) (schedule.Recurring, error) {
	x := schedule.Recurring{
		Name: r.form.Get("name"), Cron: r.get("cron"), TimeZone: r.get("time-zone"), Misfire: schedule.Misfire(r.get("misfire")), Overlap: schedule.Overlap(r.get("overlap")), Paused: r.get("paused") != "",
	}
	var err error
	if x.Task, err = readMessage(r); err != nil {
		return x, err
	}
	for _, f := range []struct {
		name string
		to   *time.Duration
	}{{"every", &x.Every}, {"jitter", &x.Jitter}} {
		if *f.to, err = readDuration(r, f.name); err != nil {
			return x, err
		}
	}
	if x.Start, err = r.instant("start"); err != nil {
		return x, err
	}
	if x.End, err = r.instant("end"); err != nil {
		return x, err
	}
	const most = 10_000
	x.MisfireLimit, err = number(r, "misfire-limit", 0, most)
	return x, err
}

func (p *Pages) putRecurring(r *request) (answer, error) {
	x, err := readRecurring(r)
	if err == nil {
		_, err = p.svc.PutRecurring(r.Context(), r.who.Identity, x)
	}
	if err == nil {
		return answer{to: link("recurring-task", "name", x.Name, "done", "put")}, nil
	}
	problem := describe(err)
	if problem.Status != 400 {
		return answer{}, err
	}
	return answer{
		name: "recurring-edit", title: "Recurring task", status: problem.Status,
		data: formData{Fields: r.form, Problem: problem.Heading + ": " + problem.Detail, Editing: r.get("editing") != "", BackHref: "recurring"},
	}, nil
}
