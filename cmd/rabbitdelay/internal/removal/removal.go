package removal

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Options selects what to delete. The zero value deletes a layout only if it is certain that nothing is lost.
type Options struct {
	// Prefix is the prefix of the delay objects. Default topology.DefaultPrefix.
	Prefix string
	// Layouts names layouts to delete even though another configuration may still use their objects: for the ttl,
	// native and plugin strategies, an object's name does not show which configuration it belongs to. An entry is the
	// name of a layout, such as "delay.ttl" or "delay.plugin", or of a single ttl queue, such as "delay.ttl.15m". The
	// topology passed to Decide must contain the objects of these layouts, which plan.State.Layout returns.
	Layouts []string
	// Destinations also deletes objects in the configuration that do not belong to a strategy: the destinations' queues
	// with their dead-letter queues, and the file's own exchanges, queues and bindings. An object stays if another
	// object is bound to it. A dead-letter queue stays while its destination's queue stays. Default false.
	Destinations bool
	// Force deletes delay queues including their messages, even without the management API. Objects that other
	// configurations may use stay in that case. With Destinations it also deletes objects that differ from their
	// description. Default false.
	Force bool
	// Messages is the maximum number of messages that Force may delete. The removal is refused if there are more. Nil
	// means no limit for delay queues. With Destinations, nil means that the removal is refused if a queue that does
	// not belong to a strategy has messages or consumers.
	Messages *int64
}

// Plan lists, object by object, what would be deleted and kept. It contains the reason if the removal would be refused.
type Plan struct {
	Source  string // how the broker was read: "management API" or "AMQP"
	Steps   []Step
	refusal error
	needs   [][]need // reasons to keep the object, for each step
}

// Action is what would be done with an object.
type Action string

const (
	ActionDelete Action = "delete"
	ActionKeep   Action = "keep"
	// ActionAbsent means that the object does not exist on the broker.
	ActionAbsent Action = "absent"
)

// Step is one object of a Plan.
type Step struct {
	Kind   topology.Kind
	Name   string // for a binding, its description
	Action Action // ActionDelete, ActionKeep or ActionAbsent
	Reason string // why the object is kept
	// Layout is the layout that the object belongs to. It is empty for objects that layouts share, and for objects that
	// do not belong to any layout.
	Layout string
	// Messages and Consumers are the counts of a queue. For the plugin's exchange, Messages is the number of messages
	// that it holds.
	Messages  int64
	Consumers int64
	// Forced objects are deleted with their messages, or with the bindings to them.
	Forced  bool
	Type    topology.QueueType // for a queue
	Binding topology.Binding   // for a binding

	part  part
	stage stage
}

// part is the relation of an object to the layout that is deleted.
type part int

const (
	// ownPart is for the objects of one layout alone: its delay queues and the exchanges in front of and between
	// them.
	ownPart part = iota
	// leadPart is for the bindings of destinations to the delivery exchange for one layout.
	leadPart
	// sharedPart is for objects that serve all layouts of a prefix: the delivery exchange, the parked queue and the
	// route queues.
	sharedPart
	// declaredPart is for everything else: destinations' queues, and the file's own objects.
	declaredPart
	// foreignPart is for another system's objects, see package foreign.
	foreignPart
)

// Decide decides what to do with every object that the topology describes, based on the state of the broker.
func Decide(t topology.Topology, live plan.State, opts Options) Plan {
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
		// These exchanges mark a topology as complete.
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

// settle keeps every object that a kept object needs, until nothing changes any more.
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

// Keep marks an object as kept, and also keeps the objects that it needs.
func (r *Plan) Keep(stays Step, reason string) {
	for i := range r.Steps {
		if s := &r.Steps[i]; s.object() == stays.object() {
			s.Action, s.Reason = ActionKeep, reason
		}
	}
	r.settle()
}

// Going returns the steps whose objects are still planned to be deleted.
func (r Plan) Going(steps []Step) []Step {
	going := r.going()
	return slices.DeleteFunc(slices.Clone(steps), func(s Step) bool { return !going[s.object()] })
}

// Refusal returns the reason why nothing would be deleted, or nil if the removal would not be refused. It joins
// *NotEmptyError, *ConsumersError, *UnavailableError, *UncountedError, *topology.ConflictError and ErrUnseen as they
// apply.
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
