package removal

import (
	"slices"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Order lists what a Plan deletes, in the order of deletion. The objects of one list, or of one stage of a list, may
// be deleted concurrently.
type Order struct {
	WayIn       []Step // the bindings by which messages enter a layout
	Marks       []Step // the exchanges that mark a topology as complete
	DelayQueues []Step
	Layout      [][]Step // the rest of a layout's own objects, and the destinations' bindings for it
	Shared      [][]Step // objects that all layouts of the prefix share
	// Declared contains the destinations' objects and the file's own. A queue is deleted before the queue for its
	// dead letters, which stays if the first one does; see Plan.Keep.
	Declared [][]Step
}

type stage int

const (
	withItsExchange stage = iota // bindings of shared objects and of the plugin's exchange, which disappear together with the exchange
	wayIn
	marks
	delayQueues
	ownBindings
	ownExchanges
	leads
	declaredBindings
	sharedExchanges
	sharedQueues
	parkedExchange // the alternate exchange of the delivery exchange, bound to the parked queue
	declaredQueues
	declaredExchanges
)

// stage returns the stage in which an object is deleted. It recognises a layout's entry bindings by their exchanges:
// those between delay queues have an alternate exchange, and those in front of them have none.
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

// Order returns the objects to delete, in the order of deletion.
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

// deadLettersLast divides queues into stages, so that no queue receives dead letters from queues in the same or a
// later stage. Queues that dead-letter in a cycle share one stage.
func (r Plan) deadLettersLast(queues []Step) [][]Step {
	var stages [][]Step
	for len(queues) > 0 {
		left := map[object]bool{}
		for _, s := range queues {
			left[s.object()] = true
		}
		// takes reports whether another remaining object needs the step's object.
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
