package page

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// bulkKind is one thing that can be done to many tasks.
type bulkKind struct {
	kind, label, verb string
	from              []schedule.Status
	// at, by and spread say which of the fields it has.
	at, by, spread bool
}

var bulkKinds = []bulkKind{
	{kind: "fire", label: "Fire", verb: "Fire", from: []schedule.Status{schedule.StatusPending}, spread: true},
	{kind: "move-to", label: "Move to", verb: "Move", from: []schedule.Status{schedule.StatusPending}, at: true, spread: true},
	{kind: "move-by", label: "Move by", verb: "Move", from: []schedule.Status{schedule.StatusPending}, by: true},
	{kind: "revive", label: "Revive", verb: "Revive", from: []schedule.Status{schedule.StatusFailed}, at: true, spread: true},
	{kind: "cancel", label: "Cancel", verb: "Cancel", from: []schedule.Status{schedule.StatusPending}},
	{
		kind: "delete", label: "Delete", verb: "Delete",
		from: []schedule.Status{schedule.StatusDone, schedule.StatusCancelled, schedule.StatusExpired, schedule.StatusFailed},
	},
}

func (b bulkKind) takes(s schedule.Status) bool { return slices.Contains(b.from, s) }

// bulkData is the question whether to change many tasks.
type bulkData struct {
	Kind, Verb, Noun string
	At, By, Spread   bool
	Fields           url.Values // what the action's fields have
	Hidden           url.Values // the rest of the form
	Conditions       []condition
	Count            int64
	Counted          string // what was counted; empty if nothing was
	Due              time.Time
	Over             time.Duration
	Again            bool // something else was counted before
	Danger           bool
	Problem          string
	BackHref         string
}

// readBulk reads the action with its filter. Of a task without a status it takes
// what the action takes.
func readBulk(r *request) (bulkKind, schedule.Filter, service.BulkAction, error) {
	var a service.BulkAction
	i := slices.IndexFunc(bulkKinds, func(b bulkKind) bool { return b.kind == r.get("action") })
	if i < 0 {
		return bulkKind{}, schedule.Filter{}, a, fieldError("action", "%q; expected one of fire, move-to, move-by, revive, cancel, delete", r.get("action"))
	}
	kind := bulkKinds[i]
	f, err := readFilter(r)
	if err != nil {
		return kind, f, a, err
	}
	if f.Status != "" && !kind.takes(f.Status) {
		return kind, f, a, fieldError("status", "%q tasks cannot be changed so; expected %v", f.Status, kind.from)
	}
	if f.Status == "" && len(kind.from) == 1 {
		f.Status = kind.from[0]
	}
	a, err = bulkAction(r, kind)
	return kind, f, a, err
}

func bulkAction(r *request, kind bulkKind) (a service.BulkAction, err error) {
	a.Kind = kind.kind
	if kind.at {
		if a.At, err = r.instant("at"); err != nil {
			return a, err
		}
		if a.At.IsZero() && kind.kind == "move-to" {
			return a, fieldError("at", "no instant; expected one such as tomorrow 08:00 Europe/Berlin or +90m")
		}
		if a.At.IsZero() {
			a.At = r.now
		}
	}
	if kind.by {
		if a.By, err = shift(r.get("by")); err != nil {
			return a, err
		}
	}
	if kind.spread && r.get("spread") != "" {
		if a.Spread, err = topology.ParseDuration(r.get("spread")); err != nil {
			return a, fieldError("spread", "%v", err)
		}
	}
	return a, nil
}

// shift is a duration with a sign.
func shift(s string) (time.Duration, error) {
	digits := strings.TrimLeft(s, "+-")
	d, err := topology.ParseDuration(digits)
	if err != nil || d == 0 || len(s)-len(digits) > 1 {
		return 0, fieldError("by", "%q; expected a duration other than 0 such as 2h or -1d", s)
	}
	if strings.HasPrefix(s, "-") {
		d = -d
	}
	return d, nil
}

// askBulk counts, and asks. What has fields to fill in counts once they are.
func (p *Pages) askBulk(r *request) (answer, error) {
	kind, f, action, err := readBulk(r)
	if kind.kind == "" {
		return answer{}, err
	}
	filter, form := filterValues(f), typed(r.form)
	if err == nil { // else what was written stays
		maps.Copy(form, filter)
	}
	d := bulkData{
		Kind: kind.kind, Verb: kind.verb, At: kind.at, By: kind.by, Spread: kind.spread, Fields: form, Hidden: maps.Clone(form), Conditions: conditions(r, f),
		Due: action.At, Over: action.Spread, Danger: kind.kind == "cancel" || kind.kind == "delete", BackHref: withQuery("tasks", filter), Noun: noun(kind),
	}
	for name, is := range map[string]bool{"at": kind.at, "by": kind.by, "spread": kind.spread} {
		if is {
			d.Hidden.Del(name)
		}
	}
	a := answer{name: "bulk", title: kind.label + " tasks"}
	unfilled := kind.at && kind.kind == "move-to" && !r.form.Has("at") || kind.by && !r.form.Has("by")
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

func noun(k bulkKind) string {
	if len(k.from) == 1 {
		return string(k.from[0])
	}
	return "finished"
}

// doBulk changes what was counted, and no more. Anything else it counts again.
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
