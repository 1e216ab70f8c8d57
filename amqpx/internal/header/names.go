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

// Headers that rabbitdelay writes, as package amqpx describes them.
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

	// OwnPrefix begins their names.
	OwnPrefix = table.OwnPrefix
)

// Values of Reason.
const (
	ReasonRejected   = "rejected"
	ReasonAttempts   = "attempts"
	ReasonDeliveries = "deliveries"
	ReasonUnreadable = "unreadable"
)

// Headers of foreign publishers that take a message another way when it is published with
// them.
const (
	CC    = "CC"
	Delay = "x-delay"
)

// Deliveries is the count of a quorum queue. Anybody may publish a message with
// it, and the queue replaces it only when it has something to count: a classic queue
// never, RabbitMQ 4.3 not for what was put back by basic.nack.
const Deliveries = "x-delivery-count"

// Acquired is how often a quorum queue has handed the message out before, since RabbitMQ 4.3. That counts what was
// put back by basic.nack, and what the consumer timeout took away.
const Acquired = "x-acquired-count"

// MaxDeliveries is how often a message may have been delivered without an
// outcome. Its queue has no limit of its own, and a message that kills each process
// which handles it would do so for ever.
const MaxDeliveries = 200

// A message's headers and properties travel in one frame (128 KiB by default), over
// whose size the broker ends the connection. MaxOfUser bounds the encoded size of the
// user's headers, MaxOfAll that of all.
const (
	MaxOfUser = 100 << 10
	MaxOfAll  = 124 << 10
)

// Routing reports whether the broker would interpret the header, so that a
// message that is published again with it would take another way: before 4.0.1
// an old x-death makes the broker drop the message as a cycle, CC and BCC copy
// it past the delay, x-delay is the plugin's, by the x-opt-delivery ones RabbitMQ
// 4.4 delays in quorum queues, ours too, and NServiceBus delays again what it finds
// its own on.
func Routing(name string) bool {
	switch name {
	case "x-death", Delay, CC, "BCC", Deliveries, Acquired,
		topology.HeaderInstant, "x-opt-delivery-delay", dlx.HeaderNServiceBusDelay:
		return true
	}
	return strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}

// Kept reports whether a message keeps a header of the user's.
func Kept(name string) bool { return !strings.HasPrefix(name, OwnPrefix) && !Routing(name) }

// Integer reads an integer header of any width.
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

// MaxEpochMilli is the end of the year 9999, the last that RFC 3339 can write.
const MaxEpochMilli = 253402300799999

// Instant reads an instant; zero for none.
func Instant(h amqp.Table, name string) time.Time {
	if ms, ok := Integer(h, name); ok && ms > 0 && ms < MaxEpochMilli {
		return time.UnixMilli(ms)
	}
	return time.Time{}
}
