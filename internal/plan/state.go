package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ManagementAPI is the State.Source of a broker that was read through the management API.
const ManagementAPI = "management API"

// State is the state of a broker as a live.Inspector found it.
type State struct {
	Source    string // how it was read: ManagementAPI or "AMQP"
	Exchanges map[string]Exchange
	Queues    map[string]Queue
	Bindings  []topology.Binding
	// BindingsKnown reports whether Bindings is complete. Bindings cannot be read over AMQP.
	BindingsKnown bool
	// Unbind contains the management API's URLs for deleting bindings, by Binding.String.
	Unbind   map[string]string
	Policies []Policy
	// PoliciesKnown reports whether Policies is complete. Reading policies requires the management API and a user with
	// the policymaker or administrator tag.
	PoliciesKnown bool
	// Vhost is the name of the virtual host. QueueLimit and ConnectionLimit are its limits on the numbers of queues and
	// connections. A limit is 0 if there is none, or if it is unknown, as over AMQP.
	Vhost                       string
	QueueLimit, ConnectionLimit int64
}

// Exchange describes an existing exchange.
type Exchange struct {
	// ArgumentsKnown reports whether the fields from Kind to Arguments were read. If not, Mismatches contains the
	// differences that the broker reported.
	ArgumentsKnown bool
	Kind           string
	Durable        bool
	AutoDelete     bool
	Internal       bool
	Arguments      map[string]any // all arguments, including alternate-exchange
	Mismatches     []topology.Mismatch

	// Held is the number of messages that an x-delayed-message exchange holds on the node that was asked. It is valid
	// only if HeldKnown is true.
	Held      int64
	HeldKnown bool
}

// Layout returns the broker's objects that belong to the named layouts. A name may also be that of a single delay
// queue, because queues of the ttl strategy are independent of each other. The objects are the layouts' queues and
// exchanges, all bindings of these exchanges, and the delivery exchange's bindings with a tag of the layouts. It
// requires an Inspector that reads bindings, see BindingsKnown.
func (l State) Layout(prefix string, names ...string) topology.Topology {
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

// Kept returns the queues in which messages stay until an operator handles them: the parked queue, and the dead-letter
// queues of destinations, including destinations that programs have bound themselves.
func (l State) Kept(want topology.Topology) []topology.Queue {
	names, destinations := map[string]bool{}, map[string]bool{}
	for _, d := range want.Destinations {
		destinations[d.Queue] = true
		if !d.ToExchange() || d.DeadLetter != "" {
			names[d.DeadLetterQueue()] = true
		}
	}
	if prefix, ok := prefixOf(want); ok {
		names[topology.ParkedQueue(prefix)] = true
	}
	for _, q := range l.Delivered(want) {
		destinations[q] = true
		names[l.Queues[q].deadLetterQueue(q)] = true
	}
	described := map[string]topology.Queue{}
	for _, q := range want.Queues {
		described[q.Name] = q
	}
	var out []topology.Queue
	for _, name := range slices.Sorted(maps.Keys(names)) {
		q, ours := described[name]
		found, there := l.Queues[name]
		switch {
		case destinations[name], ours && q.IsDelay(): // a destination or a delay queue is not a kept queue
		case ours:
			out = append(out, q)
		case there && found.ArgumentsKnown:
			out = append(out, found.Described(name))
		}
	}
	return out
}

// Route is a route queue, which forwards to an exchange destination.
type Route struct {
	Queue       string
	Destination topology.Destination // with exchange and routing key; if the exchange is empty, the destination is unknown
}

// Routes returns the route queues that are in the topology or exist on the broker, sorted by name. Programs declare
// them when they first send to an exchange, and usually no configuration contains them.
func (l State) Routes(prefix string, want topology.Topology) []Route {
	all := map[string]topology.Destination{}
	for name, q := range l.Queues {
		if !naming.RouteQueue(prefix, name) {
			continue
		}
		d, _ := topology.DestinationOf(prefix, name) // if the name has a hash, the queue's arguments below show the destination
		if q.ArgumentsKnown {
			d.Exchange, _ = q.Arguments[argument.DeadLetterExchange].(string)
			d.RoutingKey, _ = q.Arguments[argument.DeadLetterRoutingKey].(string)
		}
		all[name] = d
	}
	for _, d := range want.Destinations {
		if d.ToExchange() {
			all[d.TargetQueue(prefix)] = d
		}
	}
	routes := make([]Route, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		routes = append(routes, Route{name, all[name]})
	}
	return routes
}

// Unavailable returns the sorted names of the queues that cannot report how many messages they have.
func (l State) Unavailable() []string {
	var names []string
	for name, q := range l.Queues {
		if q.Unavailable != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Version is a broker's version. The zero value means that the version is unknown.
type Version struct{ Major, Minor, Patch int }

// ParseVersion parses a version as reported by brokers, such as "4.0.5" or "3.13". It returns the zero value for
// other text.
func ParseVersion(s string) Version {
	var v Version
	if n, _ := fmt.Sscanf(s, "%d.%d.%d", &v.Major, &v.Minor, &v.Patch); n < 2 {
		return Version{}
	}
	return v
}

// Known reports whether the version is known. The zero value stands for an unknown one.
func (v Version) Known() bool { return v != Version{} }

// Before reports whether the version is known and older than the given one.
func (v Version) Before(major, minor, patch int) bool {
	return v.Known() && cmp.Or(cmp.Compare(v.Major, major), cmp.Compare(v.Minor, minor), cmp.Compare(v.Patch, patch)) < 0
}

// AtLeast reports whether the version is known and not older than the given one.
func (v Version) AtLeast(major, minor, patch int) bool {
	return v.Known() && !v.Before(major, minor, patch)
}
