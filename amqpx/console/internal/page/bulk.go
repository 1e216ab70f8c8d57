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

// act is a change of tasks: what its buttons and questions say, and which fields it has.
type act struct {
	kind           service.Kind
	label, verb    string // for many tasks
	from           []schedule.Status
	at, by, spread bool // its fields
	danger         bool

	// For one task; name is empty if only many tasks can be changed so.
	name, button, question string
	past                   string // "The task was ..."
	preset                 string // in the field at
}

var (
	pendingOnly = []schedule.Status{schedule.StatusPending}
	failedOnly  = []schedule.Status{schedule.StatusFailed}
	finished    = []schedule.Status{schedule.StatusDone, schedule.StatusCancelled, schedule.StatusExpired, schedule.StatusFailed}
)

// acts are in the order of their buttons.
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

// noun returns the word for the tasks that the act takes.
func (a act) noun() string {
	if len(a.from) == 1 {
		return string(a.from[0])
	}
	return "finished"
}

// read reads the act's fields.
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

// bulkData asks whether to change many tasks.
type bulkData struct {
	Kind, Verb, Noun string
	At, By, Spread   bool
	Fields           url.Values // of the action
	Hidden           url.Values // of the rest of the form
	Conditions       []condition
	Count            int64
	Counted          string // a digest of what was counted; empty before that
	Due              time.Time
	Over             time.Duration
	Again            bool // something else had been counted
	Danger           bool
	Problem          string
	BackHref         string
}

// readBulk reads the act with its filter, which without a status takes what the act takes.
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

// askBulk counts, and asks. An act with fields counts once they are filled in.
func (p *Pages) askBulk(r *request) (answer, error) {
	k, f, action, err := readBulk(r)
	if k.kind == "" {
		return answer{}, err
	}
	filter, form := filterValues(f), typed(r.form)
	if err == nil { // otherwise the reader's own words stay
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

// doBulk changes what was counted, and no more. It counts anything else again.
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
	f.WithoutBody = false // it belongs to List
	j, err := p.svc.Bulk(r.Context(), r.who.Identity, f, action, count)
	return answer{to: link("job", "id", j.ID)}, err
}

// A page that changes many things counts them first. Its form has a digest of what was counted;
// if it is sent with other fields, it is counted again.

// unsaid are the fields of such a form that do not matter for what is done.
var unsaid = []string{service.FormTokenField, "count", "counted", "do", "dry", "zone"}

// typed returns the fields that matter, without empty ones and with one kind of line break.
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

// counted returns the digest of a form. An absolute time is in it as it was understood, because
// "08:00" is another day tomorrow.
func (r *request) counted(form url.Values, at time.Time) string {
	text := form.Encode() + "\n" + r.prefs.zone.String()
	if s := form.Get("at"); s != "" && s[0] != '+' && s[0] != '-' {
		text += "\n" + exact(at)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// count answers a form whose button counts, by an address that says the same if that is not too
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

// recounted marks the page that shows a form again.
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
