package argument

import "slices"

// These are the RabbitMQ arguments that rabbitdelay sets and compares.
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

// Names returns the names of RabbitMQ's arguments that begin with x-, sorted. They include arguments that rabbitdelay
// does not interpret and only passes on to the broker.
func Names() []string {
	names := []string{
		QueueType, MessageTTL, DeadLetterExchange, DeadLetterRoutingKey, DeadLetterStrategy, Overflow, MaxLength, MaxLengthBytes,
		DeliveryLimit, SingleActiveConsumer, DelayedType, Expires, MaxPriority,
		"x-consumer-timeout", "x-delayed-retry-max", "x-delayed-retry-min", "x-delayed-retry-type", "x-match", "x-max-age",
		"x-max-in-memory-bytes", "x-max-in-memory-length", "x-queue-leader-locator", "x-queue-master-locator", "x-queue-mode",
		"x-queue-version", "x-quorum-initial-group-size", "x-quorum-target-group-size", "x-stream-max-segment-size-bytes",
	}
	slices.Sort(names)
	return names
}

// These are values of Overflow and DeadLetterStrategy.
const (
	DropHead      = "drop-head"
	RejectPublish = "reject-publish"
	// RejectPublishDLX also dead-letters the messages that the queue rejects. Only classic queues support it.
	RejectPublishDLX = "reject-publish-dlx"
	AtLeastOnce      = "at-least-once"
)

// DelayedExchange is the type of the delayed message plugin's exchanges.
const DelayedExchange = "x-delayed-message"

// Binder is an argument of the temporary binding that a client adds alongside the regular one if live.LateBindings is
// true, and removes within about a minute. Its value identifies the client.
const Binder = "rabbitdelay-binder"
