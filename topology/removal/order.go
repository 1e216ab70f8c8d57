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

// stage is when an object goes.
type stage int

const (
	withItsExchange stage = iota // a binding of what layouts share, or of the plugin's exchange
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

func (x *remover) stage(s Step) stage {
	switch s.part {
	case ownPart:
		return x.ownStage(s)
	case leadPart:
		return leads
	case sharedPart:
		return x.sharedStage(s)
	case declaredPart, foreignPart:
	}
	return map[topology.Kind]stage{topology.KindBinding: declaredBindings, topology.KindQueue: declaredQueues, topology.KindExchange: declaredExchanges}[s.Kind]
}

// ownStage finds the way in by this: the exchanges between delay queues have an
// alternate exchange, those before them have none. What the plugin's exchange holds
// needs its binding up to the end.
func (x *remover) ownStage(s Step) stage {
	source, described := x.t.Exchange(s.Binding.Exchange)
	switch {
	case s.Kind == topology.KindQueue:
		return delayQueues
	case s.Kind == topology.KindExchange:
		return ownExchanges
	case source.Kind == argument.DelayedExchange:
		return withItsExchange
	case described && source.AlternateExchange == "" && s.Binding.Queue != "":
		return wayIn
	}
	return ownBindings
}

func (x *remover) sharedStage(s Step) stage {
	switch {
	case s.Kind == topology.KindQueue:
		return sharedQueues
	case s.Kind == topology.KindBinding:
		return withItsExchange
	case s.Name == topology.ParkedQueue(x.opts.Prefix):
		return parkedExchange
	}
	return sharedExchanges
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

// deadLettersLast puts queues into stages, each of which has those that take no
// dead letters of queues in later ones. Queues that dead-letter in a circle
// share one stage.
func (r Plan) deadLettersLast(queues []Step) [][]Step {
	var stages [][]Step
	for len(queues) > 0 {
		left := map[object]bool{}
		for _, s := range queues {
			left[s.object()] = true
		}
		takes := func(s Step) bool { return r.needed(s, left) }
		first := slices.DeleteFunc(slices.Clone(queues), takes)
		queues = slices.DeleteFunc(slices.Clone(queues), func(s Step) bool { return !takes(s) })
		if len(first) == 0 {
			first, queues = queues, nil
		}
		stages = append(stages, first)
	}
	return stages
}

// needed reports whether one of the other objects is among those that need a step's.
func (r Plan) needed(s Step, others map[object]bool) bool {
	i := slices.IndexFunc(r.Steps, func(t Step) bool { return t.object() == s.object() })
	return slices.ContainsFunc(r.needs[i], func(n need) bool {
		return slices.ContainsFunc(n.from, func(o object) bool { return others[o] && o != s.object() })
	})
}
