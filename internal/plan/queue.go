package plan

import (
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Queue describes an existing queue.
type Queue struct {
	// Hidden means that the user is not allowed to see the queue. It is assumed to exist, and nothing else is known
	// about it.
	Hidden bool
	// Unavailable is the reason why the broker cannot report the number of messages although the user may see the
	// queue: it has no leader, or its node is down. It is empty for a queue that answers. If it is set, the counts
	// below are the last known ones, usually 0.
	Unavailable string
	// Uncounted means that the management API has no message counts for a running queue. This lasts for a few seconds
	// after the queue was declared, or after its node or leader recovered.
	Uncounted bool
	// ReadyOnly means that the management API has no message counts for a running queue, and that Messages is the
	// number of ready messages that the broker reported over AMQP. Unacked and Leaving are unknown then. It is not set
	// if all queues were read over AMQP.
	ReadyOnly bool
	// Doubtful means that the broker counts fewer ready messages than an older count of the management API, so that
	// messages are gone or a client holds them. Messages is a lower bound.
	Doubtful bool

	// ArgumentsKnown reports whether the fields from Type to Arguments were read. If not, Mismatches contains the
	// differences that the broker reported.
	ArgumentsKnown bool
	Type           topology.QueueType
	Durable        bool
	AutoDelete     bool
	Exclusive      bool
	Arguments      map[string]any
	Mismatches     []topology.Mismatch

	// Messages is the number of messages. Over AMQP it counts only messages that are ready for delivery. Through the
	// management API it counts all messages, but is up to 10 s old. It includes Unacked, the unacknowledged messages,
	// and Leaving, the dead letters that the next queue has not confirmed. ReadyBytes is the total body size of the
	// ready messages, excluding messages that wait for their own due time.
	Messages, Unacked, Leaving int64
	ReadyBytes                 int64
	Consumers                  int64
	// Published is the number of messages that channels have published to the queue since the broker began to count.
	// Dead letters are not included. Only the management API reports it.
	Published int64

	Members []string // nodes with a replica of a quorum queue
	Online  []string // the nodes among Members that are up
	Node    string   // the node of a classic queue, or of the leader
	State   string   // running, down, …; empty if unknown

	// EffectivePolicy is the merged definition of the policies that apply to the queue. It is empty if none applies,
	// and nil if it is unknown, as for a few seconds after a queue was declared or its node started. Policy and
	// OperatorPolicy are the policies' names.
	EffectivePolicy map[string]any
	Policy          string
	OperatorPolicy  string
}

// Unknown reports whether the queue may have more messages than its counts show.
func (q Queue) Unknown() bool { return q.Hidden || q.Unavailable != "" || q.Uncounted }

// Partial reports whether the queue may have messages that are not in Messages, even if the number of ready messages is
// known.
func (q Queue) Partial() bool { return q.Unknown() || q.ReadyOnly || q.Doubtful }

// Ready returns the number of messages that wait in the queue for a consumer or for their own due time.
func (q Queue) Ready() int64 { return max(0, q.Messages-q.Unacked-q.Leaving) }

// Described returns an existing queue as a topology.Queue with the type, TTL, dead-letter exchange and overflow from
// its arguments.
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

// defaultDeliveryLimit is the delivery limit of a quorum queue without an argument or a policy, since RabbitMQ 4.0.
const defaultDeliveryLimit = 20

// DeliveryLimit returns how many times the broker returns a message to the queue before it drops or dead-letters the
// message, or -1 if there is no limit. byDefault is true if the limit is the broker's default. If both an argument and
// a policy set a limit, the broker uses the lower one. DeliveryLimit requires ArgumentsKnown.
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

// deadLetterQueue returns the name of the dead-letter queue for the destination queue with the given name. It is the
// queue to which the arguments dead-letter messages or, if they name none, the one with the default name.
func (q Queue) deadLetterQueue(name string) string {
	if key, ok := q.Arguments[argument.DeadLetterRoutingKey].(string); ok && q.Arguments[argument.DeadLetterExchange] == "" {
		return key
	}
	return topology.Destination{Queue: name}.DeadLetterQueue()
}
