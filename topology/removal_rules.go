package topology

import (
	"cmp"
	"fmt"
	"strings"
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
	t       Topology
	live    Live
	opts    RemovalOptions
	layouts layouts
}

// steps are the objects, to be deleted if they are there.
func (x *remover) steps() []RemovalStep {
	steps := x.bindings()
	for _, q := range x.t.Queues {
		have, there := x.live.Queues[q.Name]
		s := x.step(KindQueue, q.Name, q.Name, there)
		s.Messages, s.Consumers, s.Type = have.Messages, have.Consumers, cmp.Or(have.Type, queueType(q))
		s.Forced = x.forced(s.part)
		steps = append(steps, s)
	}
	for _, e := range x.t.Exchanges {
		have, there := x.live.Exchanges[e.Name]
		s := x.step(KindExchange, e.Name, e.Name, there)
		s.Messages = have.Held
		s.Forced = x.opts.Force && s.part == ownPart || e.Kind == kindDelayed // which delivers by its binding up to the end
		steps = append(steps, s)
	}
	for i := range steps {
		steps[i].stage = x.stage(steps[i])
	}
	return steps
}

// forced tells whether queues go with what is in them.
func (x *remover) forced(p part) bool {
	return x.opts.Force && (p == ownPart || p == declaredPart && x.opts.Messages != nil)
}

// marks are the exchanges that say that a topology is complete.
func (x *remover) marks() []RemovalStep {
	var steps []RemovalStep
	for _, name := range sortedKeys(x.live.Exchanges) {
		if strings.HasPrefix(name, declaredPrefix(x.opts.Prefix)) {
			steps = append(steps, RemovalStep{Kind: KindExchange, Name: name, Action: ActionDelete, part: sharedPart, stage: marks})
		}
	}
	return steps
}

// bindings are those described, and clients' second bindings of the same.
func (x *remover) bindings() []RemovalStep {
	var steps []RemovalStep
	bound, ours := map[string]bool{}, map[string]bool{}
	for _, b := range x.live.Bindings {
		bound[bindingKey(b)] = true
	}
	add := func(b Binding, there bool) {
		s := x.step(KindBinding, b.String(), b.Exchange, there)
		s.Binding = b
		if b.leads() {
			s.part = leadPart
		}
		steps = append(steps, s)
	}
	for _, b := range x.t.Bindings {
		_, there := x.live.Exchanges[b.Exchange]
		if x.live.BindingsKnown {
			there = bound[bindingKey(b)]
		}
		add(b, there)
		ours[bindingKey(b)] = true
	}
	for _, b := range x.live.Bindings {
		plain := b
		plain.Arguments = nil
		if b.Arguments[ArgBinder] != nil && ours[bindingKey(plain)] {
			add(b, true)
		}
	}
	return steps
}

// step is an object that belongs where a name says; of a binding that is its
// source.
func (x *remover) step(kind Kind, name, belongs string, there bool) RemovalStep {
	s := RemovalStep{Kind: kind, Name: name, Action: ActionAbsent}
	if there {
		s.Action = ActionDelete
	}
	layout, own := LayoutOf(x.opts.Prefix, belongs)
	_, theirs := Foreign(belongs)
	switch {
	case theirs:
		s.part = foreignPart
	case own:
		s.part, s.Layout = ownPart, layout.Name
	case kind == KindBinding && belongs == DeliveryExchange(x.opts.Prefix):
		s.part = leadPart
	case Reserved(x.opts.Prefix, belongs):
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
func (x *remover) rule(s RemovalStep) string {
	switch s.part {
	case ownPart:
		return x.ownRule(s)
	case leadPart:
		return x.leadRule(s.Binding)
	case sharedPart:
		return x.sharedRule(s)
	case foreignPart:
		system, _ := Foreign(cmp.Or(s.Binding.Exchange, s.Name))
		return "it belongs to the delays of " + system
	case declaredPart:
	}
	switch {
	case !x.opts.Destinations:
		return notOurs
	case !x.live.BindingsKnown && !x.opts.Force:
		return unseen
	}
	return ""
}

// ownRule keeps what has a name that does not tell configurations apart.
func (x *remover) ownRule(s RemovalStep) string {
	name := s.Name
	if s.Kind == KindBinding {
		name = s.Binding.Exchange
	}
	layout, _ := LayoutOf(x.opts.Prefix, name)
	if !layout.ambiguous() || x.opts.names(layout, name) {
		return ""
	}
	return x.layouts.mayUse(layout, name)
}

func (x *remover) leadRule(b Binding) string {
	tag := tagOf(b.RoutingKey)
	if b.leads() {
		return x.foreignLeadRule(b)
	}
	if !x.layouts.going[tag] {
		return "it belongs to the layout " + tag + ", which is not to be destroyed"
	}
	if !x.live.BindingsKnown {
		return unseen
	}
	if other := x.layouts.sharing(tag); other != "" {
		return "the layout " + other + " uses it too"
	}
	if layout, ok := x.layouts.unsure[tag]; ok {
		return x.layouts.mayUse(layout, layout.Name)
	}
	return ""
}

// foreignLeadRule keeps a binding while another system's levels hold messages: one
// that finds no queue there holds up those behind it.
func (x *remover) foreignLeadRule(b Binding) string {
	system, _ := Foreign(b.Exchange)
	for _, name := range sortedKeys(x.live.Queues) {
		if of, ok := Foreign(name); ok && of == system && x.live.Queues[name].Messages > 0 {
			return "messages wait in the delays of " + system + ", and some may need it"
		}
	}
	return ""
}

func (x *remover) sharedRule(s RemovalStep) string {
	other := x.layouts.beside()
	switch {
	case !x.live.BindingsKnown:
		return unseen
	case other != "":
		return fmt.Sprintf("the layout %s exists too", other)
	case s.Messages > 0:
		return "it holds " + counted(s.Messages, "message")
	case s.Consumers > 0:
		return "it has " + counted(s.Consumers, "consumer")
	}
	return ""
}
