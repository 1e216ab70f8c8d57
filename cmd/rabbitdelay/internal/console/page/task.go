package page

import (
	"cmp"
	"encoding/base64"
	"errors"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// taskData is one task with its history.
type taskData struct {
	service.TaskDetail

	Events  []event
	Acts    []actLink
	Notice  string // what was just done
	Problem string // why the change was rejected
}

// event is a line of a task's history.
type event struct {
	At   time.Time
	Text template.HTML
	Note string
}

func (p *Pages) task(r *request) (answer, error) {
	return p.taskPage(r, r.form.Get("id"), nil)
}

// taskPage shows a task and, if refused is not nil, why a change to it was rejected.
func (p *Pages) taskPage(r *request, id string, refused error) (answer, error) {
	t, err := p.svc.Task(r.Context(), r.who.Identity, id)
	if err != nil {
		return answer{}, err
	}
	d := taskData{TaskDetail: t, Events: history(r.lang, t)}
	if r.lang.translates() && t.Trace.Task != nil {
		d.Why = t.Trace.ExplainIn(r.lang.text)
	}
	if !r.who.Role.May(service.RoleOperator) {
		d.Task.Body = nil
	}
	for _, a := range acts {
		if r.who.Role.May(service.RoleOperator) && a.name != "" && a.takes(t.Task.Status) {
			d.Acts = append(d.Acts, actLink{a.name, a.press, "task-" + a.name})
		}
	}
	a := answer{name: "task", title: r.lang.text("Task") + " " + middle(40, id)}
	if done := r.URL.Query().Get("done"); refused == nil && done != "" {
		for _, did := range append(acts, act{name: "scheduled", past: "The task was scheduled."}) {
			if did.name == done {
				d.Notice = did.past
			}
		}
		d.Notice = cmp.Or(d.Notice, uniqueNotices[schedule.UniqueOutcome(done)])
	}
	if refused != nil {
		problem := describe(refused)
		d.Problem, a.status = r.lang.text("%s: %s", r.lang.text(problem.Heading), problem.Detail), problem.Status
	}
	a.data = d
	return a, nil
}

// uniqueNotices describe the outcomes of scheduling a task with a unique key, on the page of the existing task.
var uniqueNotices = map[schedule.UniqueOutcome]string{
	schedule.UniqueCreated:    "The task was scheduled.",
	schedule.UniqueKept:       "This task with the same unique key was pending and was kept unchanged.",
	schedule.UniqueReplaced:   "This task with the same unique key was pending and was replaced.",
	schedule.UniquePushedBack: "This task with the same unique key was pending and was postponed.",
	schedule.UniqueRefused:    "Nothing was scheduled, because this task with the same unique key is running, or was done within the cooldown.",
}

// actLink links to a change of one task.
type actLink struct{ Name, Label, Path string }

// history returns the known events of a task in chronological order.
func history(l *language, t service.TaskDetail) []event {
	x := t.Task
	var list []event
	add := func(at time.Time, text template.HTML, note string) {
		if !at.IsZero() {
			list = append(list, event{at, text, note})
		}
	}
	add(x.CreatedAt, l.say("scheduled"), "")
	add(x.SentAt, l.say("sent to the broker (version %s, sent %s)", shown.Number(x.Version), l.plural(int64(x.Sends), "once", "%s times")), "")
	if x.Status == schedule.StatusPending {
		add(x.DueSince(), l.say("due"), "")
	}
	for _, e := range t.Effects {
		add(e.DoneAt, l.say("handled in %s (version %s)", isolated(shown.Line(e.Queue)), shown.Number(e.Version)), "")
		add(e.LeaseUntil, l.say("end of the lease of a handler of %s", isolated(shown.Line(e.Queue))), "")
	}
	for _, rec := range t.Records {
		text := "recorded by %s"
		if rec.Guarded {
			text = "recorded by %s, without the effect"
		}
		add(rec.ProcessedAt, l.say(text, isolated(shown.Line(rec.Scope))), "")
	}
	for _, e := range t.Audit {
		add(e.At, l.say("%s by %s", l.action(e.Action), isolated(shown.Line(e.Who))), e.Detail+e.Error)
	}
	add(x.FinishedAt, l.say(string(x.Status)), "")
	slices.SortStableFunc(list, func(a, b event) int { return a.At.Compare(b.At) })
	return list
}

// actData is the data of the page that asks for confirmation before it changes a single object.
type actData struct {
	Label, Question, Path string
	IDField, ID           string
	At                    string // the initial value of the form field "at"; empty if the form has no such field
	BackHref              string
	Danger                bool
	Detail                template.HTML
	Problem               string
}

func (p *Pages) askTask(a act) handler {
	return func(r *request) (answer, error) {
		t, err := p.svc.Task(r.Context(), r.who.Identity, r.form.Get("id"))
		if err != nil {
			return answer{}, err
		}
		d := actData{
			Label: a.press, Question: a.question, Path: "task-" + a.name, IDField: "id", ID: t.Task.ID, BackHref: link("task", "id", t.Task.ID), Danger: a.danger,
			Detail: r.lang.say("for %s, due %s", isolated(shown.Line(t.Task.Destination().String())), r.lang.when(r.stamp(t.Task.DueSince()))),
		}
		if a.at {
			d.At = cmp.Or(r.get("at"), a.preset)
		}
		if !a.takes(t.Task.Status) {
			d.Problem = r.lang.text("The task is %s, but only %s tasks can be changed in this way.", r.lang.text(string(t.Task.Status)), r.lang.text(a.noun()))
		}
		return answer{name: "task-act", title: r.lang.text(a.press), data: d}, nil
	}
}

func (p *Pages) doTask(a act) handler {
	return func(r *request) (answer, error) {
		id := r.form.Get("id")
		x, err := a.read(r)
		if err == nil {
			_, err = p.svc.Change(r.Context(), r.who.Identity, id, x)
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

// Encodings of a body in a form.
const (
	encodingText   = "text"
	encodingBase64 = "base64"
)

// messageFields returns the fields of a form that describe a message.
func messageFields() []string {
	known := []string{"queue", "exchange", "routing-key", "body", "encoding", "headers", "tags"}
	for _, p := range taskview.Properties {
		known = append(known, p.Flag())
	}
	return known
}

// writeMessage fills in the fields of a form with a task's message. It encodes a body with carriage returns as
// base64, because browsers submit every line break as CRLF.
func writeMessage(v url.Values, t schedule.Task) {
	encoding, body := encodingText, string(t.Body)
	if !utf8.Valid(t.Body) || strings.ContainsAny(body, "\x00\r") {
		encoding, body = encodingBase64, base64.StdEncoding.EncodeToString(t.Body)
	}
	lines := make([]string, 0, len(t.Headers))
	for _, k := range slices.Sorted(maps.Keys(t.Headers)) {
		lines = append(lines, k+": "+t.Headers[k])
	}
	for name, value := range map[string]string{
		"queue": t.Queue, "exchange": t.Exchange, "routing-key": t.RoutingKey, "body": body, "encoding": encoding,
		"headers": strings.Join(lines, "\n"), "tags": strings.Join(t.Tags, "\n"),
	} {
		v.Set(name, value)
	}
	for _, p := range taskview.Properties {
		v.Set(p.Flag(), p.Of(t))
	}
}

// readMessage parses the fields that writeMessage fills in.
func readMessage(in *fields) schedule.Task {
	t := schedule.Task{
		Queue: in.get("queue"), Exchange: in.get("exchange"), RoutingKey: in.get("routing-key"),
		Body: []byte(in.form.Get("body")), Tags: lines(in.form.Get("tags")),
	}
	if in.get("encoding") == encodingBase64 {
		var err error
		if t.Body, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(in.form.Get("body")), "")); err != nil {
			in.failf("body", "expected base64: %v", err)
		}
	}
	for _, p := range taskview.Properties {
		if err := p.Set(&t, in.get(p.Flag())); err != nil {
			in.failf(p.Flag(), "%v", err)
		}
	}
	for _, line := range lines(in.form.Get("headers")) {
		k, v, ok := strings.Cut(line, ":")
		if !ok {
			in.failf("headers", "%q; expected lines such as name: value", line)
		}
		if t.Headers == nil {
			t.Headers = map[string]string{}
		}
		t.Headers[strings.TrimSpace(k)] = strings.TrimSpace(v)
	}
	return t
}

// lines returns the lines of s that are not empty, without the spaces around them.
func lines(s string) []string {
	var list []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			list = append(list, line)
		}
	}
	return list
}

