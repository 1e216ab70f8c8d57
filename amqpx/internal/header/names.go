package header

import (
	"reflect"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/table"
	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Names of rabbitdelay's own headers. Times are milliseconds since the Unix epoch. Each header costs the client and the
// broker time, so a message carries only the headers whose values the consumer cannot derive. Package amqpx exports the
// names that applications read.
const (
	Due         = OwnPrefix + "due"          // int64: the due time
	Attempt     = OwnPrefix + "attempt"      // int64: from 2 on, and on dead letters the last attempt; absent on the first delivery
	Snoozes     = OwnPrefix + "snoozes"      // int64: from 1 on; absent on a message that was never snoozed
	Lead        = naming.HeaderLead          // int64: how many ms before its due time the message may reach its consumer, which holds it; absent for 0
	Absolute    = OwnPrefix + "absolute"     // bool: true if the publisher asked for an absolute time; absent for a delay
	ClockOffset = OwnPrefix + "clock-offset" // int64: ms by which the clock that the due time was computed with is ahead of the publisher's; absent if it is behind, or less than 20 ms ahead
	Returned    = OwnPrefix + "returned"     // int64: number of times that consumers sent the message back as too early; absent for 0
	Expired     = OwnPrefix + "expired"      // int64: on a renewed message, when it left its last delay queue, by the broker's clock; absent if it passed through none
	Delivered   = OwnPrefix + "deliveries"   // int64: on a renewed message, number of earlier deliveries in which it may have been handled
	Version     = OwnPrefix + "version"      // int64: the task's version; absent without a task
	Created     = OwnPrefix + "created"      // int64: when the task's row was written; absent without a task
	Destination = naming.HeaderDestination   // string: exchange:routing-key for a message to an exchange; for other messages the queue, on dead letters only

	// Exchange and RoutingKey are set on the retries and the dead letter of a message that was published to an exchange:
	// they are that exchange and its routing key.
	Exchange   = OwnPrefix + "exchange"
	RoutingKey = OwnPrefix + "routing-key"

	// Carried is a table with the expiration, user-id, delivery-mode, timestamp, CC and x-delay of another publisher's
	// message while the message is delayed. Values that the message does not have are left out.
	Carried = OwnPrefix + "carried"

	Queue    = OwnPrefix + "queue"    // string, on dead letters: the queue whose consumer dead-lettered the message
	Requeued = OwnPrefix + "requeued" // int64: when inspect.Requeue last sent the message; kept on its retries and dead letters
	Reason   = OwnPrefix + "reason"   // string, on dead letters: why the message was dead-lettered, one of the constants below
	Error    = OwnPrefix + "error"    // string, on retries and dead letters: the last error's text, cut at 1 KiB
	Attempts = OwnPrefix + "attempts" // array of strings, on retries and dead letters: "time error" for each of the last 32 attempts

	// Unreadable and Raw replace headers that amqp091 cannot decode; see package table.
	Unreadable = naming.HeaderUnreadable
	Raw        = table.HeaderRaw

	// OwnPrefix is the prefix of these names.
	OwnPrefix = naming.HeaderPrefix
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
// deliveries that were requeued by basic.nack.
const Deliveries = "x-delivery-count"

// Acquired is the name of the header in which a quorum queue counts its earlier deliveries of the message, since
// RabbitMQ 4.3. The count includes deliveries that were requeued by basic.nack or by the consumer timeout.
const Acquired = "x-acquired-count"

// MaxDeliveries is the number of times that a message may be delivered without an outcome. Without this limit, a
// message that crashes each process that handles it would be redelivered forever, because the queues that rabbitdelay
// declares have no effective delivery limit.
const MaxDeliveries = 200

// A message's headers and properties travel in one frame (128 KiB by default), and the broker closes the connection if
// it is larger. MaxOfUser limits the encoded size of the user's headers, MaxOfAll the size of all headers.
const (
	MaxOfUser = 100 << 10
	MaxOfAll  = 124 << 10
)

// Routing reports whether a message must not be published again with this header, because the broker or another system
// would interpret it. Before 4.0.1, an old x-death makes the broker drop the message as a cycle. CC and BCC deliver
// copies without the delay. x-delay belongs to the plugin. The x-opt-delivery headers make RabbitMQ 4.4 delay a message
// in quorum queues, including rabbitdelay's. NServiceBus delays a message again if the message has NServiceBus's own
// delay header.
func Routing(name string) bool {
	switch name {
	case "x-death", Delay, CC, "BCC", Deliveries, Acquired,
		topology.HeaderInstant, "x-opt-delivery-delay", foreign.HeaderNServiceBusDelay:
		return true
	}
	return strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}

// Kept reports whether a header that an application has set is published with its message. Other headers are left out.
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

// Instant returns the time in a header, or the zero time if the header is missing or is not a number between 0 and
// MaxEpochMilli.
func Instant(h amqp.Table, name string) time.Time {
	if ms, ok := Integer(h, name); ok && ms > 0 && ms < MaxEpochMilli {
		return time.UnixMilli(ms)
	}
	return time.Time{}
}
