package observed

import (
	"maps"
	"slices"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
)

// Kept returns the queues in which messages lie until somebody handles them: the parked
// queue, and the dead letters of destinations, those included that programs have
// bound by themselves.
func (l Broker) Kept(want topology.Topology) []topology.Queue {
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
		case destinations[name], ours && q.IsDelay(): // judged as such
		case ours:
			out = append(out, q)
		case there && found.ArgumentsKnown:
			out = append(out, found.Described(name))
		}
	}
	return out
}

// deadLetterQueue is where a destination's queue sends its dead letters, by its
// arguments or by custom.
func (q Queue) deadLetterQueue(name string) string {
	if key, ok := q.Arguments[argument.DeadLetterRoutingKey].(string); ok && q.Arguments[argument.DeadLetterExchange] == "" {
		return key
	}
	return topology.Destination{Queue: name}.DeadLetterQueue()
}
