package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Action is what Apply would do with an object.
type Action string

const (
	// ActionCreate means that the object is missing.
	ActionCreate Action = "create"
	// ActionSame means that the object exists and matches the topology.
	ActionSame Action = "same"
	// ActionConflict means that the object exists but differs. A broker cannot change an existing object.
	ActionConflict Action = "conflict"
	// ActionUnverified means that the object's existence could not be checked, as for bindings over AMQP. Apply
	// declares the object again, which changes nothing if it exists.
	ActionUnverified Action = "unverified"
)

// Step is the planned action for one object.
type Step struct {
	Kind       topology.Kind
	Name       string // for a binding, its description
	Action     Action
	Mismatches []topology.Mismatch // for a conflict, those arguments that are known to differ
	Messages   int64               // number of messages in an existing queue
	// Unavailable is the reason why an existing queue does not answer, such as that it has no leader. It is empty for a
	// queue that answers. See Queue.Unavailable.
	Unavailable string
}

// Plan is the comparison of a topology with the objects on a broker.
type Plan struct {
	Source   string // how the broker was read: "management API" or "AMQP"
	Steps    []Step // exchanges, queues and bindings, each in the order of the topology
	Warnings []Warning
	// Strays are bindings that no topology describes and that deliver copies of delayed messages elsewhere.
	Strays []Stray
	// PoliciesChecked reports whether the policies could be read.
	PoliciesChecked bool

	vhost              string
	queues, queueLimit int64 // of the virtual host
	bindingsKnown      bool  // whether Strays could be found
}

// Compare compares the wanted objects with the broker's, and returns the plan.
func Compare(want topology.Topology, live State) Plan {
	p := Plan{Source: live.Source, PoliciesChecked: live.PoliciesKnown, Warnings: policyWarnings(want, live), Strays: live.Strays(want), vhost: live.Vhost, queues: int64(len(live.Queues)), queueLimit: live.QueueLimit, bindingsKnown: live.BindingsKnown}
	for _, e := range want.Exchanges {
		p.Steps = append(p.Steps, compareExchange(e, live))
	}
	for _, q := range want.Queues {
		p.Steps = append(p.Steps, compareQueue(q, live))
	}
	missing := map[string]bool{} // objects that will be created have no bindings yet
	for _, s := range p.Steps {
		if s.Action == ActionCreate {
			missing[string(s.Kind)+s.Name] = true
		}
	}
	bound := map[string]bool{}
	for _, b := range live.Bindings {
		bound[b.String()] = true
	}
	for _, b := range want.Bindings {
		s := Step{Kind: topology.KindBinding, Name: b.String(), Action: ActionCreate}
		switch {
		case bound[b.String()]:
			s.Action = ActionSame
		case live.BindingsKnown,
			missing[string(topology.KindExchange)+b.Exchange],
			b.Queue != "" && missing[string(topology.KindQueue)+b.Queue],
			b.ToExchange != "" && missing[string(topology.KindExchange)+b.ToExchange]:
		default:
			s.Action = ActionUnverified
		}
		p.Steps = append(p.Steps, s)
	}
	return p
}

func compareExchange(want topology.Exchange, live State) Step {
	s := Step{Kind: topology.KindExchange, Name: want.Name, Action: ActionCreate}
	have, ok := live.Exchanges[want.Name]
	if !ok {
		return s
	}
	s.Mismatches = have.Mismatches
	if have.ArgumentsKnown {
		s.Mismatches = slices.Concat(
			topology.DiffProperty("type", want.Kind, have.Kind),
			topology.DiffProperty("durable", true, have.Durable),
			topology.DiffProperty("auto_delete", want.AutoDelete, have.AutoDelete),
			topology.DiffProperty("internal", want.Internal, have.Internal),
			onlyCompared(topology.DiffArguments(want.Table(), have.Arguments), comparedExchangeArguments(want.Kind)))
	}
	return s.settled()
}

func compareQueue(want topology.Queue, live State) Step {
	s := Step{Kind: topology.KindQueue, Name: want.Name, Action: ActionCreate}
	have, ok := live.Queues[want.Name]
	if !ok {
		return s
	}
	s.Messages, s.Unavailable = have.Messages, have.Unavailable
	s.Mismatches = have.Mismatches
	if have.ArgumentsKnown {
		args := map[string]any{}
		maps.Copy(args, have.Arguments)
		if have.Type != "" { // a queue that was declared without x-queue-type has a type as well
			args[argument.QueueType] = string(have.Type)
		}
		s.Mismatches = slices.Concat(
			topology.DiffProperty("durable", true, have.Durable),
			topology.DiffProperty("auto_delete", false, have.AutoDelete),
			topology.DiffProperty("exclusive", false, have.Exclusive),
			onlyCompared(topology.DiffArguments(want.Table(), args), comparedQueueArguments))
	}
	return s.settled()
}

// settled sets the action of an existing object.
func (s Step) settled() Step {
	s.Action = ActionSame
	if len(s.Mismatches) > 0 {
		s.Action = ActionConflict
	}
	return s
}

// Count returns the number of objects with the action.
func (p Plan) Count(a Action) int { return len(p.with(a)) }

