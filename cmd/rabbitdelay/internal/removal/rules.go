package removal

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// remover decides what is deleted, what stays, and why:
//
//   - A layout's own queues, exchanges and bindings are deleted, together with the
//     destinations' bindings for it. Objects that other configurations may use stay, because
//     the names of the ttl strategy's, the native strategy's and the plugin's objects do not
//     show who uses them.
//   - Objects that layouts share stay while another layout exists, and while they contain a
//     message or have a consumer.
//   - The delay objects of another system always stay. rabbitdelay's own bindings of destinations to them are deleted.
//   - The exchanges that mark a topology as complete are deleted before any queue of a layout,
//     even if they mark another topology, so that a client that starts checks it again.
//   - Destinations, and other objects declared by a file, stay unless their deletion is requested.
//   - What could not be read counts as in use.
//   - Objects that a kept object needs stay as well; see needs.
type remover struct {
	t    topology.Topology
	live plan.State
	opts Options

	going  map[string]bool          // the layouts to be destroyed, by tag
	unsure map[string]naming.Layout // those of the layouts to be destroyed that other configurations may use and that were not named, by tag
	others []otherObject            // the objects of other layouts on the broker, by name
}

type otherObject struct {
	object string
	layout naming.Layout
}

func survey(t topology.Topology, live plan.State, opts Options) *remover {
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
			x.others = append(x.others, otherObject{name, other})
		}
	}
	return x
}

// nameLayout reports whether the options name a layout or one of its objects.
func (o Options) nameLayout(l naming.Layout, object string) bool {
	return slices.Contains(o.Layouts, l.Name) || slices.Contains(o.Layouts, object)
}

// mayUse returns the reason to keep an object because another layout may use it, or "" if there is no other layout. If
// the other layout has the same name, naming the layout in the options would delete the objects of both. In that case,
// the object itself must be named.
func (x *remover) mayUse(own naming.Layout, object string) string {
	if len(x.others) == 0 {
		return ""
	}
	other, name := x.others[0].layout.Name, own.Name
	if slices.ContainsFunc(x.others, func(b otherObject) bool { return b.layout.Name == own.Name }) {
		name = object
	}
	if other == own.Name {
		other = x.others[0].object
	}
	return fmt.Sprintf("the layout %s may also use it; to delete it anyway, give --layout %s", other, name)
}

// steps returns all objects as candidates for deletion. It lists bindings first, both those in the configuration and
// the additional ones that clients made for the same purpose, and then queues and exchanges.
func (x *remover) steps() []Step {
	var steps []Step
	add := func(s Step, there bool) {
		s.Action = ActionAbsent
		if there {
			s.Action = ActionDelete
		}
		s.place(x.opts.Prefix)
		s.stage = x.stage(s)
		switch s.Kind {
		case topology.KindQueue:
			s.Forced = x.forced(s.part)
		case topology.KindExchange:
			e, _ := x.t.Exchange(s.Name)
			s.Forced = x.opts.Force && s.part == ownPart || e.Kind == argument.DelayedExchange // it delivers through its binding until it is deleted
		case topology.KindBinding:
		}
		steps = append(steps, s)
	}
	bound, ours := map[string]bool{}, map[string]bool{}
	for _, b := range x.live.Bindings {
		bound[b.String()] = true
	}
	for _, b := range x.t.Bindings {
		_, there := x.live.Exchanges[b.Exchange]
		if x.live.BindingsKnown {
			there = bound[b.String()]
		}
		add(Step{Kind: topology.KindBinding, Name: b.String(), Binding: b}, there)
		ours[b.String()] = true
	}
	for _, b := range x.live.Bindings {
		plain := b
		plain.Arguments = nil
		if b.Arguments[argument.Binder] != nil && ours[plain.String()] {
			add(Step{Kind: topology.KindBinding, Name: b.String(), Binding: b}, true)
		}
	}
	for _, q := range x.t.Queues {
		have, there := x.live.Queues[q.Name]
		add(Step{
			Kind: topology.KindQueue, Name: q.Name, Messages: have.Messages, Consumers: have.Consumers, Type: cmp.Or(have.Type, q.QueueType()),
		}, there)
	}
	for _, e := range x.t.Exchanges {
		have, there := x.live.Exchanges[e.Name]
		add(Step{Kind: topology.KindExchange, Name: e.Name, Messages: have.Held}, there)
	}
	return steps
}

// forced reports whether queues are deleted with their messages.
func (x *remover) forced(p part) bool {
	return x.opts.Force && (p == ownPart || p == declaredPart && x.opts.Messages != nil)
}

// place determines from an object's name what the object belongs to. For a binding it uses the name of the source
// exchange.
func (s *Step) place(prefix string) {
	name := s.Name
	if s.Kind == topology.KindBinding {
		name = s.Binding.Exchange
	}
	layout, own := naming.LayoutOf(prefix, name)
	_, theirs := foreign.System(name)
	switch {
	case leadsFromForeign(s.Binding):
		s.part = leadPart
	case theirs:
		s.part = foreignPart
	case own:
		s.part, s.Layout = ownPart, layout.Name
	case s.Kind == topology.KindBinding && name == topology.DeliveryExchange(prefix):
		s.part = leadPart
	case naming.Reserved(prefix, name):
		s.part = sharedPart
	default:
		s.part = declaredPart
	}
}

