package topology

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
)

// QueueType is the value of a queue's x-queue-type argument.
type QueueType string

const (
	// Quorum queues are replicated and dead-letter at least once. This is the default.
	Quorum QueueType = "quorum"
	// Classic queues exist on one node and dead-letter at most once.
	Classic QueueType = "classic"
)

// Topology is a set of broker objects. They are declared in the order exchanges, queues, bindings.
type Topology struct {
	Exchanges    []Exchange
	Queues       []Queue
	Bindings     []Binding
	Destinations []Destination
}

// Kind is the kind of an object in a topology.
type Kind string

// These are the kinds of objects. Destinations exist only in descriptions.
const (
	KindExchange    Kind = "exchange"
	KindQueue       Kind = "queue"
	KindBinding     Kind = "binding"
	kindDestination Kind = "destination"
)

// Exchange returns the exchange with the given name, and whether the topology contains it.
func (t Topology) Exchange(name string) (Exchange, bool) {
	i := slices.IndexFunc(t.Exchanges, func(e Exchange) bool { return e.Name == name })
	if i < 0 {
		return Exchange{}, false
	}
	return t.Exchanges[i], true
}

// Queue returns the queue with the given name, and whether the topology contains it.
func (t Topology) Queue(name string) (Queue, bool) {
	i := slices.IndexFunc(t.Queues, func(q Queue) bool { return q.Name == name })
	if i < 0 {
		return Queue{}, false
	}
	return t.Queues[i], true
}

// Exchange is a durable exchange.
type Exchange struct {
	Name              string
	Kind              string // direct, fanout, topic, headers, x-delayed-message, ...
	AutoDelete        bool
	Internal          bool
	AlternateExchange string         // alternate-exchange argument; empty for none
	Arguments         map[string]any // any further arguments
}

// Queue is a durable queue. A field is a pointer if omitting the argument differs from setting it to the zero value.
type Queue struct {
	Name                 string
	Type                 QueueType      // empty means Quorum
	MessageTTL           *time.Duration // x-message-ttl, in whole milliseconds
	DeadLetter           *DeadLetter
	Overflow             string // x-overflow; empty means the broker's default (drop-head)
	MaxLength            *int64 // x-max-length, in messages
	MaxLengthBytes       *int64 // x-max-length-bytes
	DeliveryLimit        *int64 // x-delivery-limit; quorum only; see NoDeliveryLimit
	SingleActiveConsumer bool   // x-single-active-consumer
	Arguments            map[string]any
}

// QueueType returns the queue's type, or Quorum if none is set.
func (q Queue) QueueType() QueueType { return cmp.Or(q.Type, Quorum) }

// IsDelay reports whether messages wait in the queue until its TTL dead-letters them. Such a queue has both a message
// TTL and a dead-letter exchange.
func (q Queue) IsDelay() bool { return q.MessageTTL != nil && q.DeadLetter != nil }

// Native reports whether each message in the queue waits until its own due time, as in the queues of the native
// strategy. Such a queue dead-letters ready messages immediately, with the message's own routing key.
func (q Queue) Native() bool {
	return q.IsDelay() && *q.MessageTTL == 0 && q.DeadLetter.RoutingKey == nil
}

// DeadLetter is where a queue sends messages that expire, are rejected or exceed a limit.
type DeadLetter struct {
	Exchange   string  // x-dead-letter-exchange; "" is the default exchange
	RoutingKey *string // x-dead-letter-routing-key; nil keeps the message's own key
	// AtLeastOnce sets x-dead-letter-strategy to at-least-once. It needs a quorum queue with overflow reject-publish
	// (RabbitMQ 3.10 or later). With any other overflow the broker silently uses at-most-once. Default false.
	AtLeastOnce bool
}

// Binding routes messages from an exchange to a queue or to another exchange. Set exactly one of Queue and
// ToExchange.
type Binding struct {
	Exchange   string // source
	Queue      string // destination queue
	ToExchange string // destination exchange
	RoutingKey string
	Arguments  map[string]any
}

// String describes the binding by its source, destination, routing key and arguments.
func (b Binding) String() string {
	dest := "queue " + strconv.Quote(b.Queue)
	if b.ToExchange != "" {
		dest = "exchange " + strconv.Quote(b.ToExchange)
	}
	s := fmt.Sprintf("%q -> %s, routing key %q", b.Exchange, dest, b.RoutingKey)
	if len(b.Arguments) > 0 {
		s += ", arguments " + argument.Format(b.Arguments)
	}
	return s
}

// NoDeliveryLimit is the delivery limit of all quorum queues of the delay strategies and their destinations. No message
// reaches it. Without it RabbitMQ 4.0 and later apply a limit of 20, and up to 4.2 each read that returns a message to
// the queue counts (basic.get, the management UI, or a consumer that stops). The 21st read of a dead letter or a parked
// message would drop it, and the 21st read of a message in a delay queue would forward it too early. The value is not
// -1, because -1 is documented by RabbitMQ 4.0 and later but not by 3.10.
const NoDeliveryLimit int64 = 1_000_000_000

// unlimited sets the delivery limit of a quorum queue to NoDeliveryLimit. Classic queues do not have a delivery limit.
func (q Queue) unlimited() Queue {
	if q.Type != Classic {
		limit := NoDeliveryLimit
		q.DeliveryLimit = &limit
	}
	return q
}

// Table returns the queue's arguments as they are sent to the broker.
func (q Queue) Table() map[string]any {
	t := map[string]any{}
	maps.Copy(t, q.Arguments)
	t[argument.QueueType] = string(q.QueueType())
	if q.MessageTTL != nil {
		t[argument.MessageTTL] = q.MessageTTL.Milliseconds()
	}
	if d := q.DeadLetter; d != nil {
		t[argument.DeadLetterExchange] = d.Exchange
		if d.RoutingKey != nil {
			t[argument.DeadLetterRoutingKey] = *d.RoutingKey
		}
		if d.AtLeastOnce {
			t[argument.DeadLetterStrategy] = argument.AtLeastOnce
		}
	}
	if q.Overflow != "" {
		t[argument.Overflow] = q.Overflow
	}
	setInt(t, argument.MaxLength, q.MaxLength)
	setInt(t, argument.MaxLengthBytes, q.MaxLengthBytes)
	setInt(t, argument.DeliveryLimit, q.DeliveryLimit)
	if q.SingleActiveConsumer {
		t[argument.SingleActiveConsumer] = true
	}
	return t
}

func setInt(t map[string]any, key string, v *int64) {
	if v != nil {
		t[key] = *v
	}
}

// Table returns the exchange's arguments as they are sent to the broker.
func (e Exchange) Table() map[string]any {
	t := map[string]any{}
	maps.Copy(t, e.Arguments)
	if e.AlternateExchange != "" {
		t[argument.AlternateExchange] = e.AlternateExchange
	}
	return t
}
