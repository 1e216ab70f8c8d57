package topology

import "slices"

// RemovalOrder is what a Removal deletes, in the order in which it goes. The
// objects of one list, or of one stage of a list, may go side by side.
type RemovalOrder struct {
	WayIn       []RemovalStep // the bindings by which messages enter a layout
	Marks       []RemovalStep // the exchanges that say that a topology is complete
	DelayQueues []RemovalStep
	Layout      [][]RemovalStep // what else is a layout's own, and destinations' bindings for it
	Shared      [][]RemovalStep // what all layouts of the prefix share
	// Declared are the destinations and the file's own. A queue goes before the one
	// that takes its dead letters, which stays if the first does: see Removal.Keep.
	Declared [][]RemovalStep
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

func (x *remover) stage(s RemovalStep) stage {
	switch s.part {
	case ownPart:
		return x.ownStage(s)
	case leadPart:
		return leads
	case sharedPart:
		return x.sharedStage(s)
	case declaredPart, foreignPart:
	}
	return map[Kind]stage{KindBinding: declaredBindings, KindQueue: declaredQueues, KindExchange: declaredExchanges}[s.Kind]
}

// ownStage finds the way in by this: the exchanges between delay queues have an
// alternate exchange, those before them have none. What the plugin's exchange holds
// needs its binding up to the end.
func (x *remover) ownStage(s RemovalStep) stage {
	source, described := x.t.Exchange(s.Binding.Exchange)
	switch {
	case s.Kind == KindQueue:
		return delayQueues
	case s.Kind == KindExchange:
		return ownExchanges
	case source.Kind == kindDelayed:
		return withItsExchange
	case described && source.AlternateExchange == "" && s.Binding.Queue != "":
		return wayIn
	}
	return ownBindings
}

func (x *remover) sharedStage(s RemovalStep) stage {
	switch {
	case s.Kind == KindQueue:
		return sharedQueues
	case s.Kind == KindBinding:
		return withItsExchange
	case s.Name == ParkedQueue(x.opts.Prefix):
		return parkedExchange
	}
	return sharedExchanges
}

// Order is what is to be deleted, in its order.
func (r Removal) Order() RemovalOrder {
	at := func(wanted stage) []RemovalStep {
		var out []RemovalStep
		for _, s := range r.Steps {
			if s.Action == ActionDelete && s.stage == wanted {
				out = append(out, s)
			}
		}
		return out
	}
	return RemovalOrder{
		WayIn: at(wayIn), Marks: at(marks), DelayQueues: at(delayQueues),
		Layout:   [][]RemovalStep{at(ownBindings), at(ownExchanges), at(leads)},
		Shared:   [][]RemovalStep{at(declaredBindings), at(sharedExchanges), at(sharedQueues), at(parkedExchange)},
		Declared: append(r.deadLettersLast(at(declaredQueues)), at(declaredExchanges)),
	}
}

// deadLettersLast puts queues into stages, each of which has those that take no
// dead letters of queues in later ones. Queues that dead-letter in a circle
// share one stage.
func (r Removal) deadLettersLast(queues []RemovalStep) [][]RemovalStep {
	var stages [][]RemovalStep
	for len(queues) > 0 {
		left := map[object]bool{}
		for _, s := range queues {
			left[s.object()] = true
		}
		takes := func(s RemovalStep) bool { return r.needed(s, left) }
		first := slices.DeleteFunc(slices.Clone(queues), takes)
		queues = slices.DeleteFunc(slices.Clone(queues), func(s RemovalStep) bool { return !takes(s) })
		if len(first) == 0 {
			first, queues = queues, nil
		}
		stages = append(stages, first)
	}
	return stages
}

// needed tells whether one of the other objects is among those that need a step's.
func (r Removal) needed(s RemovalStep, others map[object]bool) bool {
	i := slices.IndexFunc(r.Steps, func(t RemovalStep) bool { return t.object() == s.object() })
	return slices.ContainsFunc(r.needs[i], func(n need) bool {
		return slices.ContainsFunc(n.from, func(o object) bool { return others[o] && o != s.object() })
	})
}
