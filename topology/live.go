package topology

import "time"

// Live is what an Inspector found.
type Live struct {
	Source    string // how it was read: "management API" or "AMQP"
	Exchanges map[string]LiveExchange
	Queues    map[string]LiveQueue
	Bindings  []Binding
	// BindingsKnown tells whether Bindings is complete. AMQP has no way to read
	// them.
	BindingsKnown bool
	// Unbind has the addresses at which the management API deletes bindings, by
	// Binding.String.
	Unbind   map[string]string
	Policies []Policy
	// PoliciesKnown tells whether Policies is complete. They need the
	// management API and a user with the tag policymaker or administrator.
	PoliciesKnown bool
}

// LiveExchange is an exchange that exists.
type LiveExchange struct {
	// ArgumentsKnown tells whether the fields below it were read. If not,
	// Mismatches has what the broker said about the wanted ones.
	ArgumentsKnown bool
	Kind           string
	Durable        bool
	AutoDelete     bool
	Internal       bool
	Arguments      map[string]any // all of them, alternate-exchange included
	Mismatches     []Mismatch

	// Held is how many messages an x-delayed-message exchange holds on the node
	// that was asked, if HeldKnown.
	Held      int64
	HeldKnown bool
}

// LiveQueue is a queue that exists.
type LiveQueue struct {
	// ArgumentsKnown tells whether the fields down to Arguments were read. If
	// not, Mismatches has what the broker said about the wanted ones.
	ArgumentsKnown bool
	Type           QueueType
	Durable        bool
	AutoDelete     bool
	Exclusive      bool
	Arguments      map[string]any
	Mismatches     []Mismatch

	// Messages is the number of messages: over AMQP those ready for delivery; by the
	// management API all, up to 5 s old. Unacked and Leaving are among them: those that
	// a consumer holds, and dead letters that the next queue has not confirmed.
	// ReadyBytes are the bodies of ready ones that do not wait for an instant.
	Messages, Unacked, Leaving int64
	ReadyBytes                 int64
	Consumers                  int64

	Members []string // nodes with a replica of a quorum queue
	Online  []string // those of them that are up
	Node    string   // of a classic queue, or the leader's
	State   string   // running, down, …; empty for unknown

	// EffectivePolicy is the merged definition of the policies that apply to it,
	// empty if none does; nil if that is unknown, as for some seconds after a queue
	// was declared or its node started. Policy and OperatorPolicy are their names.
	EffectivePolicy map[string]any
	Policy          string
	OperatorPolicy  string
}

// Ready is the number of messages that wait in the queue, for a consumer or for an
// instant of their own.
func (q LiveQueue) Ready() int64 { return max(0, q.Messages-q.Unacked-q.Leaving) }

// Policy is a policy of a virtual host: it sets arguments of the queues and
// exchanges whose names match.
type Policy struct {
	Name       string
	Operator   bool   // an operator policy, which users cannot override
	Pattern    string // regular expression, not anchored
	ApplyTo    string // all, queues, classic_queues, quorum_queues, streams, exchanges
	Priority   int    // of the matching ones the highest applies
	Definition map[string]any
}

// Layout returns the broker's objects of the named layouts and of the named
// delay queues (queues of the ttl strategy are independent of each other):
// queues, the exchanges of the same names and those between them, and all
// bindings to and from them. It needs an Inspector that reads bindings, see
// BindingsKnown.
func (l Live) Layout(prefix string, names ...string) Topology {
	wanted := func(name string) bool {
		layout, ok := LayoutOf(prefix, name)
		for _, n := range names {
			if ok && (n == name || n == layout.Name) {
				return true
			}
		}
		return false
	}
	t := Topology{}
	tags := map[string]bool{}
	for _, name := range sortedKeys(l.Exchanges) {
		if wanted(name) {
			have := l.Exchanges[name]
			alternate, _ := have.Arguments[ArgAlternateExchange].(string)
			t.Exchanges = append(t.Exchanges, Exchange{Name: name, Kind: have.Kind, AlternateExchange: alternate})
		}
	}
	for _, name := range sortedKeys(l.Queues) {
		if wanted(name) {
			t.Queues = append(t.Queues, l.Queues[name].Described(name))
		}
	}
	for _, name := range append(names, sortedKeys(l.Exchanges)...) {
		if layout, ok := LayoutOf(prefix, name); ok && wanted(name) {
			tags[layout.Tag] = true
		}
	}
	for _, b := range l.Bindings {
		if wanted(b.Exchange) || b.Exchange == DeliveryExchange(prefix) && tags[tagOf(b.RoutingKey)] {
			t.Bindings = append(t.Bindings, b)
		}
	}
	return t
}

// Described is a delay queue as its arguments describe it.
func (q LiveQueue) Described(name string) Queue {
	out := Queue{Name: name, Type: q.Type, Arguments: q.Arguments}
	if ms, ok := integer(q.Arguments[ArgMessageTTL]); ok {
		ttl := time.Duration(ms) * time.Millisecond
		out.MessageTTL = &ttl
	}
	if exchange, ok := q.Arguments[ArgDeadLetterExchange].(string); ok {
		out.DeadLetter = &DeadLetter{Exchange: exchange, AtLeastOnce: q.Arguments[ArgDeadLetterStrategy] == StrategyAtLeastOnce}
	}
	out.Overflow, _ = q.Arguments[ArgOverflow].(string)
	return out
}

// defaultDeliveryLimit is what a quorum queue has without an argument or a
// policy, since RabbitMQ 4.0.
const defaultDeliveryLimit = 20

// DeliveryLimit is how often the broker returns a message to the queue before it
// drops it or dead-letters it, -1 for no limit; byDefault tells that nobody set it.
// It needs ArgumentsKnown. Of an argument and a policy the broker takes the lower.
func (q LiveQueue) DeliveryLimit(v Version) (limit int64, byDefault bool) {
	if q.Type != Quorum {
		return -1, false
	}
	limit = -1
	set := false
	for _, value := range []any{q.Arguments[ArgDeliveryLimit], q.EffectivePolicy["delivery-limit"]} {
		if n, ok := integer(value); ok {
			set = true
			if n >= 0 && (limit < 0 || n < limit) {
				limit = n
			}
		}
	}
	if !set && v.AtLeast(4, 0, 0) {
		return defaultDeliveryLimit, true
	}
	return limit, false
}
