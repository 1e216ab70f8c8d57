package topology

import "maps"

// Action is what Apply or Destroy would do about an object.
type Action string

const (
	// ActionCreate says that the object is missing.
	ActionCreate Action = "create"
	// ActionSame says that the object exists as described.
	ActionSame Action = "same"
	// ActionConflict says that it exists and differs. Brokers do not change an object in place.
	ActionConflict Action = "conflict"
	// ActionUnverified says that its existence could not be checked (bindings
	// over AMQP). Apply declares it again, which changes nothing if it exists.
	ActionUnverified Action = "unverified"
	// ActionDelete and ActionKeep are what Destroy would do about an object that
	// exists; ActionAbsent says that it does not.
	ActionDelete Action = "delete"
	ActionKeep   Action = "keep"
	ActionAbsent Action = "absent"
)

// Step is one object of a plan.
type Step struct {
	Kind       Kind
	Name       string // of a binding, its description
	Action     Action
	Mismatches []Mismatch // of a conflict: the arguments that differ, as far as they could be read
	Messages   int64      // of an existing queue
}

// Plan compares a described topology with what is on a broker.
type Plan struct {
	Source   string // how the broker was read: "management API" or "AMQP"
	Steps    []Step // exchanges, queues, bindings, each in the order of the description
	Warnings []Warning
	// Strays are bindings out of the delays that nobody described.
	Strays []Stray
	// PoliciesChecked tells whether the policies could be read.
	PoliciesChecked bool
}

// Compare finds wanted objects that are missing on a broker or differ.
func Compare(want Topology, live Live) Plan {
	p := Plan{Source: live.Source, PoliciesChecked: live.PoliciesKnown, Warnings: policyWarnings(want, live), Strays: strays(want, live)}
	for _, e := range want.Exchanges {
		p.Steps = append(p.Steps, compareExchange(e, live))
	}
	for _, q := range want.Queues {
		p.Steps = append(p.Steps, compareQueue(q, live))
	}
	missing := map[string]bool{} // objects to be created have no bindings yet
	for _, s := range p.Steps {
		if s.Action == ActionCreate {
			missing[string(s.Kind)+s.Name] = true
		}
	}
	bound := map[string]bool{}
	for _, b := range live.Bindings {
		bound[bindingKey(b)] = true
	}
	for _, b := range want.Bindings {
		s := Step{Kind: KindBinding, Name: b.String(), Action: ActionCreate}
		switch {
		case bound[bindingKey(b)]:
			s.Action = ActionSame
		case live.BindingsKnown,
			missing[string(KindExchange)+b.Exchange],
			b.Queue != "" && missing[string(KindQueue)+b.Queue],
			b.ToExchange != "" && missing[string(KindExchange)+b.ToExchange]:
		default:
			s.Action = ActionUnverified
		}
		p.Steps = append(p.Steps, s)
	}
	return p
}

func compareExchange(want Exchange, live Live) Step {
	s := Step{Kind: KindExchange, Name: want.Name, Action: ActionCreate}
	have, ok := live.Exchanges[want.Name]
	if !ok {
		return s
	}
	s.Mismatches = have.Mismatches
	if have.ArgumentsKnown {
		s.Mismatches = diffProperty("type", want.Kind, have.Kind)
		s.Mismatches = append(s.Mismatches, diffProperty("durable", true, have.Durable)...)
		s.Mismatches = append(s.Mismatches, diffProperty("auto_delete", want.AutoDelete, have.AutoDelete)...)
		s.Mismatches = append(s.Mismatches, diffProperty("internal", want.Internal, have.Internal)...)
		s.Mismatches = append(s.Mismatches, onlyCompared(diffTables(want.Table(), have.Arguments), comparedExchangeArguments(want.Kind))...)
	}
	return s.settled()
}

func compareQueue(want Queue, live Live) Step {
	s := Step{Kind: KindQueue, Name: want.Name, Action: ActionCreate}
	have, ok := live.Queues[want.Name]
	if !ok {
		return s
	}
	s.Messages = have.Messages
	s.Mismatches = have.Mismatches
	if have.ArgumentsKnown {
		args := map[string]any{}
		maps.Copy(args, have.Arguments)
		if have.Type != "" { // declared without x-queue-type, it has one all the same
			args[ArgQueueType] = string(have.Type)
		}
		s.Mismatches = diffProperty("durable", true, have.Durable)
		s.Mismatches = append(s.Mismatches, diffProperty("auto_delete", false, have.AutoDelete)...)
		s.Mismatches = append(s.Mismatches, diffProperty("exclusive", false, have.Exclusive)...)
		s.Mismatches = append(s.Mismatches, onlyCompared(diffTables(want.Table(), args), comparedQueueArguments)...)
	}
	return s.settled()
}

// settled sets the action of an object that exists.
func (s Step) settled() Step {
	s.Action = ActionSame
	if len(s.Mismatches) > 0 {
		s.Action = ActionConflict
	}
	return s
}

// Count is how many objects have the action.
func (p Plan) Count(a Action) int {
	n := 0
	for _, s := range p.Steps {
		if s.Action == a {
			n++
		}
	}
	return n
}

// Empty tells whether there is nothing to do: nothing to create and no
// conflict. Unverified bindings do not count, because applying them again
// changes nothing unless somebody removed one.
func (p Plan) Empty() bool { return p.Count(ActionCreate)+p.Count(ActionConflict) == 0 }

// Conflicts are the objects that exist and differ.
func (p Plan) Conflicts() []Step {
	var out []Step
	for _, s := range p.Steps {
		if s.Action == ActionConflict {
			out = append(out, s)
		}
	}
	return out
}
