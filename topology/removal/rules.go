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

// steps are the objects, to be deleted if they are there: bindings, those described and clients' second ones of
// the same, then queues and exchanges.
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
			s.Forced = x.opts.Force && s.part == ownPart || e.Kind == argument.DelayedExchange // which delivers by its binding up to the end
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

// forced reports whether queues go with what is in them.
func (x *remover) forced(p part) bool {
	return x.opts.Force && (p == ownPart || p == declaredPart && x.opts.Messages != nil)
}

// place finds out what an object belongs to, by its name; of a binding by that of its source.
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

// need is a reason to keep an object; it holds as long as all objects that it comes from stay.
type need struct {
	from   []object
	reason string
}

// needs lists the reasons on the broker to keep an object. What a layout's own exchange leads to
// does not need it.
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
			add(fmt.Sprintf("the exchange %s leads to it by the routing key %q", b.Exchange, b.RoutingKey), bound, exchangeNamed(b.Exchange))
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
		// Consumers publish dead letters by themselves, whatever arguments their queue has.
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
