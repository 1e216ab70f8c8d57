package doctor

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// leftover is a delay queue that is not part of the configuration. It belongs to an older layout, or to another
// process with a different configuration.
type leftover struct {
	queue    topology.Queue
	messages int64
	layout   naming.Layout
}

// leftovers returns the delay queues with the configured prefix that exist on the broker and that the configuration
// does not contain.
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

// checkLeftovers checks the delay queues that are not part of the configuration, layout by layout. They may belong to
// another process with the same prefix, so their existence is not a finding. Messages in a layout for which no
// destination is bound are a finding.
func (x *examination) checkLeftovers() {
	for _, queues := range grouped(x.left, func(l leftover) string { return l.layout.Name }) {
		layout := queues[0].layout
		var full, all []string
		var messages int64
		unknown := 0
		for _, l := range queues {
			all = append(all, l.queue.Name)
			messages += l.messages
			if x.snap.Live.Queues[l.queue.Name].Partial() {
				unknown++
			}
			if l.messages > 0 {
				full = append(full, l.queue.Name)
			}
		}
		switch {
		case unknown > 0:
			x.notef("it is unknown whether %s has drained, because %s not report all messages; at least %s in its %s. The layout is an older one, or belongs to another configuration",
				layout.Name, shown.Count(unknown, "queue does", "queues do"), shown.Count(messages, "message waits", "messages wait"), shown.Count(len(queues), "queue", "queues"))
		case messages == 0:
			parts := []string{layout.Name}
			if slices.ContainsFunc(x.cfg.Want.Queues, func(q topology.Queue) bool {
				l, ok := naming.LayoutOf(x.cfg.Prefix, q.Name)
				return ok && l.Name == layout.Name
			}) {
				parts = all // this configuration uses some queues of the layout, so name only the others; that can happen with the ttl strategy
			}
			whose, command := "they belong to an older layout or to another process. Once no process uses them, delete them", x.destroy(parts)
			if x.previous(layout.Tag) {
				whose, command = "the layout is in delay.previous. Once no process sends with it, delete it", x.run("retire")
			}
			x.notef("%s has drained. It has %s that this configuration does not use; %s:\n%s",
				layout.Name, shown.Count(len(queues), "empty delay queue", "empty delay queues"), whose, command)
		case x.snap.Live.BindingsKnown && !x.boundFor(layout.Tag):
			x.about(full, Finding{ID: "leftover-unbound", Severity: SeverityCritical,
				What: fmt.Sprintf("%s in %s of the layout %s, for which no destination is bound.", shown.Count(messages, "message waits", "messages wait"), shown.Count(len(full), "queue", "queues"), layout.Name),
				Why:  "They will be parked when they are due, instead of being delivered.",
				Fix:  "set " + previousSetting(layout, queues) + " in the file that has their destinations, then " + x.run("apply"),
			})
		default:
			unbound, ours := x.unboundFor(layout.Tag)
			if !ours { // it belongs to another configuration, which does not send to these destinations
				unbound = nil
			}
			x.about(unbound, Finding{ID: "leftover-partly-unbound", Severity: SeverityWarning,
				What: fmt.Sprintf("%s in the layout %s, for which %s not bound: %s.", shown.Count(messages, "message waits", "messages wait"), layout.Name, shown.Count(len(unbound), "destination is", "destinations are"), list(unbound)),
				Why:  "Messages for these destinations will be parked when they are due, instead of being delivered. A destination that was created after the layout was changed has no messages there, but one that was deleted and created again may have some.",
				Fix:  "set " + previousSetting(layout, queues) + " in the file that has these destinations, then " + x.run("apply"),
			})
			state := "they still arrive, because all destinations are bound for it"
			if len(unbound) > 0 || !ours {
				state = "messages whose destinations are bound for it still arrive"
			}
			x.notef("%s has not drained: %s in %s. The layout is an older one, or belongs to another configuration; %s",
				layout.Name, shown.Count(messages, "message waits", "messages wait"), shown.Count(len(full), "queue", "queues"), state)
		}
	}
}

