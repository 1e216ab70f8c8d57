package amqpx

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Message is a message to be delivered later. One of Queue and Exchange names
// its destination; at most one of Delay and DeliverAt says when.
type Message struct {
	// ID is the AMQP message-id; a UUIDv7 is given when empty. Retries of one
	// Send keep it, so consumers can recognise a duplicate. At most 255 bytes.
	ID string

	// Queue is the destination queue. One that the broker has named, for replies, is
	// possible; with a delay it must not be exclusive to its connection.
	Queue string
	// Exchange with RoutingKey is the other form of a destination; the exchange
	// may be of any type and must exist.
	Exchange   string
	RoutingKey string

	// Delay is counted from the call of Send, and in SendBatch from when the
	// message is first published. 0 delivers at once, straight to an exchange: no
	// route queue is made, and a message that the exchange routes to no queue is
	// ErrUnroutable (with DeclareNothing it goes through its route queue all the same).
	// Fractions of a millisecond round up. Negative is an error.
	Delay time.Duration
	// DeliverAt is the due instant; an instant in the past delivers at once. If
	// it is zero, Delay applies.
	DeliverAt time.Time
	// ClockOffset is the clock of DeliverAt minus this process's, for a DeliverAt
	// that was computed on another machine, such as the database's. The message
	// waits until that clock shows DeliverAt, and has that as its due instant.
	// Without DeliverAt it must be 0.
	ClockOffset time.Duration
	// Tolerance is how much later the message may arrive if that saves hops in
	// the broker. 0 means as close as the resolution allows.
	Tolerance time.Duration

	Body            []byte
	ContentType     string
	ContentEncoding string
	Type            string
	CorrelationID   string
	ReplyTo         string
	AppID           string
	Priority        uint8
	// Headers are copied. Names that begin with "rabbitdelay-", and those that
	// the broker interprets (x-death, x-first-death-*, x-last-death-*, x-delay,
	// CC, BCC) or NServiceBus (its delay), are left out.
	Headers amqp.Table

	// Attempt is the number of the delivery to come, 1 (also for 0) on the first.
	Attempt int
	// Version is the version of the task that the message stands for, 0 for none.
	Version int64
	// Created is when the row of that task was written, zero for none. It distinguishes
	// the task from an earlier one of the same id. It is kept in whole milliseconds.
	Created time.Time

	own amqp.Table  // further headers of rabbitdelay's own
	as  *asReceived // of a message that is forwarded or passed on as it is; nil for none
}
