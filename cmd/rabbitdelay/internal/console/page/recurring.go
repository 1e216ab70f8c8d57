package page

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// recurringData is the data of the list of recurring tasks.
type recurringData struct {
	Tasks  []recurringRow
	Sorts  []choice // the available sort orders
	Notice string
}

// recurringRow is one recurring task with its next occurrences.
type recurringRow struct {
	Recurring schedule.Recurring
	State     taskview.RecurringState
	Next      []schedule.Occurrence
	Last      *schedule.TaskRow // the last occurrence that has ended, if there is one
}

// Late returns how late the last run was. It is empty if the last occurrence was not done.
func (r recurringRow) Late() string {
	if r.Last == nil || r.Last.Status != schedule.StatusDone {
		return ""
	}
	return short(max(0, r.Last.FinishedAt.Sub(r.Last.DeliverAt)))
}

// recurringSorts lists the sort orders of the list. The first is the default.
var recurringSorts = []struct {
	name, label string
	compare     func(a, b recurringRow) int
}{
	{"name", "name", func(a, b recurringRow) int { return strings.Compare(a.Recurring.Name, b.Recurring.Name) }},
	{"next", "next run", func(a, b recurringRow) int { return compareInstants(a.next(), b.next()) }},
	{"last", "last run", func(a, b recurringRow) int { return compareInstants(b.ended(), a.ended()) }},
}

// compareInstants orders times chronologically, with zero times last.
func compareInstants(a, b time.Time) int {
	if a.IsZero() != b.IsZero() {
		return map[bool]int{true: 1, false: -1}[a.IsZero()]
	}
	return a.Compare(b)
}

func (r recurringRow) next() time.Time {
	if len(r.Next) == 0 {
		return time.Time{}
	}
	return r.Next[0].DueAt
}

func (r recurringRow) ended() time.Time {
	if r.Last == nil {
		return time.Time{}
	}
	return r.Last.FinishedAt
}

// ahead is the number of upcoming occurrences on a recurring task's page.
const ahead = 10

func (p *Pages) recurring(r *request) (answer, error) {
	list, err := p.svc.Recurring(r.Context(), r.who.Identity)
	if err != nil {
		return answer{}, err
	}
	var d recurringData
	names := make([]string, len(list))
	for i, t := range list {
		d.Tasks, names[i] = append(d.Tasks, rowOf(t, r.now, 1)), t.Name
	}
	runs, err := p.svc.LastRuns(r.Context(), names)
	if err != nil {
		return answer{}, err
	}
	for i := range d.Tasks {
		d.Tasks[i].ranLast(runs)
	}
	for i, s := range recurringSorts {
		current := r.get("sort") == s.name || r.get("sort") == "" && i == 0
		d.Sorts = append(d.Sorts, choice{r.lang.text(s.label), link("recurring", "sort", s.name), current})
		if current {
			slices.SortStableFunc(d.Tasks, s.compare)
		}
	}
	if r.form.Get("done") == "delete" {
		d.Notice = "The recurring task was deleted."
	}
	return answer{name: "recurring", title: r.lang.text("Recurring tasks"), data: d, live: link("live-recurring", "sort", r.get("sort")), download: downloadOf("recurring", url.Values{})}, nil
}

func rowOf(r schedule.Recurring, now time.Time, next int) recurringRow {
	return recurringRow{Recurring: r, State: taskview.StateOf(r, now), Next: taskview.Upcoming(r, now, next)}
}

// ranLast sets Last to the last occurrence, if there is one.
func (r *recurringRow) ranLast(runs map[string]schedule.TaskRow) {
	if t, ok := runs[r.Recurring.Name]; ok {
		r.Last = &t
	}
}

// recurringTaskData is a recurring task with its audit.
type recurringTaskData struct {
	recurringRow

	Upcoming []upcoming
	Misfire  string // what happens to runs that were missed in an outage
	Overlap  string // what happens to a run while the one before it is pending
	Audit    []service.Entry
	Notice   string
}

// upcoming is an occurrence with its time in the time zone of the schedule.
type upcoming struct {
	schedule.Occurrence

	Text string
}

// recurringActs lists the ways to change a recurring task.
var recurringActs = map[string]struct{ label, past, question string }{
	"pause":  {"Pause", "The recurring task was paused.", "Pause this recurring task? It does not run until it is resumed."},
	"resume": {"Resume", "The recurring task was resumed.", "Resume this recurring task?"},
	"run":    {"Run now", "", "Schedule an additional run, due now?"},
	"delete": {"Delete", "", "Delete this recurring task? Its next run is withdrawn."},
}