// previous reports whether the configuration keeps destinations bound to a layout that it no longer uses.
func (x *examination) previous(tag string) bool {
	return slices.ContainsFunc(x.cfg.Want.Bindings, func(b topology.Binding) bool {
		return b.Exchange == topology.DeliveryExchange(x.cfg.Prefix) && naming.Tag(b.RoutingKey) == tag
	})
}

// RetiredAdvice is the advice about an earlier layout that no longer exists on the broker.
const RetiredAdvice = "remove the layout from delay.previous in every file that has it; until then, apply and each service that starts with such a file bind destinations for the layout again"

// retired returns the configuration's bindings for layouts that no longer exist on the broker and whose queues and
// exchanges the configuration does not describe, with the tag of each layout. There are such bindings if a layout was
// deleted by retire but is still in delay.previous.
func (x *examination) retired() map[string]string {
	there := map[string]bool{}
	for _, name := range slices.Concat(
		texts(x.cfg.Want.Queues, func(q topology.Queue) string { return q.Name }), slices.Collect(maps.Keys(x.snap.Live.Queues)),
		texts(x.cfg.Want.Exchanges, func(e topology.Exchange) string { return e.Name }), slices.Collect(maps.Keys(x.snap.Live.Exchanges)),
	) {
		if l, ok := naming.LayoutOf(x.cfg.Prefix, name); ok {
			there[l.Tag] = true
		}
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

var layoutTag = regexp.MustCompile(`^(?:(clock|hex|binary)|r([0-9]+(?:x[0-9]+)*))(?:-([0-9a-z]+))?$`)

// previousSetting returns the setting that keeps destinations bound to a layout.
func previousSetting(l naming.Layout, queues []leftover) string {
	if l.Native() {
		return "delay: {previous: [{strategy: native}]}"
	}
	m := layoutTag.FindStringSubmatch(l.Tag)
	if m == nil { // only layouts of the ttl strategy do not match
		delays := texts(queues, func(q leftover) string { return strings.TrimPrefix(q.queue.Name, l.Name+".") })
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

// unboundFor returns the destinations' queues that are not bound to the delivery exchange for a layout. The result ours
// is true if some queue is bound for both this layout and the configured one, which shows that this layout is an
// earlier one of the same configuration. Without the management API, nothing is known about bindings, and both results
// are zero.
func (x *examination) unboundFor(tag string) (unbound []string, ours bool) {
	if !x.snap.Live.BindingsKnown {
		return nil, false
	}
	targets := slices.Clone(x.queues)
	for _, r := range x.snap.Live.Routes(x.cfg.Prefix, x.cfg.Want) {
		targets = append(targets, r.Queue)
	}
	current := map[string]bool{}
	for _, b := range x.cfg.Want.Bindings {
		current[naming.Tag(b.RoutingKey)] = b.Exchange == topology.DeliveryExchange(x.cfg.Prefix)
	}
	unbound = slices.DeleteFunc(targets, func(target string) bool {
		own, both := false, false
		for _, b := range x.snap.Live.Bindings {
			if b.Exchange == topology.DeliveryExchange(x.cfg.Prefix) && b.Queue == target {
				own = own || naming.Tag(b.RoutingKey) == tag
				both = both || current[naming.Tag(b.RoutingKey)]
			}
		}
		ours = ours || own && both
		return own || !both // a queue that is bound only for another configuration's layout belongs to that configuration
	})
	return unbound, ours
}

// boundFor reports whether anything is bound to the delivery exchange for the routing keys of a layout.
func (x *examination) boundFor(tag string) bool {
	return slices.ContainsFunc(x.snap.Live.Bindings, func(b topology.Binding) bool {
		first, _, _ := strings.Cut(b.RoutingKey, ".")
		return b.Exchange == topology.DeliveryExchange(x.cfg.Prefix) && first == tag
	})
}