// expiry formats a duration for a field. Zero is an empty string.
func expiry(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return topology.FormatDuration(d)
}

// formData is the data of a form with the values of its fields.
type formData struct {
	Fields   url.Values
	Problem  string
	Editing  bool   // the form edits an existing recurring task
	From     string // the id of the task that is copied
	BackHref string
}

// askNew shows the form for a new task, filled in from the URL or from the task whose id is in "copy".
func (p *Pages) askNew(r *request) (answer, error) {
	d := formData{Fields: url.Values{}, BackHref: "tasks"}
	if id := r.form.Get("copy"); id != "" {
		t, err := p.svc.Task(r.Context(), r.who.Identity, id)
		if err != nil {
			return answer{}, err
		}
		writeMessage(d.Fields, t.Task.Task)
		d.From, d.BackHref = id, link("task", "id", id)
	}
	maps.Copy(d.Fields, r.form)
	return answer{name: "task-new", title: r.lang.text("Schedule a task"), data: d}, nil
}

func (p *Pages) doNew(r *request) (answer, error) {
	in := fields{request: r}
	t := readMessage(&in)
	t.ID, t.DeliverAt, t.UniqueKey = r.form.Get("id"), in.required("at"), r.form.Get("unique-key")
	n := service.NewTask{Task: t, Unique: schedule.Unique{OnConflict: schedule.ConflictPolicy(r.get("on-conflict")), MaxWait: in.duration("max-wait"), Cooldown: in.duration("cooldown")}}
	created, done := true, "scheduled"
	err := in.err
	if err == nil {
		results, failed := p.svc.Schedule(r.Context(), r.who.Identity, []service.NewTask{n})
		if err = failed; err == nil && len(results) > 0 {
			err, t.ID, created = results[0].Err, results[0].ID, results[0].Created
			done = cmp.Or(string(results[0].Outcome), done)
		}
	}
	if err == nil && !created && n.UniqueKey == "" {
		err = &schedule.ExistsError{IDs: []string{t.ID}}
	}
	if err == nil {
		return answer{to: link("task", "id", t.ID, "done", done)}, nil
	}
	problem := describe(err)
	if problem.Status >= http.StatusInternalServerError || problem.Status == http.StatusForbidden {
		return answer{}, err
	}
	return answer{
		name: "task-new", title: r.lang.text("Schedule a task"), status: problem.Status,
		data: formData{Fields: r.form, Problem: r.lang.text("%s: %s", r.lang.text(problem.Heading), problem.Detail), BackHref: "tasks"},
	}, nil
}
