package observed

import (
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
)

// Queue is a queue that exists.
type Queue struct {
	// Hidden: the user may not look at it. It is taken to be there, and nothing else is known of it.
	Hidden bool
	// Unavailable is why the broker cannot tell how many messages the queue has, although the user may look at
	// it: it has no leader, or its node is down. Empty for a queue that answers. The counts below are then those
	// that were last known, usually 0.
	Unavailable string
	// Uncounted reports that the management API has no counts of a running queue, as for some seconds after it
	// was declared, or after its node or leader came back.
	Uncounted bool

	// ArgumentsKnown reports whether the fields down to Arguments were read. If
	// not, Mismatches has what the broker said about the wanted ones.
	ArgumentsKnown bool
	Type           topology.QueueType
	Durable        bool
	AutoDelete     bool
	Exclusive      bool
	Arguments      map[string]any
	Mismatches     []argument.Mismatch

	// Messages is the number of messages: over AMQP those ready for delivery; by the
	// management API all, up to 5 s old. Unacked and Leaving are among them: those that
	// a consumer holds, and dead letters that the next queue has not confirmed.
	// ReadyBytes are the bodies of ready ones that do not wait for an instant.
	Messages, Unacked, Leaving int64
	ReadyBytes                 int64
	Consumers                  int64
	// Published is how many messages channels have published into it since the broker
	// counts; dead letters are not among them. The management API knows it.
	Published int64

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

// Unknown reports whether the queue may have more messages than its counts tell.
func (q Queue) Unknown() bool { return q.Hidden || q.Unavailable != "" || q.Uncounted }

// Ready returns the number of messages that wait in the queue, for a consumer or for an
// instant of their own.
func (q Queue) Ready() int64 { return max(0, q.Messages-q.Unacked-q.Leaving) }

// Described returns a delay queue as its arguments describe it.
func (q Queue) Described(name string) topology.Queue {
	out := topology.Queue{Name: name, Type: q.Type, Arguments: q.Arguments}
	if ms, ok := argument.Integer(q.Arguments[argument.MessageTTL]); ok {
		ttl := time.Duration(ms) * time.Millisecond
		out.MessageTTL = &ttl
	}
	if exchange, ok := q.Arguments[argument.DeadLetterExchange].(string); ok {
		out.DeadLetter = &topology.DeadLetter{Exchange: exchange, AtLeastOnce: q.Arguments[argument.DeadLetterStrategy] == argument.AtLeastOnce}
	}
	out.Overflow, _ = q.Arguments[argument.Overflow].(string)
	return out
}

// defaultDeliveryLimit is what a quorum queue has without an argument or a
// policy, since RabbitMQ 4.0.
const defaultDeliveryLimit = 20

// DeliveryLimit returns how often the broker returns a message to the queue before it
// drops it or dead-letters it, -1 for no limit; byDefault reports that nobody set it.
// It needs ArgumentsKnown. Of an argument and a policy the broker takes the lower.
func (q Queue) DeliveryLimit(v Version) (limit int64, byDefault bool) {
	if q.Type != topology.Quorum {
		return -1, false
	}
	limit = -1
	set := false
	for _, value := range []any{q.Arguments[argument.DeliveryLimit], q.EffectivePolicy["delivery-limit"]} {
		if n, ok := argument.Integer(value); ok {
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

// deadLetterQueue is where a destination's queue sends its dead letters, by its
// arguments or by custom.
func (q Queue) deadLetterQueue(name string) string {
	if key, ok := q.Arguments[argument.DeadLetterRoutingKey].(string); ok && q.Arguments[argument.DeadLetterExchange] == "" {
		return key
	}
	return topology.Destination{Queue: name}.DeadLetterQueue()
}
