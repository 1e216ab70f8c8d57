package topology

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology/argument"
)

// ErrMerge is wrapped by every *MergeError.
var ErrMerge = errors.New("descriptions contradict each other")

// MergeError reports two descriptions of one object that differ. In Mismatches,
// Want is what the first description has and Have what the later one has.
type MergeError struct {
	Kind       Kind
	Name       string
	Mismatches []argument.Mismatch
}

func (e *MergeError) Error() string {
	parts := make([]string, len(e.Mismatches))
	for i, m := range e.Mismatches {
		parts[i] = fmt.Sprintf("%s is %s in one and %s in the other", m.Argument, argument.Format(m.Want), argument.Format(m.Have))
	}
	return fmt.Sprintf("%s %q is described twice with different values: %s; keep one description, or use different names",
		e.Kind, e.Name, strings.Join(parts, ", "))
}

// Unwrap makes errors.Is(err, ErrMerge) true.
func (e *MergeError) Unwrap() error { return ErrMerge }

// Merge returns the union of descriptions. Objects keep the order in which they
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

// Without returns the topology without the exchanges, queues and bindings of another.
func (t Topology) Without(other Topology) Topology {
	exchanges, queues, bindings := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, e := range other.Exchanges {
		exchanges[e.Name] = true
	}
	for _, q := range other.Queues {
		queues[q.Name] = true
	}
	for _, b := range other.Bindings {
		bindings[b.String()] = true
	}
	t.Exchanges = slices.DeleteFunc(slices.Clone(t.Exchanges), func(e Exchange) bool { return exchanges[e.Name] })
	t.Queues = slices.DeleteFunc(slices.Clone(t.Queues), func(q Queue) bool { return queues[q.Name] })
	t.Bindings = slices.DeleteFunc(slices.Clone(t.Bindings), func(b Binding) bool { return bindings[b.String()] })
	return t
}

type merger struct {
	out   Topology
	index map[string]int // kind and name -> position in out
	errs  []error
}

// place returns where an object already stands in out; absent, it records that it
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

func (m *merger) conflict(kind Kind, name string, diffs []argument.Mismatch) {
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
		if _, ok := m.place(KindBinding, b.String(), len(m.out.Bindings)); !ok {
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

// diffExchange compares two descriptions of one exchange, all arguments included.
func diffExchange(want, have Exchange) []argument.Mismatch {
	diffs := argument.DiffProperty("type", want.Kind, have.Kind)
	diffs = append(diffs, argument.DiffProperty("auto_delete", want.AutoDelete, have.AutoDelete)...)
	diffs = append(diffs, argument.DiffProperty("internal", want.Internal, have.Internal)...)
	return append(diffs, argument.Diff(want.Table(), have.Table())...)
}

// diffQueue compares two descriptions of one queue, all arguments included.
func diffQueue(want, have Queue) []argument.Mismatch {
	return argument.Diff(want.Table(), have.Table())
}

// diffDestination compares two destinations of one name.
func diffDestination(want, have Destination) []argument.Mismatch {
	diffs := argument.DiffProperty("queue", want.Queue, have.Queue)
	diffs = append(diffs, argument.DiffProperty("exchange", want.Exchange, have.Exchange)...)
	diffs = append(diffs, argument.DiffProperty("routing_key", want.RoutingKey, have.RoutingKey)...)
	diffs = append(diffs, argument.DiffProperty("dead_letter", want.DeadLetter, have.DeadLetter)...)
	var w, h any
	if want.Lead != nil {
		w = FormatDuration(*want.Lead)
	}
	if have.Lead != nil {
		h = FormatDuration(*have.Lead)
	}
	diffs = append(diffs, argument.DiffProperty("lead", w, h)...)
	w, h = nil, nil
	if want.Ceiling != nil {
		w = fmt.Sprintf("%+v", *want.Ceiling)
	}
	if have.Ceiling != nil {
		h = fmt.Sprintf("%+v", *have.Ceiling)
	}
	diffs = append(diffs, argument.DiffProperty("ceiling", w, h)...)
	w, h = nil, nil
	if want.Retry != nil {
		w = fmt.Sprintf("%+v", *want.Retry)
	}
	if have.Retry != nil {
		h = fmt.Sprintf("%+v", *have.Retry)
	}
	return append(diffs, argument.DiffProperty("retry", w, h)...)
}
