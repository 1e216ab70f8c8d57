package removal

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/foreign"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// remover decides what goes, what stays, and why:
//
//   - A layout's own queues, exchanges and bindings go, and with them the bindings
//     of destinations for it. What other configurations may use stays: the names of
//     the ttl strategy's and of the plugin's objects do not tell whose they are.
//   - What layouts share stays while another layout is there, and while it holds a
//     message or has a consumer.
//   - The delays of another system stay, whoever asks. Bindings by which
//     rabbitdelay led them to destinations go.
//   - What says that a topology is complete goes before a queue of a layout does,
//     whosever topology that is: who starts next looks again.
//   - Destinations, and what else a file declares, stay unless they are asked for.
//   - What was not seen counts as in use.
//   - What something needs that stays, stays as well; see needs.
type remover struct {
	t    topology.Topology
	live observed.Broker
	opts Options

	going  map[string]bool          // the layouts that are to be destroyed, by tag
	unsure map[string]naming.Layout // those of them that others may use and nobody named, by tag
	beside []besideObject           // the objects of other layouts that are on the broker, by name
}

type besideObject struct {
	object string
	layout naming.Layout
}

// survey finds out which layouts there are.
func survey(t topology.Topology, live observed.Broker, opts Options) *remover {
	x := &remover{t: t, live: live, opts: opts, going: map[string]bool{}, unsure: map[string]naming.Layout{}}
	described := map[string]bool{}
	describe := func(name string) {
		described[name] = true
		if own, ok := naming.LayoutOf(opts.Prefix, name); ok {
			x.going[own.Tag] = true
			if own.Ambiguous() && !opts.nameLayout(own, name) {
				x.unsure[own.Tag] = own
			}
		}
	}
	for _, e := range t.Exchanges {
		describe(e.Name)
	}
	for _, q := range t.Queues {
		describe(q.Name)
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(live.Exchanges)), maps.Keys(live.Queues))
	slices.Sort(names)
	for _, name := range names {
		if other, ok := naming.LayoutOf(opts.Prefix, name); ok && !described[name] {
			x.beside = append(x.beside, besideObject{name, other})
		}
	}
	return x
}

// nameLayout reports whether the caller asked for an object of a layout by name.
func (o Options) nameLayout(l naming.Layout, object string) bool {
	return slices.Contains(o.Layouts, l.Name) || slices.Contains(o.Layouts, object)
}

// mayUse is which other layout may use an object of a layout, empty without another. A layout of the same name
// belongs to the other configuration too; naming the layout would delete both, so the object must be named.
func (x *remover) mayUse(own naming.Layout, object string) string {
	if len(x.beside) == 0 {
		return ""
	}
	other, name := x.beside[0].layout.Name, own.Name
	if slices.ContainsFunc(x.beside, func(b besideObject) bool { return b.layout.Name == own.Name }) {
		name = object
	}
	if other == own.Name {
		other = x.beside[0].object
	}
	return fmt.Sprintf("the layout %s may use it too; to delete it anyway, give --layout %s", other, name)
}

// steps are the objects, to be deleted if they are there.
func (x *remover) steps() []Step {
	steps := x.bindings()
	for _, q := range x.t.Queues {
		have, there := x.live.Queues[q.Name]
		s := x.step(topology.KindQueue, q.Name, q.Name, there)
		s.Messages, s.Consumers, s.Type = have.Messages, have.Consumers, cmp.Or(have.Type, q.QueueType())
		s.Forced = x.forced(s.part)
		steps = append(steps, s)
	}
	for _, e := range x.t.Exchanges {
		have, there := x.live.Exchanges[e.Name]
		s := x.step(topology.KindExchange, e.Name, e.Name, there)
		s.Messages = have.Held
		s.Forced = x.opts.Force && s.part == ownPart || e.Kind == argument.DelayedExchange // which delivers by its binding up to the end
		steps = append(steps, s)
	}
	for i := range steps {
		steps[i].stage = x.stage(steps[i])
	}
	return steps
}

// forced reports whether queues go with what is in them.
func (x *remover) forced(p part) bool {
	return x.opts.Force && (p == ownPart || p == declaredPart && x.opts.Messages != nil)
}

// marks are the exchanges that say that a topology is complete.
func (x *remover) marks() []Step {
	var steps []Step
	for _, name := range slices.Sorted(maps.Keys(x.live.Exchanges)) {
		if strings.HasPrefix(name, naming.DeclaredExchange(x.opts.Prefix)) {
			steps = append(steps, Step{Kind: topology.KindExchange, Name: name, Action: ActionDelete, part: sharedPart, stage: marks})
		}
	}
	return steps
}

