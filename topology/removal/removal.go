package removal

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// Options say what to delete. The zero value deletes a layout only if that verifiably loses nothing.
type Options struct {
	// Prefix of the delay objects, default DefaultPrefix.
	Prefix string
	// Layouts are deleted although another layout may use them, which the names of the ttl strategy's and of
	// the plugin's objects do not show: "delay.ttl", "delay.plugin", or a queue of the ttl strategy,
	// "delay.ttl.15m". They need to be in the topology as well; see Live.Layout.
	Layouts []string
	// Destinations also deletes described objects that belong to no strategy: the destinations' queues with
	// their dead-letter queues, and the file's own exchanges, queues and bindings. An object that something
	// else is bound to stays, and so does a dead-letter queue while its destination's queue stays.
	Destinations bool
	// Force deletes delay queues with their messages, even without the management API; objects that others may
	// use then stay. With Destinations it also deletes objects that differ from their description.
	Force bool
	// Messages bounds what Force deletes: it refuses when more messages would go. Nil sets no limit for delay
	// queues; under Destinations it then deletes no message and no queue with a consumer.
	Messages *int64
}

// Plan is what Destroy would delete and what it would keep, object by object, and whether it would refuse.
type Plan struct {
	Source  string // how the broker was read: "management API" or "AMQP"
	Steps   []Step
	refusal error
	needs   [][]need // of each step
}

// Action is what Destroy would do about an object.
type Action string

const (
	ActionDelete Action = "delete"
	ActionKeep   Action = "keep"
	// ActionAbsent: it is not on the broker.
	ActionAbsent Action = "absent"
)

// Step is one object of a Plan.
type Step struct {
	Kind   topology.Kind
	Name   string // of a binding, its description
	Action Action // ActionDelete, ActionKeep or ActionAbsent
	Reason string // why it is kept
	// Layout is the layout whose own the object is; empty for what layouts share,
	// and for what is no layout's at all.
	Layout string
	// Messages and Consumers of a queue, and the messages that the plugin's exchange holds.
	Messages  int64
	Consumers int64
	// Forced objects go with what is in them, or bound to them.
	Forced  bool
	Type    topology.QueueType // of a queue
	Binding topology.Binding   // of a binding

	part  part
	stage stage
}

// part is how an object belongs to what is destroyed.
type part int

const (
	// ownPart is a layout's alone: its delay queues and the exchanges before and between them.
	ownPart part = iota
	// leadPart binds a destination to the delivery exchange for one layout.
	leadPart
	// sharedPart serves all layouts of a prefix: the delivery exchange, the parked queue, the route queues.
	sharedPart
	// declaredPart is everything else: destinations' queues, and what a file describes of its own.
	declaredPart
	// foreignPart is another system's, see Foreign.
	foreignPart
)

// Decide decides about every object that the topology describes, from what was found on the broker.
func Decide(t topology.Topology, live observed.Broker, opts Options) Plan {
	opts.Prefix = cmp.Or(opts.Prefix, topology.DefaultPrefix)
	x := survey(t, live, opts)
	r := Plan{Source: live.Source, Steps: x.steps()}
	for i := range r.Steps {
		s := &r.Steps[i]
		if s.Action == ActionDelete {
			if s.Reason = x.rule(*s); s.Reason != "" {
				s.Action = ActionKeep
			}
		}
		r.needs = append(r.needs, x.needs(*s))
	}
	r.settle()
	if slices.ContainsFunc(r.Steps, func(s Step) bool { return s.Action == ActionDelete && s.part != declaredPart }) {
		// The exchanges that say that a topology is complete.
		for _, name := range slices.Sorted(maps.Keys(live.Exchanges)) {
			if strings.HasPrefix(name, naming.DeclaredExchange(opts.Prefix)) {
				r.Steps = append(r.Steps, Step{Kind: topology.KindExchange, Name: name, Action: ActionDelete, part: sharedPart, stage: marks})
				r.needs = append(r.needs, nil)
			}
		}
	}
	r.refusal = x.refusal(r.Steps)
	return r
}

// settle keeps what something needs that stays, and what that needs in its turn.
func (r *Plan) settle() {
	going := r.going()
	for changed := true; changed; {
		changed = false
		for i := range r.Steps {
			s := &r.Steps[i]
			n := slices.IndexFunc(r.needs[i], func(n need) bool {
				return !slices.ContainsFunc(n.from, func(o object) bool { return going[o] })
			})
			if s.Action == ActionDelete && n >= 0 {
				s.Action, s.Reason = ActionKeep, r.needs[i][n].reason
				going[s.object()], changed = false, true
			}
		}
	}
}

func (r *Plan) going() map[object]bool {
	going := map[object]bool{}
	for _, s := range r.Steps {
		going[s.object()] = s.Action == ActionDelete
	}
	return going
}

// Keep marks an object as staying, and keeps the objects that it needs.
func (r *Plan) Keep(stays Step, reason string) {
	for i := range r.Steps {
		if s := &r.Steps[i]; s.object() == stays.object() {
			s.Action, s.Reason = ActionKeep, reason
		}
	}
	r.settle()
}

// Going returns those of the steps whose objects are still to be deleted.
func (r Plan) Going(steps []Step) []Step {
	going := r.going()
	return slices.DeleteFunc(slices.Clone(steps), func(s Step) bool { return !going[s.object()] })
}

// Refusal returns why Destroy would touch nothing, nil if it would not refuse:
// *NotEmptyError, *ConsumersError, *ConflictError or ErrUnseen, joined.
func (r Plan) Refusal() error { return r.refusal }

// Count returns the number of objects with the action.
func (r Plan) Count(a Action) int {
	n := 0
	for _, s := range r.Steps {
		if s.Action == a {
			n++
		}
	}
	return n
}

// Empty reports whether there is nothing to delete.
func (r Plan) Empty() bool { return r.Count(ActionDelete) == 0 }

// Messages returns how many messages would be deleted with their queues.
func (r Plan) Messages() int64 {
	var n int64
	for _, s := range r.Steps {
		if s.Action == ActionDelete {
			n += s.Messages
		}
	}
	return n
}

type object struct {
	kind topology.Kind
	name string
}

func (s Step) object() object { return object{s.Kind, s.Name} }

func queueNamed(name string) object    { return object{topology.KindQueue, name} }
func exchangeNamed(name string) object { return object{topology.KindExchange, name} }

func target(b topology.Binding) object {
	if b.ToExchange != "" {
		return exchangeNamed(b.ToExchange)
	}
	return queueNamed(b.Queue)
}
