package topology

import (
	"fmt"
	"slices"
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
func (x *remover) needs(s RemovalStep) []need {
	switch {
	case s.Action != ActionDelete || s.part == leadPart:
		return nil
	case s.part == ownPart:
		if s.Kind == KindExchange && !x.opts.Force {
			return x.leadsInto(s.Name)
		}
		return nil
	case s.Kind == KindQueue:
		return append(x.leadsToQueue(s.Name), x.deadLettersTo(s.Name)...)
	case s.Kind == KindExchange:
		return slices.Concat(x.leadsOutOf(s.Name), x.leadsInto(s.Name), x.fallsBackOn(s.Name))
	case s.part == sharedPart:
		return []need{{s.Binding.ends(), "both its ends are kept"}}
	}
	return nil
}

// leadsToQueue are the bindings of a queue.
func (x *remover) leadsToQueue(name string) []need {
	var out []need
	for _, b := range x.live.Bindings {
		if b.Queue == name {
			out = append(out, need{
				[]object{b.object(), exchangeNamed(b.Exchange)},
				fmt.Sprintf("the exchange %s leads to it by the routing key %q", b.Exchange, b.RoutingKey),
			})
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
	for _, other := range sortedKeys(x.live.Queues) {
		args := x.live.Queues[other].Arguments
		if args[ArgDeadLetterExchange] == "" && args[ArgDeadLetterRoutingKey] == name {
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

// leadsInto are the exchanges that are bound to an exchange.
func (x *remover) leadsInto(name string) []need {
	var out []need
	for _, b := range x.live.Bindings {
		if b.ToExchange == name {
			out = append(out, need{[]object{b.object(), exchangeNamed(b.Exchange)}, "the exchange " + b.Exchange + " leads to it"})
		}
	}
	return out
}

// leadsOutOf are what an exchange leads to.
func (x *remover) leadsOutOf(name string) []need {
	var out []need
	for _, b := range x.live.Bindings {
		switch {
		case b.Exchange != name:
		case b.ToExchange != "":
			out = append(out, need{[]object{b.object(), exchangeNamed(b.ToExchange)}, "it leads to the exchange " + b.ToExchange})
		default:
			out = append(out, need{[]object{b.object(), queueNamed(b.Queue)}, "it leads to the queue " + b.Queue})
		}
	}
	return out
}

// fallsBackOn are the queues that dead-letter to an exchange, and the exchanges
// whose alternate it is.
func (x *remover) fallsBackOn(name string) []need {
	var out []need
	for _, other := range sortedKeys(x.live.Queues) {
		if x.live.Queues[other].Arguments[ArgDeadLetterExchange] == name {
			out = append(out, need{[]object{queueNamed(other)}, "the queue " + other + " dead-letters to it"})
		}
	}
	for _, other := range sortedKeys(x.live.Exchanges) {
		if x.live.Exchanges[other].Arguments[ArgAlternateExchange] == name {
			out = append(out, need{[]object{exchangeNamed(other)}, "it is the alternate exchange of " + other})
		}
	}
	return out
}
