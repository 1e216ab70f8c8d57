package page

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// act is a way to change tasks: its labels and questions, and the fields of its form.
type act struct {
	kind           change.Kind
	label          string // the label of a change of many tasks
	heading        string
	ask, button    [2]string // for one task, and for any other number of tasks
	from           []schedule.Status
	at, by, spread bool // whether its form has these fields
	danger         bool

	// The following are for a change of a single task. The name is empty if the act is only for many tasks.
	name, press, question string
	past                  string // the notice after the change
	preset                string // the initial value of the field at
}

var (
	pendingOnly     = []schedule.Status{schedule.StatusPending}
	failedOnly      = []schedule.Status{schedule.StatusFailed}
	askReschedule   = [2]string{"Reschedule %s pending task?", "Reschedule %s pending tasks?"}
	pressReschedule = [2]string{"Reschedule %s task", "Reschedule %s tasks"}

	finished = []schedule.Status{schedule.StatusDone, schedule.StatusCancelled, schedule.StatusExpired, schedule.StatusFailed}
)

// acts lists the ways to change tasks, in the order of their buttons.
var acts = []act{
	{
		kind: change.RunNow, label: "Run", heading: "Run pending tasks", from: pendingOnly, spread: true,
		ask: [2]string{"Run %s pending task?", "Run %s pending tasks?"}, button: [2]string{"Run %s task", "Run %s tasks"},
		name: "run", press: "Run now", question: "Make this task due now?", past: "The task is now due.",
	},
	{
		kind: change.Reschedule, label: "Reschedule to", heading: "Reschedule pending tasks", from: pendingOnly, at: true, spread: true,
		ask: askReschedule, button: pressReschedule,
		name: "reschedule", press: "Reschedule", question: "Reschedule this task?", past: "The task was rescheduled.", preset: "+1h",
	},
	{
		kind: change.RescheduleBy, label: "Reschedule by", heading: "Reschedule pending tasks", from: pendingOnly, by: true,
		ask: askReschedule, button: pressReschedule,
	},
	{
		kind: change.Revive, label: "Revive", heading: "Revive failed tasks", from: failedOnly, at: true, spread: true,
		ask: [2]string{"Revive %s failed task?", "Revive %s failed tasks?"}, button: [2]string{"Revive %s task", "Revive %s tasks"},
		name: "revive", press: "Revive", question: "Make this failed task pending again?", past: "The task was revived and is pending again.", preset: "+0s",
	},
	{
		kind: change.Cancel, label: "Cancel", heading: "Cancel pending tasks", from: pendingOnly, danger: true,
		ask: [2]string{"Cancel %s pending task?", "Cancel %s pending tasks?"}, button: [2]string{"Cancel %s task", "Cancel %s tasks"},
		name: "cancel", press: "Cancel", question: "Cancel this task?", past: "The task was cancelled.",
	},
	{
		kind: change.Delete, label: "Delete", heading: "Delete finished tasks", from: finished, danger: true,
		ask: [2]string{"Delete %s finished task?", "Delete %s finished tasks?"}, button: [2]string{"Delete %s task", "Delete %s tasks"},
	},
}

func (a act) takes(s schedule.Status) bool { return slices.Contains(a.from, s) }

// noun returns the word for the tasks that the act can change.
func (a act) noun() string {
	if len(a.from) == 1 {
		return string(a.from[0])
	}
	return "finished"
}

// fields returns the fields of the form that changes a single task.
func (a act) fields() []string {
	if a.at {
		return []string{"id", "at"}
	}
	return []string{"id"}
}

// read parses the fields of the act's form.
func (a act) read(r *request) (change.Action, error) {
	in, x := fields{request: r}, change.Action{Kind: a.kind}
	switch {
	case a.kind == change.Reschedule:
		x.At = in.required("at")
	case a.at:
		if x.At = in.instant("at"); x.At.IsZero() {
			x.At = r.now
		}
	case a.by:
		s := r.get("by")
		digits := strings.TrimLeft(s, "+-")
		d, err := topology.ParseDuration(digits)
		if err != nil || d == 0 || len(s)-len(digits) > 1 {
			return x, fieldError("by", "%q; expected a duration other than 0 such as 2h or -1d", s)
		}
		if x.By = d; s[0] == '-' {
			x.By = -d
		}
	}
	if a.spread {
		x.Spread = in.duration("spread")
	}
	return x, in.err
}

// bulkData is the data of the page that asks for confirmation before it changes many tasks.
type bulkData struct {
	Kind           string
	Heading        string    // the heading before the tasks are counted
	Ask, Button    [2]string // the question and the button for one task, and for any other number of tasks
	At, By, Spread bool
	Fields         url.Values // all fields of the form except those in unsaid, as typed
	Hidden         url.Values // the fields that the form sends as hidden inputs, because it has no visible ones for them
	Conditions     []condition
	Count          int64
	Counted        string // a digest of the counted form; empty before counting
	Due            time.Time
	Over           time.Duration
	Again          bool // the form has changed since it was counted
	Danger         bool
	Problem        string
	BackHref       string
}

