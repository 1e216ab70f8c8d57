package topology

import (
	"errors"
	"fmt"
	"slices"
	"strings"
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
	return fmt.Sprintf("%s %q is described twice with different values: %s; keep one description, or use different names",
		e.Kind, e.Name, strings.Join(parts, ", "))
}

// Unwrap makes errors.Is(err, ErrMerge) true.
func (e *MergeError) Unwrap() error { return ErrMerge }

// Merge is the union of descriptions. Objects keep the order in which they
// first appear, and equal descriptions of one object become one. Different
// descriptions of one object are an error: Merge returns the zero Topology and
// a joined *MergeError for each.
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

// Without is the topology without the exchanges, queues and bindings of another.
func (t Topology) Without(other Topology) Topology {
	gone := map[object]bool{}
	for _, e := range other.Exchanges {
		gone[exchangeNamed(e.Name)] = true
	}
	for _, q := range other.Queues {
		gone[queueNamed(q.Name)] = true
	}
	for _, b := range other.Bindings {
		gone[b.object()] = true
	}
	t.Exchanges = slices.DeleteFunc(slices.Clone(t.Exchanges), func(e Exchange) bool { return gone[exchangeNamed(e.Name)] })
	t.Queues = slices.DeleteFunc(slices.Clone(t.Queues), func(q Queue) bool { return gone[queueNamed(q.Name)] })
	t.Bindings = slices.DeleteFunc(slices.Clone(t.Bindings), func(b Binding) bool { return gone[b.object()] })
	return t
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
		if at, ok := m.place(KindDestination, d.label(), len(m.out.Destinations)); ok {
			m.conflict(KindDestination, d.label(), diffDestination(m.out.Destinations[at], d))
			continue
		}
		m.out.Destinations = append(m.out.Destinations, d)
	}
}
