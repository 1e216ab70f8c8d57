package topology

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
)

// ErrMerge is wrapped by every error from Merge.
var ErrMerge = errors.New("conflicting definitions")

// mergeError reports two different descriptions of the same object. In each mismatch, Want is from the first
// description and Have from the later one.
type mergeError struct {
	kind       Kind
	name       string
	mismatches []Mismatch
}

func (e *mergeError) Error() string {
	parts := make([]string, len(e.mismatches))
	for i, m := range e.mismatches {
		parts[i] = fmt.Sprintf("%s is %s in one and %s in the other", m.Argument, argument.Format(m.Want), argument.Format(m.Have))
	}
	return fmt.Sprintf("%s %q is defined twice with different values: %s; keep one definition, or use different names",
		e.kind, e.name, strings.Join(parts, ", "))
}

// Unwrap makes errors.Is(err, ErrMerge) true.
func (e *mergeError) Unwrap() error { return ErrMerge }

// Merge returns the union of descriptions. Objects keep the order in which they first appear, and equal descriptions of
// one object are merged. If descriptions of one object differ, Merge returns the zero Topology, and an error that joins
// one error for each such object. Each of these errors wraps ErrMerge.
func (t Topology) Merge(others ...Topology) (Topology, error) {
	var out Topology
	var errs []error
	exchanges := union(&out.Exchanges, KindExchange, func(e Exchange) string { return e.Name }, diffExchange)
	queues := union(&out.Queues, KindQueue, func(q Queue) string { return q.Name }, diffQueue)
	bindings := union(&out.Bindings, KindBinding, Binding.String, nil)
	destinations := union(&out.Destinations, kindDestination, Destination.label, diffDestination)
	for _, d := range append([]Topology{t}, others...) {
		errs = slices.Concat(errs, exchanges(d.Exchanges), queues(d.Queues), bindings(d.Bindings), destinations(d.Destinations))
	}
	if len(errs) > 0 {
		return Topology{}, errors.Join(errs...)
	}
	return out, nil
}

// union returns a function that adds objects of one kind to out. If out already contains an object with the same name,
// it returns the differences.
func union[T any](out *[]T, kind Kind, name func(T) string, diff func(want, have T) []Mismatch) func([]T) []error {
	index := map[string]int{} // name -> position in out
	return func(list []T) (errs []error) {
		for _, x := range list {
			at, ok := index[name(x)]
			if !ok {
				index[name(x)] = len(*out)
				*out = append(*out, x)
				continue
			}
			if diff == nil { // objects with the same name are equal
				continue
			}
			if diffs := diff((*out)[at], x); len(diffs) > 0 {
				errs = append(errs, &mergeError{kind: kind, name: name(x), mismatches: diffs})
			}
		}
		return errs
	}
}

// diffExchange compares two descriptions of one exchange, including all arguments.
func diffExchange(want, have Exchange) []Mismatch {
	return slices.Concat(
		DiffProperty("type", want.Kind, have.Kind),
		DiffProperty("auto_delete", want.AutoDelete, have.AutoDelete),
		DiffProperty("internal", want.Internal, have.Internal),
		DiffArguments(want.Table(), have.Table()))
}

// diffQueue compares two descriptions of one queue, including all arguments.
func diffQueue(want, have Queue) []Mismatch {
	return DiffArguments(want.Table(), have.Table())
}

// diffDestination compares two destinations with the same name.
func diffDestination(want, have Destination) []Mismatch {
	return slices.Concat(
		DiffProperty("queue", want.Queue, have.Queue),
		DiffProperty("exchange", want.Exchange, have.Exchange),
		DiffProperty("routing_key", want.RoutingKey, have.RoutingKey),
		DiffProperty("dead_letter", want.DeadLetter, have.DeadLetter),
		DiffProperty("lead", written(want.Lead, FormatDuration), written(have.Lead, FormatDuration)),
		DiffProperty("rate_limit", written(want.RateLimit, fields[RateLimit]), written(have.RateLimit, fields[RateLimit])),
		DiffProperty("retry", written(want.Retry, fields[Retry]), written(have.Retry, fields[Retry])))
}

// written formats the value that v points to, or returns nil if v is nil.
func written[T any](v *T, text func(T) string) any {
	if v == nil {
		return nil
	}
	return text(*v)
}

func fields[T any](v T) string { return fmt.Sprintf("%+v", v) }
