package page

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

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
