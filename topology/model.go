// Package topology describes, as data, what must exist on a RabbitMQ broker:
// exchanges, queues, bindings and destinations. It reads and validates the YAML
// form, compares it with a live broker (Plan), creates what is missing (Apply)
// and removes what it created (Destroy).
//
// Only Apply, Destroy and the inspectors talk to a broker; everything else in
// the package is pure.
package topology

import (
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// QueueType is the value of a queue's x-queue-type argument.
type QueueType string

const (
	// Quorum queues are replicated and dead-letter at least once. It is the default.
	Quorum QueueType = "quorum"
	// Classic queues live on one node and dead-letter at most once.
	Classic QueueType = "classic"
)

// Topology is a set of broker objects. The order of declaration is exchanges,
// queues, bindings.
type Topology struct {
	Exchanges    []Exchange
	Queues       []Queue
	Bindings     []Binding
	Destinations []Destination
}

// Exchange is a durable exchange.
type Exchange struct {
	Name              string
	Kind              string // direct, fanout, topic, headers, x-delayed-message, ...
	AutoDelete        bool
	Internal          bool
	AlternateExchange string     // alternate-exchange argument; empty for none
	Arguments         amqp.Table // any further arguments
}

// Queue is a durable queue. Pointers are arguments for which absence and the
// zero value differ.
type Queue struct {
	Name                 string
	Type                 QueueType      // empty means Quorum
	MessageTTL           *time.Duration // x-message-ttl, whole milliseconds
	DeadLetter           *DeadLetter
	Overflow             string // x-overflow; empty for the broker's default (drop-head)
	MaxLength            *int64 // x-max-length, messages
	MaxLengthBytes       *int64 // x-max-length-bytes
	DeliveryLimit        *int64 // x-delivery-limit; quorum only; see Unlimited
	SingleActiveConsumer bool   // x-single-active-consumer
	Arguments            amqp.Table
}

// DeadLetter says where a queue sends messages that expire, are rejected, or
// exceed a limit.
type DeadLetter struct {
	Exchange   string  // x-dead-letter-exchange; "" is the default exchange
	RoutingKey *string // x-dead-letter-routing-key; nil keeps the message's own key
	// AtLeastOnce sets x-dead-letter-strategy: at-least-once. It needs a quorum
	// queue with overflow reject-publish (RabbitMQ 3.10 or later); with any other
	// overflow the broker silently falls back to at-most-once.
	AtLeastOnce bool
}

// Binding routes from an exchange to a queue or to another exchange. Exactly
// one of Queue and ToExchange is set.
type Binding struct {
	Exchange   string // source
	Queue      string // destination queue
	ToExchange string // destination exchange
	RoutingKey string
	Arguments  amqp.Table
}

// Route is where to publish one message, and the delay it will get there.
type Route struct {
	Exchange   string
	RoutingKey string
	// Queue is the delay queue that the message enters; empty when it enters none
	// or the strategy does not know. When a queue stops confirming, the client holds
	// back its messages only.
	Queue   string
	Headers amqp.Table    // to be merged into the message's headers; nil for none
	Delay   time.Duration // the delay it will really take; never less than asked
	Hops    int           // delay queues that the message passes through
	// Mandatory tells whether basic.publish may carry the mandatory flag. The
	// x-delayed-message exchange returns every mandatory message.
	Mandatory bool
}

// Arguments of RabbitMQ's own that the package writes and compares.
const (
	ArgQueueType            = "x-queue-type"
	ArgMessageTTL           = "x-message-ttl"
	ArgDeadLetterExchange   = "x-dead-letter-exchange"
	ArgDeadLetterRoutingKey = "x-dead-letter-routing-key"
	ArgDeadLetterStrategy   = "x-dead-letter-strategy"
	ArgOverflow             = "x-overflow"
	ArgMaxLength            = "x-max-length"
	ArgMaxLengthBytes       = "x-max-length-bytes"
	ArgDeliveryLimit        = "x-delivery-limit"
	ArgSingleActiveConsumer = "x-single-active-consumer"
	ArgAlternateExchange    = "alternate-exchange"
	ArgDelayedType          = "x-delayed-type"
	ArgExpires              = "x-expires"
	ArgMaxPriority          = "x-max-priority"
)

// Values of ArgOverflow and ArgDeadLetterStrategy.
const (
	OverflowDropHead      = "drop-head"
	OverflowRejectPublish = "reject-publish"
	StrategyAtLeastOnce   = "at-least-once"
)

// Unlimited is the delivery limit of every quorum queue that the delay strategies
// and their destinations have: one that no message reaches. Without it RabbitMQ
// has a limit of 20 since 4.0, and until 4.2 whoever looks at a message and puts
// it back (basic.get, the management page, a consumer that ends) uses one up: the
// 21st look at a dead letter or a parked message would drop it, and send what
// waits in a delay queue on too early. It is not -1, which RabbitMQ 4.0 and later
// document and 3.10 does not.
const Unlimited int64 = 1_000_000_000

// unlimited sets the delivery limit of a quorum queue. Classic queues have none.
func (q Queue) unlimited() Queue {
	if q.Type != Classic {
		limit := Unlimited
		q.DeliveryLimit = &limit
	}
	return q
}

// Table is the queue's arguments as they go over the wire.
func (q Queue) Table() amqp.Table {
	t := amqp.Table{}
	maps.Copy(t, q.Arguments)
	qt := q.Type
	if qt == "" {
		qt = Quorum
	}
	t[ArgQueueType] = string(qt)
	if q.MessageTTL != nil {
		t[ArgMessageTTL] = q.MessageTTL.Milliseconds()
	}
	if d := q.DeadLetter; d != nil {
		t[ArgDeadLetterExchange] = d.Exchange
		if d.RoutingKey != nil {
			t[ArgDeadLetterRoutingKey] = *d.RoutingKey
		}
		if d.AtLeastOnce {
			t[ArgDeadLetterStrategy] = StrategyAtLeastOnce
		}
	}
	if q.Overflow != "" {
		t[ArgOverflow] = q.Overflow
	}
	setInt(t, ArgMaxLength, q.MaxLength)
	setInt(t, ArgMaxLengthBytes, q.MaxLengthBytes)
	setInt(t, ArgDeliveryLimit, q.DeliveryLimit)
	if q.SingleActiveConsumer {
		t[ArgSingleActiveConsumer] = true
	}
	return t
}

func setInt(t amqp.Table, key string, v *int64) {
	if v != nil {
		t[key] = *v
	}
}

// Table is the exchange's arguments as they go over the wire.
func (e Exchange) Table() amqp.Table {
	t := amqp.Table{}
	maps.Copy(t, e.Arguments)
	if e.AlternateExchange != "" {
		t[ArgAlternateExchange] = e.AlternateExchange
	}
	return t
}