// Empty reports whether there is nothing to create and no conflict. Unverified bindings do not count, because applying
// them again changes nothing unless one was removed.
func (p Plan) Empty() bool { return p.Count(ActionCreate)+p.Count(ActionConflict) == 0 }

// Conflicts returns the steps for objects that exist but differ.
func (p Plan) Conflicts() []Step { return p.with(ActionConflict) }

// Unavailable returns the steps for queues that exist but do not answer. Apply leaves them unchanged, and messages
// cannot pass through them until they answer again.
func (p Plan) Unavailable() []Step {
	return slices.DeleteFunc(slices.Clone(p.Steps), func(s Step) bool { return s.Unavailable == "" })
}

func (p Plan) with(a Action) []Step {
	var out []Step
	for _, s := range p.Steps {
		if s.Action == a {
			out = append(out, s)
		}
	}
	return out
}

// comparedQueueArguments are the arguments that a broker compares when a queue is declared again, for all its queue
// types up to version 4.3. It accepts differences in other arguments, and so does the plan.
var comparedQueueArguments = map[string]bool{
	argument.QueueType: true, argument.MessageTTL: true, argument.DeadLetterExchange: true, argument.DeadLetterRoutingKey: true,
	argument.DeadLetterStrategy: true, argument.Overflow: true, argument.MaxLength: true, argument.MaxLengthBytes: true,
	argument.DeliveryLimit: true, argument.SingleActiveConsumer: true, argument.Expires: true, argument.MaxPriority: true,
	"x-max-in-memory-length": true, "x-max-in-memory-bytes": true, "x-quorum-initial-group-size": true,
	"x-quorum-target-group-size": true, "x-queue-leader-locator": true, "x-queue-mode": true,
	"x-queue-version": true, "x-queue-master-locator": true,
}

// comparedExchangeArguments returns the arguments to compare for an exchange of the given kind. A broker compares
// only alternate-exchange. The x-delayed-type argument of an x-delayed-message exchange decides where messages are
// routed, so a difference there is a conflict as well. Other exchanges may still have this argument from producers
// that used the plugin before, and ignore it.
func comparedExchangeArguments(kind string) map[string]bool {
	return map[string]bool{argument.AlternateExchange: true, argument.DelayedType: kind == argument.DelayedExchange}
}

func onlyCompared(diffs []topology.Mismatch, compared map[string]bool) []topology.Mismatch {
	return slices.DeleteFunc(diffs, func(m topology.Mismatch) bool { return !compared[m.Argument] })
}

// conflicts joins several *topology.ConflictErrors. Its message groups objects that differ in the same way, and
// contains the advice only once.
type conflicts []error

func (e conflicts) Unwrap() []error { return e }

// mostNamed is the maximum number of objects with the same difference that the text names.
const mostNamed = 3

func (e conflicts) Error() string {
	var order []string
	names := map[string][]string{}
	for _, err := range e {
		x, ok := errors.AsType[*topology.ConflictError](err)
		if !ok {
			continue
		}
		alike := fmt.Sprintf("%s: wanted %s, found %s", x.Argument, argument.Format(x.Want), argument.Format(x.Have))
		if names[alike] == nil {
			order = append(order, alike)
		}
		names[alike] = append(names[alike], fmt.Sprintf("%s %q", x.Kind, x.Name))
	}
	parts := make([]string, len(order))
	for i, alike := range order {
		list, more := names[alike], ""
		if n := len(list) - mostNamed; n > 0 {
			list, more = list[:mostNamed], fmt.Sprintf(" and %d more", n)
		}
		parts[i] = strings.Join(list, ", ") + more + ": " + alike
	}
	return "objects exist with different arguments: " + strings.Join(parts, "; ") + ". Give the new objects other names, or empty and delete the old ones"
}

// PolicyError lists the policies that would break the objects to be declared.
type PolicyError struct{ Warnings []Warning }

func (e *PolicyError) Error() string {
	return "refused, because policies would break delays or lose dead letters: " + strings.Join(groupWarnings(e.Warnings), "; ")
}

// Unwrap makes errors.Is(err, topology.ErrPolicy) true.
func (e *PolicyError) Unwrap() error { return topology.ErrPolicy }

// Refusal returns the reason why Apply would not create the missing objects, or nil if it would. The error joins a
// *topology.ConflictError for each different argument. If no arguments differ, it returns a *PolicyError if there are
// grave warnings and forced is false. Otherwise it returns the error of Quota.
func (p Plan) Refusal(forced bool) error {
	var errs []error
	for _, s := range p.Conflicts() {
		for _, m := range s.Mismatches {
			errs = append(errs, &topology.ConflictError{Kind: s.Kind, Name: s.Name, Argument: m.Argument, Want: m.Want, Have: m.Have})
		}
	}
	if grave := p.Grave(); len(errs) == 0 && len(grave) > 0 && !forced {
		return &PolicyError{Warnings: grave}
	}
	switch len(errs) {
	case 0:
		return p.Quota()
	case 1:
		return errs[0]
	}
	return conflicts(errs)
}

// Grave returns the warnings that make Apply refuse.
func (p Plan) Grave() []Warning {
	return slices.DeleteFunc(slices.Clone(p.Warnings), func(w Warning) bool { return w.Mild })
}
