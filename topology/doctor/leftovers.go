package doctor

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
	"github.com/rabbitdelay/rabbitdelay/topology/plan"
)

// leftover is a delay queue that the configuration does not have: of an older
// layout, or of another process that has another configuration.
type leftover struct {
	queue    topology.Queue
	messages int64
	layout   naming.Layout
}

// leftovers are the delay queues of the prefix that are on the broker and not
// described.
func (x *examination) leftovers() []leftover {
	var out []leftover
	for name, live := range x.snap.Live.Queues {
		layout, ok := naming.LayoutOf(x.cfg.Prefix, name)
		if _, wanted := x.want[name]; !ok || wanted || !live.ArgumentsKnown {
			continue
		}
		q := live.Described(name)
		if !q.IsDelay() {
			continue
		}
		out = append(out, leftover{queue: q, messages: live.Messages, layout: layout})
	}
	slices.SortFunc(out, func(a, b leftover) int { return strings.Compare(a.queue.Name, b.queue.Name) })
	return out
}

// checkLeftovers looks at what the configuration does not have, layout by layout.
func (x *examination) checkLeftovers() {
	for _, queues := range grouped(x.left, func(l leftover) string { return l.layout.Name }) {
		x.leftoverLayout(queues[0].layout.Name, queues)
	}
}

// leftoverLayout judges a layout that is not this configuration's. It may
// belong to another process with the same prefix, so its existence is no
// finding. Messages in it for which no destination is bound are one.
func (x *examination) leftoverLayout(name string, queues []leftover) {
	var full []string
	var messages int64
	for _, l := range queues {
		messages += l.messages
		if l.messages > 0 {
			full = append(full, l.queue.Name)
		}
	}
	if messages == 0 {
		x.notef("%s, drained: yes. It has %s that this configuration does not use; they belong to an older layout or to another process. Once no process uses them:\n%s",
			name, counted(len(queues), "empty delay queue", "empty delay queues"), x.destroy(x.partsOf(name, queues)))
		return
	}
	layout := queues[0].layout
	if x.snap.Live.BindingsKnown && !x.boundFor(layout.Tag) {
		x.found(Finding{
			ID: "leftover-unbound", Severity: SeverityCritical, Objects: full,
			What: fmt.Sprintf("%s in %s of the layout %s, for which no destination is bound.", counted(messages, "message waits", "messages wait"), counted(len(full), "queue", "queues"), name),
			Why:  "They will be parked when they are due, instead of arriving.",
			Mend: "set " + previous(layout, queues) + " in the file that has their destinations, then " + x.apply(),
		})
		return
	}
	x.notef("%s in %s of %s, drained: no. It is an older layout or another configuration's; they still arrive, because destinations are bound for it",
		counted(messages, "message waits", "messages wait"), counted(len(full), "queue", "queues"), name)
}

// partsOf are what destroy takes: the layout, or where this configuration uses
// some queues of it (the ttl strategy's), the others one by one.
func (x *examination) partsOf(name string, queues []leftover) []string {
	for _, q := range x.cfg.Want.Queues {
		if l, ok := naming.LayoutOf(x.cfg.Prefix, q.Name); ok && l.Name == name {
			var names []string
			for _, l := range queues {
				names = append(names, l.queue.Name)
			}
			return names
		}
	}
	return []string{name}
}

// RetiredAdvice is what to do about an earlier layout that is not on the broker any
// more.
const RetiredAdvice = "take it out of delay.previous in every file that has it; until then apply, and each service that starts with it, binds destinations for it again"

// retired are the described bindings of layouts that are neither described nor on
// the broker, with their layout's tag: those of delay.previous after retire.
func (x *examination) retired() map[string]string {
	there := map[string]bool{}
	seen := func(name string) {
		if l, ok := naming.LayoutOf(x.cfg.Prefix, name); ok {
			there[l.Tag] = true
		}
	}
	for _, q := range x.cfg.Want.Queues {
		seen(q.Name)
	}
	for _, e := range x.cfg.Want.Exchanges {
		seen(e.Name)
	}
	for name := range x.snap.Live.Queues {
		seen(name)
	}
	for name := range x.snap.Live.Exchanges {
		seen(name)
	}
	out := map[string]string{}
	for _, b := range x.cfg.Want.Bindings {
		tag, _, _ := strings.Cut(b.RoutingKey, ".")
		if b.Exchange == topology.DeliveryExchange(x.cfg.Prefix) && !there[tag] {
			out[b.String()] = tag
		}
	}
	return out
}

// noteRetired adds a note for each layout whose bindings are missing.
func (x *examination) noteRetired(retired map[string]string) {
	tags := map[string]bool{}
	for _, s := range x.plan.Steps {
		if s.Action == plan.ActionCreate && retired[s.Name] != "" {
			tags[retired[s.Name]] = true
		}
	}
	for _, tag := range slices.Sorted(maps.Keys(tags)) {
		x.notef("the layout %s is not on the broker, and destinations are not bound for it: %s", tag, RetiredAdvice)
	}
}

var layoutTag = regexp.MustCompile(`^(?:(clock|hex|binary)|r([0-9]+(?:x[0-9]+)*))(?:-([0-9a-z]+))?$`)

// previous is the setting that keeps destinations bound to a layout.
func previous(l naming.Layout, queues []leftover) string {
	if l.Native() {
		return "delay: {previous: [{strategy: native}]}"
	}
	m := layoutTag.FindStringSubmatch(l.Tag)
	if m == nil { // the ttl strategy's
		delays := make([]string, len(queues))
		for i, q := range queues {
			delays[i] = strings.TrimPrefix(q.queue.Name, l.Name+".")
		}
		return "delay: {previous: [{strategy: ttl, delays: [" + strings.Join(delays, ", ") + "]}]}"
	}
	layout := "layout: " + m[1]
	if m[2] != "" {
		layout = "radices: [" + strings.ReplaceAll(m[2], "x", ", ") + "]"
	}
	if m[3] != "" {
		layout += ", resolution: " + m[3]
	}
	return "delay: {previous: [{" + layout + "}]}"
}

// boundFor reports whether anything is bound to the delivery exchange for the
// routing keys of a layout.
func (x *examination) boundFor(tag string) bool {
	return slices.ContainsFunc(x.snap.Live.Bindings, func(b topology.Binding) bool {
		first, _, _ := strings.Cut(b.RoutingKey, ".")
		return b.Exchange == topology.DeliveryExchange(x.cfg.Prefix) && first == tag
	})
}
