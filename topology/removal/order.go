package removal

import (
	"slices"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
)

// Order is what a Plan deletes, in the order in which it goes. The
// objects of one list, or of one stage of a list, may go side by side.
type Order struct {
	WayIn       []Step // the bindings by which messages enter a layout
	Marks       []Step // the exchanges that say that a topology is complete
	DelayQueues []Step
	Layout      [][]Step // what else is a layout's own, and destinations' bindings for it
	Shared      [][]Step // what all layouts of the prefix share
	// Declared are the destinations and the file's own. A queue goes before the one
	// that takes its dead letters, which stays if the first does: see Plan.Keep.
	Declared [][]Step
}

type stage int

const (
	withItsExchange stage = iota // a binding of what layouts share, or of the plugin's exchange, which needs it up to the end
	wayIn
	marks
	delayQueues
	ownBindings
	ownExchanges
	leads
	declaredBindings
	sharedExchanges
	sharedQueues
	parkedExchange // the alternate of the delivery exchange, and bound to the parked queue
	declaredQueues
	declaredExchanges
)

// stage finds the way into a layout by this: the exchanges between delay queues have an
// alternate exchange, those before them have none.
func (x *remover) stage(s Step) stage {
	source, described := x.t.Exchange(s.Binding.Exchange)
	switch own, shared := s.part == ownPart, s.part == sharedPart; {
	case s.part == leadPart:
		return leads
	case own && s.Kind == topology.KindQueue:
		return delayQueues
	case own && s.Kind == topology.KindExchange:
		return ownExchanges
	case own && source.Kind == argument.DelayedExchange, shared && s.Kind == topology.KindBinding:
		return withItsExchange
	case own && described && source.AlternateExchange == "" && s.Binding.Queue != "":
		return wayIn
	case own:
		return ownBindings
	case shared && s.Kind == topology.KindQueue:
		return sharedQueues
	case shared && s.Name == topology.ParkedQueue(x.opts.Prefix):
		return parkedExchange
	case shared:
		return sharedExchanges
	case s.Kind == topology.KindQueue:
		return declaredQueues
	case s.Kind == topology.KindExchange:
		return declaredExchanges
	}
	return declaredBindings
}

// Order returns what is to be deleted, in its order.
func (r Plan) Order() Order {
	at := func(wanted stage) []Step {
		var out []Step
		for _, s := range r.Steps {
			if s.Action == ActionDelete && s.stage == wanted {
				out = append(out, s)
			}
		}
		return out
	}
	return Order{
		WayIn: at(wayIn), Marks: at(marks), DelayQueues: at(delayQueues),
		Layout:   [][]Step{at(ownBindings), at(ownExchanges), at(leads)},
		Shared:   [][]Step{at(declaredBindings), at(sharedExchanges), at(sharedQueues), at(parkedExchange)},
		Declared: append(r.deadLettersLast(at(declaredQueues)), at(declaredExchanges)),
	}
}

// deadLettersLast puts queues into stages, each of which has those that take no dead letters of queues in later
// ones. Queues that dead-letter in a circle share one stage.
func (r Plan) deadLettersLast(queues []Step) [][]Step {
	var stages [][]Step
	for len(queues) > 0 {
		left := map[object]bool{}
		for _, s := range queues {
			left[s.object()] = true
		}
		// takes reports whether one of the other objects is among those that need a step's.
		takes := func(s Step) bool {
			i := slices.IndexFunc(r.Steps, func(t Step) bool { return t.object() == s.object() })
			return slices.ContainsFunc(r.needs[i], func(n need) bool {
				return slices.ContainsFunc(n.from, func(o object) bool { return left[o] && o != s.object() })
			})
		}
		first := slices.DeleteFunc(slices.Clone(queues), takes)
		queues = slices.DeleteFunc(slices.Clone(queues), func(s Step) bool { return !takes(s) })
		if len(first) == 0 {
			first, queues = queues, nil
		}
		stages = append(stages, first)
	}
	return stages
}
