package observed

import (
	"maps"
	"slices"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// Broker is what a live.Inspector found on a broker.
type Broker struct {
	Source    string // how it was read: "management API" or "AMQP"
	Exchanges map[string]Exchange
	Queues    map[string]Queue
	Bindings  []topology.Binding
	// BindingsKnown reports whether Bindings is complete. AMQP has no way to read
	// them.
	BindingsKnown bool
	// Unbind has the addresses at which the management API deletes bindings, by
	// Binding.String.
	Unbind   map[string]string
	Policies []Policy
	// PoliciesKnown reports whether Policies is complete. They need the
	// management API and a user with the tag policymaker or administrator.
	PoliciesKnown bool
}

// Exchange is an exchange that exists.
type Exchange struct {
	// ArgumentsKnown reports whether the fields below it were read. If not,
	// Mismatches has what the broker said about the wanted ones.
	ArgumentsKnown bool
	Kind           string
	Durable        bool
	AutoDelete     bool
	Internal       bool
	Arguments      map[string]any // all of them, alternate-exchange included
	Mismatches     []argument.Mismatch

	// Held is how many messages an x-delayed-message exchange holds on the node
	// that was asked, if HeldKnown.
	Held      int64
	HeldKnown bool
}

// Layout returns the broker's objects of the named layouts and of the named
// delay queues (queues of the ttl strategy are independent of each other):
// queues, the exchanges of the same names and those between them, and all
// bindings to and from them. It needs an Inspector that reads bindings, see
// BindingsKnown.
func (l Broker) Layout(prefix string, names ...string) topology.Topology {
	wanted := func(name string) bool {
		layout, ok := naming.LayoutOf(prefix, name)
		for _, n := range names {
			if ok && (n == name || n == layout.Name) {
				return true
			}
		}
		return false
	}
	t := topology.Topology{}
	tags := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(l.Exchanges)) {
		if wanted(name) {
			have := l.Exchanges[name]
			alternate, _ := have.Arguments[argument.AlternateExchange].(string)
			t.Exchanges = append(t.Exchanges, topology.Exchange{Name: name, Kind: have.Kind, AlternateExchange: alternate})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.Queues)) {
		if wanted(name) {
			t.Queues = append(t.Queues, l.Queues[name].Described(name))
		}
	}
	for _, name := range slices.Concat(names, slices.Sorted(maps.Keys(l.Exchanges))) {
		if layout, ok := naming.LayoutOf(prefix, name); ok && wanted(name) {
			tags[layout.Tag] = true
		}
	}
	for _, b := range l.Bindings {
		if wanted(b.Exchange) || b.Exchange == topology.DeliveryExchange(prefix) && tags[naming.Tag(b.RoutingKey)] {
			t.Bindings = append(t.Bindings, b)
		}
	}
	return t
}
