package plan

import (
	"maps"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Stray is a binding that no topology describes and that delivers copies of delayed messages to another queue or
// exchange. If its source is the delivery exchange, the copies arrive when they are due, and a message that matches the
// binding is not parked if its real destination no longer exists. If its source is another exchange of the layout, the
// copies arrive early.
type Stray struct {
	topology.Binding

	// Early reports whether the copies arrive before the message is due.
	Early bool
	// Unbind is the management API's URL for deleting the binding. It is empty if unknown.
	Unbind string
}

// Effect returns a description of the binding's effect, for the second half of a sentence.
func (s Stray) Effect() string {
	if s.Early {
		return "it forwards copies of messages before they are due"
	}
	return "it forwards copies of matching messages, and such a message is not parked when its destination is gone"
}

// Advice returns instructions to remove the binding.
func (s Stray) Advice() string {
	if command := s.command(); command != "" {
		return unbindIt + ": " + command
	}
	return unbindIt
}

const unbindIt = "unbind it"

// command returns a shell command that removes the binding, empty if the address of the management API is unknown.
func (s Stray) command() string {
	if s.Unbind == "" {
		return ""
	}
	return "curl -u USER -X DELETE '" + s.Unbind + "'"
}

// Strays returns the stray bindings of the layouts' exchanges and of the delivery exchange. Three kinds of bindings are
// not strays: bindings in the topology, bindings within a layout that the topology does not contain, and bindings in
// the form of a destination's binding to the delivery exchange. The last two kinds belong to configurations with the
// same prefix, to earlier layouts, or to programs that bind destinations without a configuration.
func (l State) Strays(want topology.Topology) []Stray {
	prefix, ok := prefixOf(want)
	if !ok {
		return nil
	}
	described, exchanges, shape := map[string]bool{}, map[string]bool{}, shapesOf(prefix, want, l)
	for _, b := range want.Bindings {
		described[b.String()] = true
	}
	for _, e := range want.Exchanges {
		exchanges[e.Name] = true
	}
	var out []Stray
	for _, b := range l.Bindings {
		layout, early := naming.LayoutOf(prefix, b.Exchange)
		// A binding that is not in the topology may belong to another configuration, and so may a binding of the
		// exchange in front of all queues of a ttl or native layout.
		if !exchanges[b.Exchange] || layout.Ambiguous() && b.Exchange == layout.Name {
			early = early && !staysIn(b, prefix, layout)
		}
		if !early && (b.Exchange != topology.DeliveryExchange(prefix) || shape.delivers(b)) {
			continue
		}
		plain := b
		if plain.Arguments[argument.Binder] != nil { // an additional binding that a client made for the same purpose
			plain.Arguments = nil
		}
		if !described[plain.String()] {
			out = append(out, Stray{b, early, l.Unbind[b.String()]})
		}
	}
	return out
}

// Delivered returns the sorted names of the queues that are bound to the delivery exchange as destinations are, without
// the strategies' own queues.
func (l State) Delivered(want topology.Topology) []string {
	prefix, ok := prefixOf(want)
	if !ok {
		return nil
	}
	shape, queues := shapesOf(prefix, want, l), map[string]bool{}
	for _, b := range l.Bindings {
		if b.Exchange == topology.DeliveryExchange(prefix) && shape.delivers(b) && !naming.Reserved(prefix, b.Queue) {
			queues[b.Queue] = true
		}
	}
	return slices.Sorted(maps.Keys(queues))
}

// prefixOf returns the prefix of the strategies' objects in the topology, and whether it has such objects.
func prefixOf(t topology.Topology) (string, bool) {
	for _, e := range t.Exchanges {
		prefix, ok := strings.CutSuffix(e.Name, ".parked")
		if q, there := t.Queue(e.Name); ok && there && !q.IsDelay() && e.Kind == "fanout" {
			return prefix, true
		}
	}
	return "", false
}

// staysIn reports whether a binding from a layout's exchange routes to an object of the same layout or to the delivery
// exchange.
func staysIn(b topology.Binding, prefix string, of naming.Layout) bool {
	if b.ToExchange == topology.DeliveryExchange(prefix) {
		return true
	}
	to, own := naming.LayoutOf(prefix, b.Queue+b.ToExchange)
	return own && to.Name == of.Name
}

// shapes contains the data that is needed to recognise the bindings of destinations to the delivery exchange.
type shapes struct {
	prefix string
	// words maps a layout's tag to the number of the layout's own words in a routing key, if the tag does not show that
	// number.
	words map[string]int
}

// shapesOf reads the number of words from the bindings that lead from a layout to the delivery exchange, such as
// "hex.*.*.0.0.#". It reads the topology's bindings first, and then those on the broker.
func shapesOf(prefix string, want topology.Topology, live State) shapes {
	s := shapes{prefix, map[string]int{"ttl": 1, "native": 1, "plugin": 0}}
	for _, b := range slices.Concat(want.Bindings, live.Bindings) {
		layout, ok := naming.LayoutOf(prefix, b.Exchange)
		digits, handed := strings.CutSuffix(b.RoutingKey, ".#")
		if _, known := s.words[layout.Tag]; ok && handed && !known && b.ToExchange == topology.DeliveryExchange(prefix) {
			s.words[layout.Tag] = strings.Count(digits, ".")
		}
	}
	return s
}

// delivers reports whether a binding of the delivery exchange matches only the messages for its queue. Its routing key
// consists of the layout's tag, "*" for each word of the layout, and the destination's key. For an unknown layout, any
// number of words is accepted, because no messages pass through such a layout.
func (s shapes) delivers(b topology.Binding) bool {
	key, ok := strings.CutSuffix(b.RoutingKey, "."+topology.Destination{Queue: b.Queue}.Key(s.prefix))
	if b.Queue == "" || !ok || len(b.Arguments) > 0 && b.Arguments[argument.Binder] == nil {
		return false
	}
	tag, stars, _ := strings.Cut(key, ".")
	words := 0
	if stars != "" {
		words = strings.Count(stars, ".") + 1
	}
	if stars != strings.TrimSuffix(strings.Repeat("*.", words), ".") || strings.ContainsAny(tag, "*#") {
		return false
	}
	wanted, known := s.words[tag]
	if radices, ok := strings.CutPrefix(tag, "r"); ok && !known {
		digits, _, _ := strings.Cut(radices, "-")
		wanted, known = strings.Count(digits, "x")+1, true
	}
	return !known || words == wanted
}
