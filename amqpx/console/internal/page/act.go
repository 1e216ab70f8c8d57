package page

import (
	"slices"
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
func (a act) read(r *request) (x service.Action, err error) {
	x.Kind = a.kind
	switch {
	case a.kind == service.MoveTo:
		x.At, err = r.required("at")
	case a.at:
		x.At, err = r.instant("at")
		if x.At.IsZero() {
			x.At = r.now
		}
	case a.by:
		x.By, err = shift(r.get("by"))
	}
	if err == nil && a.spread {
		x.Spread, err = r.duration("spread")
	}
	return x, err
}

// shift parses a duration with a sign.
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
