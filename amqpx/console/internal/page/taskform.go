package page

import (
	"cmp"
	"encoding/base64"
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
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Encodings of a body in a form.
const (
	encodingText   = "text"
	encodingBase64 = "base64"
)

// writeMessage fills the fields of a form with a task's message. A body with carriage returns is
// written as base64, because browsers send every line break as CRLF.
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

// readMessage reads them back.
func readMessage(r *request) (schedule.Task, error) {
	t := schedule.Task{
		Queue: r.get("queue"), Exchange: r.get("exchange"), RoutingKey: r.get("routing-key"), ContentType: r.get("content-type"), Type: r.get("type"),
		CorrelationID: r.get("correlation-id"), Body: []byte(r.form.Get("body")), Tags: lines(r.form.Get("tags")),
	}
	var err error
	if r.get("encoding") == encodingBase64 {
		if t.Body, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(r.form.Get("body")), "")); err != nil {
			return t, fieldError("body", "it is not base64: %v", err)
		}
	}
	if s := r.get("priority"); s != "" {
		n, err := strconv.ParseUint(s, 10, 8)
		if err != nil {
			return t, fieldError("priority", "%q; expected a number from 0 to 255", s)
		}
		t.Priority = uint8(n)
	}
	if t.ExpiresAfter, err = r.duration("expires-after"); err != nil {
		return t, err
	}
	for _, line := range lines(r.form.Get("headers")) {
		k, v, ok := strings.Cut(line, ":")
		if !ok {
			return t, fieldError("headers", "%q; expected lines such as name: value", line)
		}
		if t.Headers == nil {
			t.Headers = map[string]string{}
		}
		t.Headers[strings.TrimSpace(k)] = strings.TrimSpace(v)
	}
	return t, nil
}

// lines returns the lines that are not empty.
func lines(s string) []string {
	var list []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			list = append(list, line)
		}
	}
	return list
}

// duration reads a field; 0 if it is empty.
func (r *request) duration(name string) (time.Duration, error) {
	s := r.get(name)
	if s == "" {
		return 0, nil
	}
	d, err := topology.ParseDuration(s)
	if err != nil {
		return 0, fieldError(name, "%v", err)
	}
	return d, nil
}

// expiry returns a duration for a field; empty for 0.
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
	Editing  bool   // an existing recurring task
	From     string // the task it copies
	BackHref string
}

// askNew is the form for a task, filled in from the URL or from the task "copy".
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

// readUnique reads how a task treats others of its unique key.
func readUnique(r *request, n *service.NewTask) (err error) {
	n.UniqueKey, n.Unique.OnPending = r.form.Get("unique-key"), schedule.OnPending(r.get("on-pending"))
	if n.Unique.MaxWait, err = r.duration("max-wait"); err != nil {
		return err
	}
	n.Unique.Cooldown, err = r.duration("cooldown")
	return err
}

func (p *Pages) doNew(r *request) (answer, error) {
	t, err := readMessage(r)
	if err == nil {
		t.ID = r.form.Get("id")
		t.DeliverAt, err = r.required("at")
	}
	n := service.NewTask{Task: t}
	if err == nil {
		err = readUnique(r, &n)
	}
	created, done := true, "scheduled"
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