const (
	unchecked = "AMQP does not show whether anything else uses it"
	notOurs   = "it belongs to a destination or to the file, not to the layout"
)

// rule returns the reason why an object stays regardless of other objects, or "" if there is none.
func (x *remover) rule(s Step) string {
	belongs := cmp.Or(s.Binding.Exchange, s.Name)
	seen := x.live.BindingsKnown
	switch s.part {
	case ownPart: // an object whose name is the same in several configurations may belong to another layout
		layout, _ := naming.LayoutOf(x.opts.Prefix, belongs)
		if layout.Ambiguous() && !x.opts.nameLayout(layout, belongs) {
			return x.mayUse(layout, belongs)
		}
	case leadPart:
		return x.leadRule(s.Binding)
	case sharedPart:
		switch {
		case !seen:
			return unchecked
		case len(x.others) > 0:
			return fmt.Sprintf("the layout %s also exists", x.others[0].layout.Name)
		case s.Messages > 0:
			return "it contains " + shown.Count(s.Messages, "message", "messages")
		case s.Consumers > 0:
			return "it has " + shown.Count(s.Consumers, "consumer", "consumers")
		}
	case foreignPart:
		system, _ := foreign.System(belongs)
		return "it belongs to the delay queues of " + system
	case declaredPart:
		switch {
		case !x.opts.Destinations:
			return notOurs
		case !seen && !x.opts.Force:
			return unchecked
		}
	}
	return ""
}

func (x *remover) leadRule(b topology.Binding) string {
	if leadsFromForeign(b) {
		// Without the binding, the foreign delivery exchange cannot route messages for this destination. Such a message
		// blocks the messages behind it in its delay queue.
		system, _ := foreign.System(b.Exchange)
		for name, q := range x.live.Queues {
			if of, ok := foreign.System(name); ok && of == system && q.Messages > 0 {
				return "messages wait in the delay queues of " + system + ", and some of them may need it"
			}
		}
		return ""
	}
	tag := naming.Tag(b.RoutingKey)
	if !x.going[tag] {
		return "it belongs to the layout " + tag + ", which is not being deleted"
	}
	if !x.live.BindingsKnown {
		return unchecked
	}
	for _, other := range x.others {
		if other.layout.Tag == tag {
			return "the layout " + other.layout.Name + " also uses it"
		}
	}
	if layout, ok := x.unsure[tag]; ok {
		return x.mayUse(layout, layout.Name)
	}
	return ""
}

// leadsFromForeign reports whether a binding leads from a foreign delivery exchange to a destination of rabbitdelay.
func leadsFromForeign(b topology.Binding) bool {
	return foreign.IsDelivery(b.Exchange) && b.Queue != "" && strings.HasPrefix(b.RoutingKey, foreign.Binding)
}

// need is a reason to keep an object. It applies as long as all objects in from stay.
type need struct {
	from   []object
	reason string
}

// needs returns the reasons to keep an object because other objects on the broker need it. An exchange of a layout is
// not kept because of the queues that it leads to.
func (x *remover) needs(s Step) []need {
	if s.Action != ActionDelete || s.part == leadPart || s.part == ownPart && (s.Kind != topology.KindExchange || x.opts.Force) {
		return nil
	}
	var out []need
	add := func(reason string, from ...object) { out = append(out, need{from, reason}) }
	if b := s.Binding; s.Kind == topology.KindBinding {
		if s.part == sharedPart {
			add("both its ends are kept", exchangeNamed(b.Exchange), target(b))
		}
		return out
	}
	for _, b := range x.live.Bindings {
		o, bound := s.object(), object{topology.KindBinding, b.String()}
		switch {
		case o == queueNamed(b.Queue):
			add(fmt.Sprintf("the exchange %s leads to it with the routing key %q", b.Exchange, b.RoutingKey), bound, exchangeNamed(b.Exchange))
		case o == exchangeNamed(b.ToExchange):
			add("the exchange "+b.Exchange+" leads to it", bound, exchangeNamed(b.Exchange))
		case o == exchangeNamed(b.Exchange) && s.part != ownPart:
			add(fmt.Sprintf("it leads to the %s %s", target(b).kind, target(b).name), bound, target(b))
		}
	}
	if s.part == ownPart {
		return out
	}
	queue := s.Kind == topology.KindQueue
	for _, other := range slices.Sorted(maps.Keys(x.live.Queues)) {
		args := x.live.Queues[other].Arguments
		to, key := args[argument.DeadLetterExchange], args[argument.DeadLetterRoutingKey]
		if queue && to == "" && key == s.Name || !queue && to == s.Name {
			add("the queue "+other+" dead-letters to it", queueNamed(other))
		}
	}
	if queue {
		// Consumers publish dead letters themselves, regardless of their queue's arguments.
		for _, d := range x.t.Destinations {
			if _, there := x.live.Queues[d.Queue]; there && d.DeadLetterQueue() == s.Name {
				add("the queue "+d.Queue+" dead-letters to it", queueNamed(d.Queue))
			}
		}
		return out
	}
	for _, other := range slices.Sorted(maps.Keys(x.live.Exchanges)) {
		if x.live.Exchanges[other].Arguments[argument.AlternateExchange] == s.Name {
			add("it is the alternate exchange of "+other, exchangeNamed(other))
		}
	}
	return out
}
