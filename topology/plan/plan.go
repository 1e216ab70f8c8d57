package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// Action is what Apply would do with an object.
type Action string

const (
	// ActionCreate means that the object is missing.
	ActionCreate Action = "create"
	// ActionSame means that the object exists as described.
	ActionSame Action = "same"
	// ActionConflict means that the object exists but differs. Brokers do not change existing objects.
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
	Mismatches []argument.Mismatch // for a conflict, the arguments that differ, as far as they could be read
	Messages   int64               // number of messages in an existing queue
}

// Plan is the comparison of a described topology with the objects on a broker.
type Plan struct {
	Source   string // how the broker was read: "management API" or "AMQP"
	Steps    []Step // exchanges, queues and bindings, each in the order of the description
	Warnings []Warning
	// Strays are undescribed bindings that lead messages out of the delays.
	Strays []observed.Stray
	// PoliciesChecked reports whether the policies could be read.
	PoliciesChecked bool
}

// Compare compares the wanted objects with the broker's, and returns the plan.
func Compare(want topology.Topology, live observed.Broker) Plan {
	p := Plan{Source: live.Source, PoliciesChecked: live.PoliciesKnown, Warnings: policyWarnings(want, live), Strays: live.Strays(want)}
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

func compareExchange(want topology.Exchange, live observed.Broker) Step {
	s := Step{Kind: topology.KindExchange, Name: want.Name, Action: ActionCreate}
	have, ok := live.Exchanges[want.Name]
	if !ok {
		return s
	}
	s.Mismatches = have.Mismatches
	if have.ArgumentsKnown {
		s.Mismatches = slices.Concat(
			argument.DiffProperty("type", want.Kind, have.Kind),
			argument.DiffProperty("durable", true, have.Durable),
			argument.DiffProperty("auto_delete", want.AutoDelete, have.AutoDelete),
			argument.DiffProperty("internal", want.Internal, have.Internal),
			onlyCompared(argument.Diff(want.Table(), have.Arguments), comparedExchangeArguments(want.Kind)))
	}
	return s.settled()
}

func compareQueue(want topology.Queue, live observed.Broker) Step {
	s := Step{Kind: topology.KindQueue, Name: want.Name, Action: ActionCreate}
	have, ok := live.Queues[want.Name]
	if !ok {
		return s
	}
	s.Messages = have.Messages
	s.Mismatches = have.Mismatches
	if have.ArgumentsKnown {
		args := map[string]any{}
		maps.Copy(args, have.Arguments)
		if have.Type != "" { // a queue that was declared without x-queue-type has a type as well
			args[argument.QueueType] = string(have.Type)
		}
		s.Mismatches = slices.Concat(
			argument.DiffProperty("durable", true, have.Durable),
			argument.DiffProperty("auto_delete", false, have.AutoDelete),
			argument.DiffProperty("exclusive", false, have.Exclusive),
			onlyCompared(argument.Diff(want.Table(), args), comparedQueueArguments))
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

// Empty reports whether there is nothing to create and no conflict. Unverified bindings do not count, because
// applying them again changes nothing unless somebody has removed one.
func (p Plan) Empty() bool { return p.Count(ActionCreate)+p.Count(ActionConflict) == 0 }

// Conflicts returns the steps for objects that exist but differ.
func (p Plan) Conflicts() []Step { return p.with(ActionConflict) }

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

func onlyCompared(diffs []argument.Mismatch, compared map[string]bool) []argument.Mismatch {
	return slices.DeleteFunc(diffs, func(m argument.Mismatch) bool { return !compared[m.Argument] })
}

// ErrConflict is wrapped by every *ConflictError.
var ErrConflict = errors.New("exists with other arguments")

// ConflictError reports an object that exists on the broker with a different argument. Brokers do not change existing
// objects.
type ConflictError struct {
	Kind     topology.Kind
	Name     string
	Argument string
	Want     any // nil if absent
	Have     any // nil if absent, or the broker's text of the value
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s %q exists with a different %s: wanted %s, found %s; give the new one another name, or empty and delete the old one",
		e.Kind, e.Name, e.Argument, argument.Format(e.Want), argument.Format(e.Have))
}

// Unwrap makes errors.Is(err, ErrConflict) true.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// conflicts joins several ConflictErrors. Its text groups objects that differ in the same way, and states the remedy
// once.
type conflicts []error

func (e conflicts) Unwrap() []error { return e }

// mostNamed is the number of objects that differ in the same way and are named in the text.
const mostNamed = 3

func (e conflicts) Error() string {
	var order []string
	names := map[string][]string{}
	for _, err := range e {
		x, ok := errors.AsType[*ConflictError](err)
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
	return "objects exist with other arguments: " + strings.Join(parts, "; ") + ". Give the new ones other names, or empty and delete the old ones"
}

// ErrPolicy is wrapped by every *PolicyError.
var ErrPolicy = errors.New("policies break delays or lose dead letters")

// PolicyError lists the policies that would break the objects to be declared.
type PolicyError struct{ Warnings []Warning }

func (e *PolicyError) Error() string {
	return "refused, because policies would break delays or lose dead letters: " + strings.Join(groupWarnings(e.Warnings), "; ")
}

// Unwrap makes errors.Is(err, ErrPolicy) true.
func (e *PolicyError) Unwrap() error { return ErrPolicy }

// Refusal returns the reason why Apply would not create the missing objects, or nil. It joins a *ConflictError for
// each different argument. If there is none, it returns a *PolicyError for grave warnings, unless forced is true.
func (p Plan) Refusal(forced bool) error {
	var errs []error
	for _, s := range p.Conflicts() {
		for _, m := range s.Mismatches {
			errs = append(errs, &ConflictError{Kind: s.Kind, Name: s.Name, Argument: m.Argument, Want: m.Want, Have: m.Have})
		}
	}
	if grave := p.Grave(); len(errs) == 0 && len(grave) > 0 && !forced {
		return &PolicyError{Warnings: grave}
	}
	if len(errs) > 1 {
		return conflicts(errs)
	}
	return errors.Join(errs...)
}

// Grave returns the warnings that make Apply refuse.
func (p Plan) Grave() []Warning {
	return slices.DeleteFunc(slices.Clone(p.Warnings), func(w Warning) bool { return w.Mild })
}