func (p *Pages) recurringTask(r *request) (answer, error) {
	name := r.form.Get("name")
	t, err := p.svc.RecurringTask(r.Context(), r.who.Identity, name)
	if err != nil {
		return answer{}, err
	}
	d := recurringTaskData{recurringRow: rowOf(t, r.now, ahead), Notice: recurringActs[r.form.Get("done")].past}
	runs, err := p.svc.LastRuns(r.Context(), []string{name})
	if err != nil {
		return answer{}, err
	}
	d.ranLast(runs)
	if !r.who.Role.May(service.RoleOperator) {
		d.Recurring.Task.Body = nil
	}
	for _, o := range d.Next {
		d.Upcoming = append(d.Upcoming, upcoming{o, r.lang.text(o.At.Format("Mon")) + o.At.Format(" 2006-01-02 15:04:05 MST")})
	}
	d.Misfire, d.Overlap = r.lang.missed(t), r.lang.text("run the next one as well")
	if t.Overlap == schedule.OverlapSkip {
		d.Overlap = r.lang.text("skip the next one")
	}
	if r.form.Get("done") == "put" {
		d.Notice = "The recurring task was saved."
	}
	const entries = 20
	if d.Audit, err = p.svc.Audit(r.Context(), r.who.Identity, name, "", entries); err != nil {
		d.Audit = nil // show the task even without its audit
	}
	return answer{name: "recurring-task", title: r.lang.text("Recurring task") + " " + middle(40, name), data: d}, nil
}

// missed describes what happens to the runs of r that were missed in an outage.
func (l *language) missed(r schedule.Recurring) string {
	switch r.Misfire {
	case schedule.MisfireSkip:
		return l.text("run none")
	case schedule.MisfireAll:
		return l.text("run all, at most the last %s", shown.Number(r.MisfireLimit))
	default:
		return l.text("run the last one")
	}
}

func (p *Pages) askRecurringAct(name string) handler {
	return func(r *request) (answer, error) {
		t, err := p.svc.RecurringTask(r.Context(), r.who.Identity, r.form.Get("name"))
		if err != nil {
			return answer{}, err
		}
		a := recurringActs[name]
		return answer{name: "task-act", title: r.lang.text(a.label), data: actData{
			Label: a.label, Question: a.question, Path: "recurring-" + name, IDField: "name", ID: t.Name,
			BackHref: link("recurring-task", "name", t.Name), Danger: name == "delete",
			Detail: r.lang.say("%s, for %s", isolated(shown.Line(taskview.Timetable(t))), isolated(shown.Line(t.Task.Destination().String()))),
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
		case "run":
			var id string
			id, err = p.svc.RunRecurring(ctx, who, task)
			to = link("task", "id", id, "done", "scheduled")
		}
		return answer{to: to}, err
	}
}

// askRecurring shows the form for a new or an existing recurring task.
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
	return answer{name: "recurring-edit", title: r.lang.text("Recurring task"), data: d}, nil
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

func (p *Pages) putRecurring(r *request) (answer, error) {
	in := fields{request: r}
	x := schedule.Recurring{
		Name: r.form.Get("name"), Cron: r.get("cron"), TimeZone: r.get("time-zone"), Misfire: schedule.Misfire(r.get("misfire")), Overlap: schedule.Overlap(r.get("overlap")), Paused: r.get("paused") != "",
		Task: readMessage(&in), Every: in.duration("every"), Jitter: in.duration("jitter"), Start: in.instant("start"), End: in.instant("end"),
		MisfireLimit: in.number("misfire-limit", 0, 10_000),
	}
	err := in.err
	if err == nil {
		_, err = p.svc.PutRecurring(r.Context(), r.who.Identity, x)
	}
	if err == nil {
		return answer{to: link("recurring-task", "name", x.Name, "done", "put")}, nil
	}
	problem := describe(err)
	if problem.Status != http.StatusBadRequest {
		return answer{}, err
	}
	return answer{
		name: "recurring-edit", title: r.lang.text("Recurring task"), status: problem.Status,
		data: formData{Fields: r.form, Problem: r.lang.text("%s: %s", r.lang.text(problem.Heading), problem.Detail), Editing: r.get("editing") != "", BackHref: "recurring"},
	}, nil
}
