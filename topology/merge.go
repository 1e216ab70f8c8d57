package topology

import (
	"errors"
	"fmt"
	"strings"
)

// Kind is the kind of a described object.
type Kind string

// Kinds of objects. A destination exists in descriptions only.
const (
	KindExchange    Kind = "exchange"
	KindQueue       Kind = "queue"
	KindBinding     Kind = "binding"
	KindDestination Kind = "destination"
)

// ErrMerge is wrapped by every *MergeError.
var ErrMerge = errors.New("descriptions contradict each other")

// MergeError says that two descriptions of one object differ. In Mismatches,
// Want is what the first description has and Have what the later one has.
type MergeError struct {
	Kind       Kind
	Name       string
	Mismatches []Mismatch
}

func (e *MergeError) Error() string {
	parts := make([]string, len(e.Mismatches))
	for i, m := range e.Mismatches {
		parts[i] = fmt.Sprintf("%s is %s in one and %s in the other", m.Argument, FormatValue(m.Want), FormatValue(m.Have))
	}
	return fmt.Sprintf("%s %q is described twice, and differently: %s; keep one description or give them different names",
		e.Kind, e.Name, strings.Join(parts, ", "))
}

// Unwrap makes errors.Is(err, ErrMerge) true.
func (e *MergeError) Unwrap() error { return ErrMerge }

// Merge is the union of descriptions. Objects keep the order in which they
// first appear, and equal descriptions of one object become one. Different
// descriptions of one object are an error, a *MergeError for each of them
// joined together, with which Merge returns the zero Topology.
func (t Topology) Merge(others ...Topology) (Topology, error) {
	var m merger
	m.add(t)
	for _, o := range others {
		m.add(o)
	}
	if len(m.errs) > 0 {
		return Topology{}, errors.Join(m.errs...)
	}
	return m.out, nil
}

type merger struct {
	out   Topology
	index map[string]int // kind and name -> position in out
	errs  []error
}

// place says where an object already stands in out; absent, it notes that it
// will stand at position next.
func (m *merger) place(kind Kind, name string, next int) (int, bool) {
	if m.index == nil {
		m.index = map[string]int{}
	}
	key := string(kind) + "\x00" + name
	at, ok := m.index[key]
	if !ok {
		m.index[key] = next
	}
	return at, ok
}

func (m *merger) conflict(kind Kind, name string, diffs []Mismatch) {
	if len(diffs) > 0 {
		m.errs = append(m.errs, &MergeError{Kind: kind, Name: name, Mismatches: diffs})
	}
}

func (m *merger) add(t Topology) {
	for _, e := range t.Exchanges {
		if at, ok := m.place(KindExchange, e.Name, len(m.out.Exchanges)); ok {
			m.conflict(KindExchange, e.Name, diffExchange(m.out.Exchanges[at], e))
			continue
		}
		m.out.Exchanges = append(m.out.Exchanges, e)
	}
	for _, q := range t.Queues {
		if at, ok := m.place(KindQueue, q.Name, len(m.out.Queues)); ok {
			m.conflict(KindQueue, q.Name, diffQueue(m.out.Queues[at], q))
			continue
		}
		m.out.Queues = append(m.out.Queues, q)
	}
	for _, b := range t.Bindings {
		if _, ok := m.place(KindBinding, bindingKey(b), len(m.out.Bindings)); !ok {
			m.out.Bindings = append(m.out.Bindings, b)
		}
	}
	for _, d := range t.Destinations {
		if at, ok := m.place(KindDestination, d.Label(), len(m.out.Destinations)); ok {
			m.conflict(KindDestination, d.Label(), diffDestination(m.out.Destinations[at], d))
			continue
		}
		m.out.Destinations = append(m.out.Destinations, d)
	}
}

// Label is the destination's name: Name, or else its queue, or else
// "exchange:routing key".
func (d Destination) Label() string {
	switch {
	case d.Name != "":
		return d.Name
	case d.Queue != "":
		return d.Queue
	}
	return d.Exchange + ":" + d.RoutingKey
}

// Exchange finds an exchange by name.
func (t Topology) Exchange(name string) (Exchange, bool) {
	for _, e := range t.Exchanges {
		if e.Name == name {
			return e, true
		}
	}
	return Exchange{}, false
}

// Queue finds a queue by name.
func (t Topology) Queue(name string) (Queue, bool) {
	for _, q := range t.Queues {
		if q.Name == name {
			return q, true
		}
	}
	return Queue{}, false
}

// Destination finds a destination by its Label.
func (t Topology) Destination(label string) (Destination, bool) {
	for _, d := range t.Destinations {
		if d.Label() == label {
			return d, true
		}
	}
	return Destination{}, false
}

// BindingsFrom lists the bindings whose source is the exchange.
func (t Topology) BindingsFrom(exchange string) []Binding {
	var out []Binding
	for _, b := range t.Bindings {
		if b.Exchange == exchange {
			out = append(out, b)
		}
	}
	return out
}

// Empty tells whether there is nothing to declare; destinations do not count.
func (t Topology) Empty() bool {
	return len(t.Exchanges) == 0 && len(t.Queues) == 0 && len(t.Bindings) == 0
}

// IsDelay tells whether messages wait in the queue to be dead-lettered by its
// TTL: it has both a message TTL and a dead-letter exchange.
func (q Queue) IsDelay() bool { return q.MessageTTL != nil && q.DeadLetter != nil }

// WithDestinationQueues adds what the destinations stand on and the topology
// does not describe: the queues of a queue destination, of the given type (empty
// means Quorum), and the route queue of an exchange destination.
func (t Topology) WithDestinationQueues(prefix string, queueType QueueType) Topology {
	described := map[string]bool{}
	for _, q := range t.Queues {
		described[q.Name] = true
	}
	out := t
	out.Queues = append([]Queue(nil), t.Queues...)
	add := func(q Queue) {
		if !described[q.Name] {
			described[q.Name] = true
			out.Queues = append(out.Queues, q)
		}
	}
	for _, d := range t.Destinations {
		if d.ToExchange() {
			add(d.RouteQueue(prefix))
			if d.DeadLetter != "" {
				add(Queue{Name: d.DeadLetter, Type: queueType}.unlimited())
			}
			continue
		}
		for _, q := range d.Queues(queueType) {
			add(q)
		}
	}
	return out
}
