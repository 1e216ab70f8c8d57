package argument

// Arguments of RabbitMQ's own that the package writes and compares.
const (
	QueueType            = "x-queue-type"
	MessageTTL           = "x-message-ttl"
	DeadLetterExchange   = "x-dead-letter-exchange"
	DeadLetterRoutingKey = "x-dead-letter-routing-key"
	DeadLetterStrategy   = "x-dead-letter-strategy"
	Overflow             = "x-overflow"
	MaxLength            = "x-max-length"
	MaxLengthBytes       = "x-max-length-bytes"
	DeliveryLimit        = "x-delivery-limit"
	SingleActiveConsumer = "x-single-active-consumer"
	AlternateExchange    = "alternate-exchange"
	DelayedType          = "x-delayed-type"
	Expires              = "x-expires"
	MaxPriority          = "x-max-priority"
)

// Values of Overflow and DeadLetterStrategy.
const (
	DropHead      = "drop-head"
	RejectPublish = "reject-publish"
	// RejectPublishDLX also dead-letters what the queue refuses; classic queues
	// only.
	RejectPublishDLX = "reject-publish-dlx"
	AtLeastOnce      = "at-least-once"
)

// DelayedExchange is the type of the delayed message plugin's exchanges.
const DelayedExchange = "x-delayed-message"

// Binder is the argument of a binding that a client makes beside the plain one
// where live.LateBindings says so, and takes away again within a minute. Its value
// names the client.
const Binder = "rabbitdelay-binder"
