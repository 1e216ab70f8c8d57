package removal

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
)

// need is a reason to keep an object; it holds as long as all objects that it comes from stay.
type need struct {
	from   []object
	reason string
}

func (n need) stands(going map[object]bool) bool {
	return !slices.ContainsFunc(n.from, func(o object) bool { return going[o] })
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
