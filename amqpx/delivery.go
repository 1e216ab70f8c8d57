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

// Handler acts on one message. Its error decides the message's fate: nil
// acknowledges; Reject(err) dead-letters now; RetryIn(d, err) retries after d;
// Snooze(d) delivers it again after d without counting an attempt; Requeue(err)
// gives it back to the queue as it is; any other error, and a panic, retries with
// the consumer's back-off until MaxAttempts, then dead-letters. The context ends
// when the consumer's drain time is over.
type Handler func(ctx context.Context, d *Delivery) error

// Delivery is a received message. Tests of a Handler can build one: an
// idempotent handler needs ID and Queue, a task handler ID, Version and DueAt.
type Delivery struct {
	ID    string // AMQP message-id; empty if the publisher gave none
	Queue string // the queue it was consumed from
	// DueAt is the due instant that the publisher asked for, zero without the
	// header. For a retry it is the instant of the retry.
	DueAt time.Time
	// Attempt counts deliveries by rabbitdelay's own retries, 1 on the first. A
	// redelivery after a lost connection does not count; since RabbitMQ 4.3 one does
	// whose handler ran past the broker's consumer timeout.
	Attempt int
	// MaxAttempts is the consumer's limit: after an error in attempt
	// MaxAttempts there is no further one.
	MaxAttempts int
	Snoozes     int       // how often it was snoozed
	Version     int64     // task version, 0 for none
	Created     time.Time // when the row of that task was written; zero for none
	Redelivered bool      // the broker may have delivered it before

	// Exchange and RoutingKey are where the message was sent to, the same on every
	// attempt: those of an exchange destination or of a foreign publisher, and ""
	// and the queue's name for a message to the queue.
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
	// Expiration, UserID and DeliveryMode are AMQP's properties. Retries and
	// snoozes of a foreign publisher's message keep them, with its Timestamp and the
	// headers CC and x-delay, in the header rabbitdelay-carried.
	Expiration   string // milliseconds in decimal; empty for none
	UserID       string // whose the broker found it to be; empty for none
	DeliveryMode uint8  // 1 transient, 2 persistent, 0 absent
	// Headers are all headers as received.
	Headers amqp.Table

	deliveries int64 // how often it was delivered before, as far as it says so
	returns    int64 // how often it came back to its queue, as far as that counts
	acquired   int64 // how often it was handed out before, as far as the broker says so
	returned   int64 // how often a consumer sent it back before its instant

	received *received // nil in a Delivery that a test made
}

// DueSince is DueAt, or when its task was written, or else when it was sent, if that is the instant 0,
// which means immediately: the instant to show, and to count lateness from.
func (d *Delivery) DueSince() time.Time {
	switch {
	case d.DueAt.UnixMilli() != 0:
		return d.DueAt
	case !d.Created.IsZero():
		return d.Created
	}
	return d.Timestamp
}

// received is what a Delivery has of its consumer. Copies of a Delivery share it.
type received struct {
	consumer  *consumer
	once      sync.Once
	backoff   time.Duration // before the next attempt, decided once
	immediate atomic.Int32  // runs that may follow at once, in this attempt
}

// ReadDelivery reads a message that was received from a queue otherwise than by Consume. It
// takes whatever comes: headers of other types than expected count as absent. Prefix is that
// of the delay objects, Strategy.Prefix.
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
		// Not by a consumer of ours. The broker has compared the property with who was
		// logged in; a header anybody may write.
		d.UserID = raw.UserId
	}
	d.Exchange, d.RoutingKey = header.SentTo(prefix, raw.Exchange, raw.RoutingKey, raw.Headers, queue)
	return d
}

// arrival reads what a message says of its instants. Values that nobody could mean count
// as absent.
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
	if _, renewed := raw.Headers[HeaderDeliveries]; renewed { // its last delay was not that of its publisher
		a.Expired, a.Again = header.Instant(raw.Headers, HeaderExpired), true
	}
	return a
}

// lastExpiry returns when the message left its last delay queue, by the broker's clock in
// whole seconds; zero if it left none. The broker lists the latest death first.
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

// properties are those that the message cannot keep while it waits.
func (d *Delivery) properties() *header.Properties {
	return &header.Properties{Expiration: d.Expiration, UserID: d.UserID, DeliveryMode: d.DeliveryMode, Timestamp: d.Timestamp, Headers: d.Headers}
}

// message is the delivery as a message to be published again, without its
// destination and delay. The headers that the broker interprets are left out by
// Send.
func (d *Delivery) message() Message {
	return Message{
		ID: d.ID, Body: d.Body, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding,
		Type: d.Type, CorrelationID: d.CorrelationID, ReplyTo: d.ReplyTo, AppID: d.AppID,
		Priority: d.Priority, Headers: d.Headers, Version: d.Version, Created: d.Created,
	}
}
