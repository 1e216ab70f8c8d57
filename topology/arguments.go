package topology

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

// ArgBinder is the argument of a binding that a client makes beside the plain one
// where live.LateBindings says so, and takes away again within a minute. Its value
// names the client.
const ArgBinder = "rabbitdelay-binder"

// HeaderInstant is the header by which RabbitMQ 4.4 and later hold a message in a
// quorum queue: int64, milliseconds of the epoch. A value of another type, an
// instant in the past, an older broker, a classic queue and a stream delay nothing.
const HeaderInstant = "x-opt-delivery-time"