// readBulk parses the act and its filter. If the act can change tasks of only one status, a filter without a status
// gets that status.
func readBulk(r *request) (act, schedule.Filter, change.Action, error) {
	i := slices.IndexFunc(acts, func(a act) bool { return string(a.kind) == r.get("action") })
	if i < 0 {
		return act{}, schedule.Filter{}, change.Action{}, fieldError("action", "%q; expected one of run, reschedule, reschedule-by, revive, cancel, delete", r.get("action"))
	}
	a := acts[i]
	f, err := readFilter(r)
	switch {
	case err != nil:
		return a, f, change.Action{}, err
	case r.form.Has("selected") && len(f.IDs) == 0:
		return a, f, change.Action{}, fieldError(chosenField, "no task is selected; go back and select at least one")
	case f.Status != "" && !a.takes(f.Status):
		return a, f, change.Action{}, fieldError("status", "%q tasks cannot be changed in this way; expected one of %v", f.Status, a.from)
	case f.Status == "" && len(a.from) == 1:
		f.Status = a.from[0]
	}
	x, err := a.read(r)
	return a, f, x, err
}

// askBulk counts the tasks and asks for confirmation. It does not count until the act's fields are filled in.
func (p *Pages) askBulk(r *request) (answer, error) {
	k, f, action, err := readBulk(r)
	if k.kind == "" {
		return answer{}, err
	}
	filter, form := filterValues(f), typed(r.form)
	if err == nil { // otherwise, the form keeps what the user has typed
		maps.Copy(form, filter)
	}
	d := bulkData{
		Kind: string(k.kind), Heading: r.lang.text(k.heading), Ask: k.ask, Button: k.button, At: k.at, By: k.by, Spread: k.spread, Fields: form, Hidden: maps.Clone(form), Conditions: conditions(r, f),
		Due: action.At, Over: action.Spread, Danger: k.danger, BackHref: withQuery("tasks", filter),
	}
	for name, visible := range map[string]bool{"at": k.at, "by": k.by, "spread": k.spread} {
		if visible {
			d.Hidden.Del(name)
		}
	}
	a := answer{name: "bulk", title: r.lang.text(k.heading)}
	unfilled := k.kind == change.Reschedule && !r.form.Has("at") || k.by && !r.form.Has("by")
	switch {
	case unfilled:
	case err != nil:
		d.Problem, a.status = err.Error(), describe(err).Status
	default:
		if d.Count, err = p.svc.BulkCount(r.Context(), f, action); err != nil {
			return a, err
		}
		d.Counted = r.counted(form, action.At)
	}
	a.data = d
	return a, nil
}

// doBulk changes the counted tasks. If the form has changed since the count, doBulk counts again instead.
func (p *Pages) doBulk(r *request) (answer, error) {
	if r.form.Get("do") == "count" {
		return r.count("bulk", p.askBulk)
	}
	_, f, action, err := readBulk(r)
	if err != nil || r.form.Get("counted") != r.counted(typed(r.form), action.At) {
		return recounted(p.askBulk(r))
	}
	count, err := strconv.ParseInt(r.get("count"), 10, 64)
	if err != nil || count < 1 {
		return answer{}, fieldError("count", "%q; expected the number that was confirmed", r.get("count"))
	}
	f.WithoutBody = false // it only affects lists, and a bulk change reads no bodies anyway
	j, err := p.svc.Bulk(r.Context(), r.who.Identity, f, action, count)
	return answer{to: link("job", "id", j.ID)}, err
}

// unsaid lists the fields of a confirmation form that do not affect what is changed.
var unsaid = []string{service.FormTokenField, "count", "counted", "do", "dry", "zone"}

// typed returns the fields that affect the change, without empty fields and with normalised line breaks.
func typed(form url.Values) url.Values {
	v := url.Values{}
	for name, values := range form {
		if slices.Contains(unsaid, name) {
			continue
		}
		if text := strings.Join(lines(strings.Join(values, "\n")), "\n"); text != "" {
			v.Set(name, text)
		}
	}
	return v
}

// counted returns a digest of a form. A bulk change is counted first, and its confirmation form carries the digest of
// the fields that were counted. If it is submitted with different fields, the page counts again. The digest includes
// the time that an absolute time was parsed to, because "08:00" means a different day tomorrow.
func (r *request) counted(form url.Values, at time.Time) string {
	text := form.Encode() + "\n" + r.prefs.zone.String()
	if s := form.Get("at"); s != "" && s[0] != '+' && s[0] != '-' {
		text += "\n" + exact(at)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// count answers the button that counts tasks or starts a dry run. It redirects to a GET of the same page with the same
// fields. If the URL would be too long, it shows the page directly.
func (r *request) count(path string, ask handler) (answer, error) {
	form := typed(r.form)
	if path != "bulk" {
		r.form.Set("dry", "1")
		form.Set("dry", "1")
	}
	if to := withQuery(path, form); len(to) <= maxNext {
		return answer{to: to}, nil
	}
	return ask(r)
}

// recounted marks a page that shows its form again because the form has changed since it was counted, and gives it the
// status 409 unless it already has one.
func recounted(a answer, err error) (answer, error) {
	switch d := a.data.(type) {
	case bulkData:
		d.Again = d.Problem == ""
		a.data = d
	case requeueData:
		d.Again = d.Problem == ""
		a.data = d
	}
	if a.status == 0 {
		a.status = http.StatusConflict
	}
	return a, err
}
