package header

import (
	"reflect"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/table"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Names of rabbitdelay's own headers. Package amqpx describes them.
const (
	Due         = OwnPrefix + "due"
	Attempt     = OwnPrefix + "attempt"
	Snoozes     = OwnPrefix + "snoozes"
	Lead        = OwnPrefix + "lead"
	Absolute    = OwnPrefix + "absolute"
	ClockOffset = OwnPrefix + "clock-offset"
	Returned    = OwnPrefix + "returned"
	Expired     = OwnPrefix + "expired"
	Delivered   = OwnPrefix + "deliveries"
	Version     = OwnPrefix + "version"
	Created     = OwnPrefix + "created"
	Destination = OwnPrefix + "destination"
	Exchange    = OwnPrefix + "exchange"
	RoutingKey  = OwnPrefix + "routing-key"
	Carried     = OwnPrefix + "carried"
	Queue       = OwnPrefix + "queue"
	Requeued    = OwnPrefix + "requeued"
	Reason      = OwnPrefix + "reason"
	Error       = OwnPrefix + "error"
	Attempts    = OwnPrefix + "attempts"
	Unreadable  = table.HeaderUnreadable
	Raw         = table.HeaderRaw

	// OwnPrefix is the prefix of these names.
	OwnPrefix = table.OwnPrefix
)

// Values of Reason.
const (
	ReasonRejected   = "rejected"
	ReasonAttempts   = "attempts"
	ReasonDeliveries = "deliveries"
	ReasonUnreadable = "unreadable"
)

// Headers that other publishers set and that affect routing.
const (
	CC    = "CC"
	Delay = "x-delay"
)

// Deliveries is the name of the header with a quorum queue's delivery count. Any publisher can set it, and the queue
// replaces it only if the count is not zero. A classic queue never replaces it, and RabbitMQ 4.3 does not count
// messages that were put back by basic.nack.
const Deliveries = "x-delivery-count"

// Acquired is the name of the header in which a quorum queue counts its earlier deliveries of the message, since
// RabbitMQ 4.3. It includes messages that were put back by basic.nack, or that the consumer timeout returned to the
// queue.
const Acquired = "x-acquired-count"

// MaxDeliveries is the number of times that a message may be delivered without an outcome. Without this limit, a
// message that crashes each process that handles it would be redelivered forever, because its queue has no delivery
// limit that it would reach.
const MaxDeliveries = 200

// A message's headers and properties travel in one frame (128 KiB by default), and the broker ends the connection if it
// is larger. MaxOfUser limits the encoded size of the user's headers, MaxOfAll the size of all headers.
const (
	MaxOfUser = 100 << 10
	MaxOfAll  = 124 << 10
)

// Routing reports whether the broker would interpret the header and therefore change the route of a message that is
// published again with it. Before 4.0.1, an old x-death makes the broker drop the message as a cycle. CC and BCC
// deliver copies without the delay. x-delay belongs to the plugin. The x-opt-delivery headers make RabbitMQ 4.4 delay a
// message in quorum queues, including ours. NServiceBus delays a message again if the message has NServiceBus's own
// delay header.
func Routing(name string) bool {
	switch name {
	case "x-death", Delay, CC, "BCC", Deliveries, Acquired,
		topology.HeaderInstant, "x-opt-delivery-delay", dlx.HeaderNServiceBusDelay:
		return true
	}
	return strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}

// Kept reports whether a message keeps a header of the application.
func Kept(name string) bool { return !strings.HasPrefix(name, OwnPrefix) && !Routing(name) }

// Integer returns the value of an integer header of any width.
func Integer(h amqp.Table, name string) (int64, bool) {
	switch v := reflect.ValueOf(h[name]); v.Kind() {
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Int:
		return v.Int(), true
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return int64(v.Uint()), true
	default:
		return 0, false
	}
}

// MaxEpochMilli is the end of the year 9999, the last year that RFC 3339 can represent.
const MaxEpochMilli = 253402300799999

// Instant returns the time in a header, or the zero time if the header is missing.
func Instant(h amqp.Table, name string) time.Time {
	if ms, ok := Integer(h, name); ok && ms > 0 && ms < MaxEpochMilli {
		return time.UnixMilli(ms)
	}
	return time.Time{}
}