// bindings are those described, and clients' second bindings of the same.
func (x *remover) bindings() []Step {
	var steps []Step
	bound, ours := map[string]bool{}, map[string]bool{}
	for _, b := range x.live.Bindings {
		bound[b.String()] = true
	}
	add := func(b topology.Binding, there bool) {
		s := x.step(topology.KindBinding, b.String(), b.Exchange, there)
		s.Binding = b
		if leadsFromForeign(b) {
			s.part = leadPart
		}
		steps = append(steps, s)
	}
	for _, b := range x.t.Bindings {
		_, there := x.live.Exchanges[b.Exchange]
		if x.live.BindingsKnown {
			there = bound[b.String()]
		}
		add(b, there)
		ours[b.String()] = true
	}
	for _, b := range x.live.Bindings {
		plain := b
		plain.Arguments = nil
		if b.Arguments[argument.Binder] != nil && ours[plain.String()] {
			add(b, true)
		}
	}
	return steps
}

// step is an object that belongs where a name says; of a binding that is its source.
func (x *remover) step(kind topology.Kind, name, belongs string, there bool) Step {
	s := Step{Kind: kind, Name: name, Action: ActionAbsent}
	if there {
		s.Action = ActionDelete
	}
	layout, own := naming.LayoutOf(x.opts.Prefix, belongs)
	_, theirs := foreign.System(belongs)
	switch {
	case theirs:
		s.part = foreignPart
	case own:
		s.part, s.Layout = ownPart, layout.Name
	case kind == topology.KindBinding && belongs == topology.DeliveryExchange(x.opts.Prefix):
		s.part = leadPart
	case naming.Reserved(x.opts.Prefix, belongs):
		s.part = sharedPart
	default:
		s.part = declaredPart
	}
	return s
}

const (
	unseen  = "AMQP does not show whether anything else uses it"
	notOurs = "it belongs to a destination or to the file, not to the layout"
)

// rule is why an object stays whatever becomes of the others, empty if it need not.
func (x *remover) rule(s Step) string {
	belongs := cmp.Or(s.Binding.Exchange, s.Name)
	seen := x.live.BindingsKnown
	switch s.part {
	case ownPart: // what has a name that does not tell configurations apart stays
		layout, _ := naming.LayoutOf(x.opts.Prefix, belongs)
		if layout.Ambiguous() && !x.opts.nameLayout(layout, belongs) {
			return x.mayUse(layout, belongs)
		}
	case leadPart:
		return x.leadRule(s.Binding)
	case sharedPart:
		switch {
		case !seen:
			return unseen
		case len(x.beside) > 0:
			return fmt.Sprintf("the layout %s exists too", x.beside[0].layout.Name)
		case s.Messages > 0:
			return "it holds " + counted(s.Messages, "message")
		case s.Consumers > 0:
			return "it has " + counted(s.Consumers, "consumer")
		}
	case foreignPart:
		system, _ := foreign.System(belongs)
		return "it belongs to the delays of " + system
	case declaredPart:
		switch {
		case !x.opts.Destinations:
			return notOurs
		case !seen && !x.opts.Force:
			return unseen
		}
	}
	return ""
}

func (x *remover) leadRule(b topology.Binding) string {
	if leadsFromForeign(b) {
		// One that finds no queue there holds up those behind it.
		system, _ := foreign.System(b.Exchange)
		for name, q := range x.live.Queues {
			if of, ok := foreign.System(name); ok && of == system && q.Messages > 0 {
				return "messages wait in the delays of " + system + ", and some may need it"
			}
		}
		return ""
	}
	tag := naming.Tag(b.RoutingKey)
	if !x.going[tag] {
		return "it belongs to the layout " + tag + ", which is not to be destroyed"
	}
	if !x.live.BindingsKnown {
		return unseen
	}
	for _, other := range x.beside {
		if other.layout.Tag == tag {
			return "the layout " + other.layout.Name + " uses it too"
		}
	}
	if layout, ok := x.unsure[tag]; ok {
		return x.mayUse(layout, layout.Name)
	}
	return ""
}

// leadsFromForeign reports whether a binding leads from a foreign delivery exchange to a
// destination of rabbitdelay's.
func leadsFromForeign(b topology.Binding) bool {
	return foreign.IsDelivery(b.Exchange) && b.Queue != "" && strings.HasPrefix(b.RoutingKey, foreign.Binding)
}
