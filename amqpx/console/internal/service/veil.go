package service

import (
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// Hidden replaces a value that only an operator may see.
const Hidden = "(hidden)"

// harmless reports whether a header holds nothing confidential.
func harmless(name string) bool {
	name = strings.ToLower(name)
	return name == "traceparent" || strings.HasPrefix(name, "rabbitdelay-") || strings.HasPrefix(name, "x-death") || strings.HasPrefix(name, "x-first-death")
}

// veilTask hides from viewers the body and the values of headers.
func veilTask(who Identity, t *schedule.Task) {
	if !who.Role.May(RoleOperator) {
		t.Body, t.Headers = nil, veilHeaders(t.Headers, Hidden)
	}
}

// veilDead does the same for messages.
func veilDead(who Identity, list []inspect.DeadLetter) {
	if who.Role.May(RoleOperator) {
		return
	}
	for i := range list {
		d := *list[i].Delivery
		d.Body, d.Headers = nil, veilHeaders[any](d.Headers, Hidden)
		list[i].Delivery = &d
	}
}

func veilHeaders[V any](headers map[string]V, hidden V) map[string]V {
	out := make(map[string]V, len(headers))
	for name, value := range headers {
		if !harmless(name) {
			value = hidden
		}
		out[name] = value
	}
	return out
}

// veilOverview hides from viewers why something fails.
func veilOverview(who Identity, o Overview) Overview {
	if !who.Role.May(RoleOperator) && o.Problem != "" {
		o.Problem = untold
	}
	o.Status.Unseen = veilUnseen(who, o.Status.Unseen)
	return o
}

func veilUnseen(who Identity, list []doctor.Unseen) []doctor.Unseen {
	if who.Role.May(RoleOperator) {
		return list
	}
	list = slices.Clone(list)
	for i := range list {
		list[i].Why = untold
	}
	return list
}

// veilEntry hides from viewers why something was not done.
func veilEntry(who Identity, e *Entry) {
	if e.Error != "" && !who.Role.May(RoleOperator) {
		e.Error = Hidden
	}
}
