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

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// act is a change of tasks: its labels and questions, and the fields of its form.
type act struct {
	kind           service.Kind
	label, verb    string // for a change of many tasks
	from           []schedule.Status
	at, by, spread bool // the fields of its form
	danger         bool

	// The following are for a change of one task. The name is empty if only many tasks can be changed this way.
	name, button, question string
	past                   string // "The task was ..."
	preset                 string // the initial value of the field at
}

var (
	pendingOnly = []schedule.Status{schedule.StatusPending}
	failedOnly  = []schedule.Status{schedule.StatusFailed}
	finished    = []schedule.Status{schedule.StatusDone, schedule.StatusCancelled, schedule.StatusExpired, schedule.StatusFailed}
)

// acts lists the changes in the order of their buttons.
var acts = []act{
	{
		kind: service.Fire, label: "Fire", verb: "Fire", from: pendingOnly, spread: true,
		name: "fire", button: "Fire now", question: "Make this task due now?", past: "fired: it is due now",
	},
	{
		kind: service.MoveTo, label: "Move to", verb: "Move", from: pendingOnly, at: true, spread: true,
		name: "move", button: "Move", question: "Move this task to another time?", past: "moved", preset: "+1h",
	},
	{kind: service.MoveBy, label: "Move by", verb: "Move", from: pendingOnly, by: true},
	{
		kind: service.Revive, label: "Revive", verb: "Revive", from: failedOnly, at: true, spread: true,
		name: "revive", button: "Revive", question: "Make this failed task pending again?", past: "revived: it is pending again", preset: "+0s",
	},
	{
		kind: service.Cancel, label: "Cancel", verb: "Cancel", from: pendingOnly, danger: true,
		name: "cancel", button: "Cancel", question: "Cancel this task, so that it has no effect?", past: "cancelled",
	},
	{kind: service.Delete, label: "Delete", verb: "Delete", from: finished, danger: true},
}

func (a act) takes(s schedule.Status) bool { return slices.Contains(a.from, s) }

// noun returns the word for the tasks that the act can change.
func (a act) noun() string {
	if len(a.from) == 1 {
		return string(a.from[0])
	}
	return "finished"
}

// read parses the act's fields.
func (a act) read(r *request) (service.Action, error) {
	in, x := fields{request: r}, service.Action{Kind: a.kind}
	switch {
	case a.kind == service.MoveTo:
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

// bulkData is the data of the page that asks for confirmation before many tasks are changed.
type bulkData struct {
	Kind, Verb, Noun string
	At, By, Spread   bool
	Fields           url.Values // the fields of the action
	Hidden           url.Values // the other fields of the form
	Conditions       []condition
	Count            int64
	Counted          string // a digest of the counted form; empty before counting
	Due              time.Time
	Over             time.Duration
	Again            bool // the form has changed since it was counted
	Danger           bool
	Problem          string
	BackHref         string
}

// readBulk parses the act and its filter. A filter without a status gets the status of the tasks that the act can
// change.
func readBulk(r *request) (act, schedule.Filter, service.Action, error) {
	i := slices.IndexFunc(acts, func(a act) bool { return string(a.kind) == r.get("action") })
	if i < 0 {
		return act{}, schedule.Filter{}, service.Action{}, fieldError("action", "%q; expected one of fire, move-to, move-by, revive, cancel, delete", r.get("action"))
	}
	a := acts[i]
	f, err := readFilter(r)
	switch {
	case err != nil:
		return a, f, service.Action{}, err
	case r.form.Has("selected") && len(f.IDs) == 0:
		return a, f, service.Action{}, fieldError(chosenField, "no task is selected; go back and select at least one")
	case f.Status != "" && !a.takes(f.Status):
		return a, f, service.Action{}, fieldError("status", "%q tasks cannot be changed so; expected %v", f.Status, a.from)
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
	if err == nil { // otherwise the user's input stays
		maps.Copy(form, filter)
	}
	d := bulkData{
		Kind: string(k.kind), Verb: k.verb, At: k.at, By: k.by, Spread: k.spread, Fields: form, Hidden: maps.Clone(form), Conditions: conditions(r, f),
		Due: action.At, Over: action.Spread, Danger: k.danger, BackHref: withQuery("tasks", filter), Noun: k.noun(),
	}
	for name, visible := range map[string]bool{"at": k.at, "by": k.by, "spread": k.spread} {
		if visible {
			d.Hidden.Del(name)
		}
	}
	a := answer{name: "bulk", title: k.label + " tasks"}
	unfilled := k.kind == service.MoveTo && !r.form.Has("at") || k.by && !r.form.Has("by")
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

// doBulk changes the tasks that were counted. If the form differs from the counted one, it counts again instead.
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
	f.WithoutBody = false // WithoutBody is an option of List
	j, err := p.svc.Bulk(r.Context(), r.who.Identity, f, action, count)
	return answer{to: link("job", "id", j.ID)}, err
}

// A page that changes many things counts them first. Its form has a digest of the form that was counted. If the form
// is submitted with other fields, the page counts again.

// unsaid lists the fields of such a form that do not affect what is changed.
var unsaid = []string{service.FormTokenField, "count", "counted", "do", "dry", "zone"}

// typed returns the fields that affect the change, without empty fields and with normalized line breaks.
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

// counted returns the digest of a form. It includes the time that an absolute time was parsed to, because "08:00"
// means a different day tomorrow.
func (r *request) counted(form url.Values, at time.Time) string {
	text := form.Encode() + "\n" + r.prefs.zone.String()
	if s := form.Get("at"); s != "" && s[0] != '+' && s[0] != '-' {
		text += "\n" + exact(at)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// count answers the button that counts. It redirects to an address with the same fields, unless that address is too
// long.
func (r *request) count(path string, ask handler) (answer, error) {
	form := typed(r.form)
	if path == "requeue" {
		r.form.Set("dry", "1")
		form.Set("dry", "1")
	}
	if to := withQuery(path, form); len(to) <= maxNext {
		return answer{to: to}, nil
	}
	return ask(r)
}

// recounted marks a page that shows a form again because it has changed.
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
