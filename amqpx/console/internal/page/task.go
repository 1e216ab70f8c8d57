package page

import (
	"cmp"
	"encoding/base64"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// taskData is one task with its history.
type taskData struct {
	service.TaskDetail

	Events  []event
	Acts    []actLink
	Notice  string // what was just done
	Problem string // why the change was refused
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

// taskPage shows a task and, if refused is not nil, the reason why a change of it was refused.
func (p *Pages) taskPage(r *request, id string, refused error) (answer, error) {
	t, err := p.svc.Task(r.Context(), r.who.Identity, id)
	if err != nil {
		return answer{}, err
	}
	d := taskData{TaskDetail: t, Events: history(t)}
	if !r.who.Role.May(service.RoleOperator) {
		d.Task.Body = nil
	}
	for _, a := range acts {
		if r.who.Role.May(service.RoleOperator) && a.name != "" && a.takes(t.Task.Status) {
			d.Acts = append(d.Acts, actLink{a.name, a.button, "task-" + a.name})
		}
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

// uniqueNotices describe the outcomes of scheduling a task with a unique key, on the page of the existing task.
var uniqueNotices = map[schedule.UniqueOutcome]string{
	schedule.UniqueCreated:    "The task was scheduled.",
	schedule.UniqueKept:       "This task of the unique key was pending, and was kept as it is.",
	schedule.UniqueReplaced:   "This task of the unique key was pending, and was replaced.",
	schedule.UniquePushedBack: "This task of the unique key was pending, and was pushed back.",
	schedule.UniqueRefused:    "Nothing was scheduled: this task of the unique key is running, or was done within the cooldown.",
}

// actLink links to a change of one task.
type actLink struct{ Name, Label, Path string }

// history returns the known events of a task in chronological order.
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
		add(x.DueSince(), "due", "")
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

// actData is the data of the page that asks for confirmation before one thing is changed.
type actData struct {
	Label, Question, Path string
	IDField, ID           string
	At                    string // the value of the field at; empty if there is no such field
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
			Detail: "for " + shown.Line(t.Task.Destination().String()) + ", due " + r.stamp(t.Task.DueSince()).Text + " (" + shown.FromNow(t.Task.DueSince(), r.now) + ")",
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

// Encodings of a body in a form.
const (
	encodingText   = "text"
	encodingBase64 = "base64"
)

// writeMessage fills in the fields of a form with a task's message. It encodes a body with carriage returns as
// base64, because browsers submit every line break as CRLF.
func writeMessage(v url.Values, t schedule.Task) {
	encoding, body := encodingText, string(t.Body)
	if !utf8.Valid(t.Body) || strings.ContainsAny(body, "\x00\r") {
		encoding, body = encodingBase64, base64.StdEncoding.EncodeToString(t.Body)
	}
	priority := ""
	if t.Priority > 0 {
		priority = strconv.Itoa(int(t.Priority))
	}
	lines := make([]string, 0, len(t.Headers))
	for _, k := range slices.Sorted(maps.Keys(t.Headers)) {
		lines = append(lines, k+": "+t.Headers[k])
	}
	for name, value := range map[string]string{
		"queue": t.Queue, "exchange": t.Exchange, "routing-key": t.RoutingKey, "body": body, "encoding": encoding, "content-type": t.ContentType, "type": t.Type,
		"correlation-id": t.CorrelationID, "priority": priority, "expires-after": expiry(t.ExpiresAfter), "headers": strings.Join(lines, "\n"), "tags": strings.Join(t.Tags, "\n"),
	} {
		v.Set(name, value)
	}
}

// readMessage parses the fields that writeMessage fills in.
func readMessage(in *fields) schedule.Task {
	t := schedule.Task{
		Queue: in.get("queue"), Exchange: in.get("exchange"), RoutingKey: in.get("routing-key"), ContentType: in.get("content-type"), Type: in.get("type"),
		CorrelationID: in.get("correlation-id"), Body: []byte(in.form.Get("body")), Tags: lines(in.form.Get("tags")),
	}
	if in.get("encoding") == encodingBase64 {
		var err error
		if t.Body, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(in.form.Get("body")), "")); err != nil {
			in.failf("body", "it is not base64: %v", err)
		}
	}
	if s := in.get("priority"); s != "" {
		n, err := strconv.ParseUint(s, 10, 8)
		if err != nil {
			in.failf("priority", "%q; expected a number from 0 to 255", s)
		}
		t.Priority = uint8(n)
	}
	t.ExpiresAfter = in.duration("expires-after")
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

// formData is a form with the values of its fields.
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
		writeMessage(d.Fields, t.Task)
		d.From, d.BackHref = id, link("task", "id", id)
	}
	maps.Copy(d.Fields, r.form)
	return answer{name: "task-new", title: "Schedule a task", data: d}, nil
}

func (p *Pages) doNew(r *request) (answer, error) {
	in := fields{request: r}
	t := readMessage(&in)
	t.ID, t.DeliverAt, t.UniqueKey = r.form.Get("id"), in.required("at"), r.form.Get("unique-key")
	n := service.NewTask{Task: t, Unique: schedule.Unique{OnPending: schedule.OnPending(r.get("on-pending")), MaxWait: in.duration("max-wait"), Cooldown: in.duration("cooldown")}}
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
		name: "task-new", title: "Schedule a task", status: problem.Status,
		data: formData{Fields: r.form, Problem: problem.Heading + ": " + problem.Detail, BackHref: "tasks"},
	}, nil
}
