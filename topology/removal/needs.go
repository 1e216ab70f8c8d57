package removal

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
)

// need is a reason to keep an object; it holds as long as all objects that it
// comes from stay.
type need struct {
	from   []object
	reason string
}

func (n need) stands(going map[object]bool) bool {
	return !slices.ContainsFunc(n.from, func(o object) bool { return going[o] })
}

// needs lists the reasons on the broker to keep an object.
func (x *remover) needs(s Step) []need {
	switch {
	case s.Action != ActionDelete, s.part == leadPart, s.part == ownPart && (s.Kind != topology.KindExchange || x.opts.Force):
		return nil
	case s.Kind == topology.KindBinding && s.part == sharedPart:
		return []need{{ends(s.Binding), "both its ends are kept"}}
	case s.Kind == topology.KindQueue:
		return append(x.bound(s), x.deadLettersTo(s.Name)...)
	case s.part == ownPart:
		return x.bound(s)
	case s.Kind == topology.KindExchange:
		return append(x.bound(s), x.fallsBackOn(s.Name)...)
	}
	return nil
}

// bound are the bindings of a queue or an exchange. What a layout's own exchange
// leads to does not need it.
func (x *remover) bound(s Step) []need {
	var out []need
	add := func(b topology.Binding, other object, reason string) {
		out = append(out, need{[]object{binding(b), other}, reason})
	}
	for _, b := range x.live.Bindings {
		switch o := s.object(); {
		case o == queueNamed(b.Queue):
			add(b, exchangeNamed(b.Exchange), fmt.Sprintf("the exchange %s leads to it by the routing key %q", b.Exchange, b.RoutingKey))
		case o == exchangeNamed(b.ToExchange):
			add(b, exchangeNamed(b.Exchange), "the exchange "+b.Exchange+" leads to it")
		case o != exchangeNamed(b.Exchange), s.part == ownPart:
		case b.ToExchange != "":
			add(b, exchangeNamed(b.ToExchange), "it leads to the exchange "+b.ToExchange)
		default:
			add(b, queueNamed(b.Queue), "it leads to the queue "+b.Queue)
		}
	}
	return out
}

// deadLettersTo are the queues whose dead letters a queue takes. Consumers publish
// dead letters by themselves, whatever arguments their queue has.
func (x *remover) deadLettersTo(name string) []need {
	var out []need
	add := func(queue string) {
		out = append(out, need{[]object{queueNamed(queue)}, "the queue " + queue + " dead-letters to it"})
	}
	for _, other := range slices.Sorted(maps.Keys(x.live.Queues)) {
		args := x.live.Queues[other].Arguments
		if args[argument.DeadLetterExchange] == "" && args[argument.DeadLetterRoutingKey] == name {
			add(other)
		}
	}
	for _, d := range x.t.Destinations {
		if _, there := x.live.Queues[d.Queue]; there && d.DeadLetterQueue() == name {
			add(d.Queue)
		}
	}
	return out
}

// fallsBackOn are the queues that dead-letter to an exchange, and the exchanges
// whose alternate it is.
func (x *remover) fallsBackOn(name string) []need {
	var out []need
	for _, other := range slices.Sorted(maps.Keys(x.live.Queues)) {
		if x.live.Queues[other].Arguments[argument.DeadLetterExchange] == name {
			out = append(out, need{[]object{queueNamed(other)}, "the queue " + other + " dead-letters to it"})
		}
	}
	for _, other := range slices.Sorted(maps.Keys(x.live.Exchanges)) {
		if x.live.Exchanges[other].Arguments[argument.AlternateExchange] == name {
			out = append(out, need{[]object{exchangeNamed(other)}, "it is the alternate exchange of " + other})
		}
	}
	return out
}
