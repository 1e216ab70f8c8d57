package amqpx

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/lasthop"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// Handler handles one message. Its error decides what happens to the message: nil acknowledges it, Reject(err)
// dead-letters it immediately, RetryIn(d, err) retries it after d, Snooze(d) delivers it again after d without
// counting an attempt, and Requeue(err) returns it to the queue unchanged. After any other error, and after a
// panic, the message is retried with the consumer's back-off until MaxAttempts, and then dead-lettered. The
// context ends when the consumer's drain time is over.
type Handler func(ctx context.Context, d *Delivery) error

// Delivery is a received message. Tests of a Handler can create one: an idempotent handler needs ID and Queue, a
// task handler needs ID, Version and DueAt.
type Delivery struct {
	ID    string // AMQP message-id; empty if the publisher gave none
	Queue string // the queue it was consumed from
	// DueAt is the due time that the publisher asked for, or zero if the message has no such header. For a retry
	// it is the time of the retry.
	DueAt time.Time
	// Attempt counts the attempts to handle the message, 1 on the first delivery. It increases with each of
	// rabbitdelay's own retries, but not with a redelivery after a lost connection. Since RabbitMQ 4.3, it also
	// increases if the handler ran past the broker's consumer timeout.
	Attempt int
	// MaxAttempts is the consumer's limit. After an error in attempt number MaxAttempts there is no further attempt.
	MaxAttempts int
	Snoozes     int       // how often the message was snoozed
	Version     int64     // the task's version; 0 without a task
	Created     time.Time // when the task's row was written; zero without a task
	Redelivered bool      // the broker may have delivered the message before

	// Exchange and RoutingKey are the destination that the message was originally sent to. They are the same on
	// every attempt. For a message to an exchange, or from another publisher, they are that publisher's exchange
	// and routing key. For a message to a queue, they are "" and the queue's name.
	Exchange   string
	RoutingKey string

	Body            []byte
	ContentType     string
	ContentEncoding string
	Type            string
	CorrelationID   string
	ReplyTo         string
	AppID           string
	Priority        uint8
	Timestamp       time.Time // when it was sent, whole seconds; zero if absent
	// Expiration, UserID and DeliveryMode are AMQP properties. Retries and snoozes of another publisher's message
	// keep them in the header rabbitdelay-carried, together with its Timestamp and the headers CC and x-delay.
	Expiration   string // in milliseconds, decimal; empty if absent
	UserID       string // the user that the broker has verified; empty if absent
	DeliveryMode uint8  // 1 transient, 2 persistent, 0 absent
	// Headers contains all headers as received.
	Headers amqp.Table

	deliveries int64 // how often it was delivered before, as far as its headers say
	returns    int64 // how often it came back to its queue, as far as the broker counts that
	acquired   int64 // how often the broker delivered it before, as far as the broker says
	returned   int64 // how often a consumer sent it back before its due time

	received *received // nil in a Delivery that Consume has not received
}

// DueSince returns the time from which to count lateness, and the time to show to users. It is DueAt, except if
// DueAt is the Unix epoch, which means immediately. It is then the time when the task was written or, without a
// task, the time when the message was sent.
func (d *Delivery) DueSince() time.Time {
	switch {
	case d.DueAt.UnixMilli() != 0:
		return d.DueAt
	case !d.Created.IsZero():
		return d.Created
	}
	return d.Timestamp
}

// received is the part of a Delivery that its consumer sets. Copies of the Delivery share it.
type received struct {
	consumer  *consumer
	once      sync.Once
	backoff   time.Duration // before the next attempt; computed once
	immediate atomic.Int32  // how many immediate runs are left in this attempt
}

// ReadDelivery converts a message that was received without Consume. It accepts any message, and treats headers of
// an unexpected type as absent. prefix is the prefix of the delay objects, Strategy.Prefix.
func ReadDelivery(raw amqp.Delivery, queue, prefix string) *Delivery {
	p := header.Of(&raw)
	d := &Delivery{
		ID: raw.MessageId, Queue: queue, Attempt: 1, Redelivered: raw.Redelivered,
		Body: raw.Body, ContentType: raw.ContentType, ContentEncoding: raw.ContentEncoding,
		Type: raw.Type, CorrelationID: raw.CorrelationId, ReplyTo: raw.ReplyTo, AppID: raw.AppId,
		Priority: raw.Priority, Timestamp: p.Timestamp, Headers: p.Headers,
		Expiration: p.Expiration, UserID: p.UserID, DeliveryMode: p.DeliveryMode,
		DueAt: header.Instant(raw.Headers, HeaderDue), Created: header.Instant(raw.Headers, HeaderCreated),
	}
	if n, ok := header.Integer(raw.Headers, HeaderAttempt); ok && n >= 1 && n <= math.MaxInt32 {
		d.Attempt = int(n)
	}
	if n, ok := header.Integer(raw.Headers, HeaderSnoozes); ok && n >= 1 && n <= math.MaxInt32 {
		d.Snoozes = int(n)
	}
	if v, ok := header.Integer(raw.Headers, HeaderVersion); ok {
		d.Version = v
	}
	if n, ok := header.Integer(raw.Headers, header.Deliveries); ok && raw.Redelivered {
		d.returns = n
	}
	d.deliveries = d.returns
	if n, renewed := header.Integer(raw.Headers, HeaderDeliveries); renewed {
		d.Redelivered, d.deliveries = true, d.returns+min(max(n, 0), math.MaxInt32)
	}
	if n, ok := header.Integer(raw.Headers, header.Acquired); ok && raw.Redelivered {
		d.acquired = n
	}
	if n, ok := header.Integer(raw.Headers, HeaderReturned); ok {
		d.returned = min(max(n, 0), math.MaxInt32)
	}
	if _, carried := raw.Headers[HeaderCarried]; carried && !naming.Reserved(prefix, raw.Exchange) {
		// The message was not published by a rabbitdelay consumer. The broker has verified the property against
		// the publisher's login, whereas any publisher can write the header.
		d.UserID = raw.UserId
	}
	d.Exchange, d.RoutingKey = header.SentTo(prefix, raw.Exchange, raw.RoutingKey, raw.Headers, queue)
	return d
}

// arrival reads the times in a message's headers. It treats implausible values as absent.
func arrival(raw amqp.Delivery) lasthop.Arrival {
	a := lasthop.Arrival{Sent: raw.Timestamp, Due: header.Instant(raw.Headers, HeaderDue), Again: raw.Redelivered}
	if lead, ok := header.Integer(raw.Headers, HeaderLead); ok && lead > 0 && lead <= topology.MaxLead.Milliseconds() {
		a.Lead = time.Duration(lead) * time.Millisecond
	}
	if offset, ok := header.Integer(raw.Headers, HeaderClockOffset); ok && offset > 0 && offset < header.MaxEpochMilli {
		a.Offset = time.Duration(offset) * time.Millisecond
	}
	if n, ok := header.Integer(raw.Headers, HeaderReturned); ok && n > 0 {
		a.Returned = int(min(n, math.MaxInt32))
	}
	a.Absolute, _ = raw.Headers[HeaderAbsolute].(bool)
	a.Expired = lastExpiry(raw.Headers)
	if _, renewed := raw.Headers[HeaderDeliveries]; renewed { // its last delay was not its publisher's
		a.Expired, a.Again = header.Instant(raw.Headers, HeaderExpired), true
	}
	return a
}

// lastExpiry returns when the message left its last delay queue, by the broker's clock in whole seconds, or zero
// if it passed through none. The broker lists the latest death first.
func lastExpiry(headers amqp.Table) time.Time {
	deaths, _ := headers["x-death"].([]any)
	if len(deaths) == 0 {
		return time.Time{}
	}
	death, _ := deaths[0].(amqp.Table)
	if reason, _ := death["reason"].(string); reason != "expired" {
		return time.Time{}
	}
	at, _ := death["time"].(time.Time)
	return at
}

// properties returns the properties that the message cannot keep while it is delayed.
func (d *Delivery) properties() *header.Properties {
	return &header.Properties{Expiration: d.Expiration, UserID: d.UserID, DeliveryMode: d.DeliveryMode, Timestamp: d.Timestamp, Headers: d.Headers}
}

// message returns the delivery as a message to be published again, without destination and delay. Send leaves out
// the headers that the broker interprets.
func (d *Delivery) message() Message {
	return Message{
		ID: d.ID, Body: d.Body, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding,
		Type: d.Type, CorrelationID: d.CorrelationID, ReplyTo: d.ReplyTo, AppID: d.AppID,
		Priority: d.Priority, Headers: d.Headers, Version: d.Version, Created: d.Created,
	}
}
