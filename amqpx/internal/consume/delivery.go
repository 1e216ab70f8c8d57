package consume

import (
	"crypto/sha256"
	"math"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
)

// Delivery is a decoded received message, with its state until it is settled.
type Delivery struct {
	Raw amqp.Delivery // as received
	// Properties are the message's headers and the properties that were carried in a header while it was delayed.
	header.Properties

	ID          string
	Queue       string
	DueAt       time.Time
	Attempt     int // 1 on the first delivery
	MaxAttempts int
	Snoozes     int
	Version     int64
	Created     time.Time
	Redelivered bool
	Exchange    string // with RoutingKey: where the message was originally sent
	RoutingKey  string

	deliveries int64 // number of earlier deliveries, according to its headers
	returns    int64 // number of times it returned to its queue, if the broker counts that
	acquired   int64 // number of earlier deliveries, according to the broker
	returned   int64 // number of times a consumer sent it back before its due time

	consumer *Consumer // nil if the message was not received by a Consumer
	sub      *subscription
	came     time.Time // when it arrived
	check    dueCheck
	worn     bool // the delivery must be renewed: see subscription.renew
	index    int  // in a heap of the buffer; negative if it is in none

	handling   Handling // nil before the handler is started
	assignedID string   // see AssignID
	backoff    struct {
		once  sync.Once
		delay time.Duration // before the next attempt
	}
	immediate atomic.Int32 // how many immediate runs are left in this attempt
}

// Decode reads a message that was received from a queue. It accepts any message, and treats headers of an unexpected
// type as absent. prefix is the prefix of the delay objects.
func Decode(raw amqp.Delivery, queue, prefix string) *Delivery {
	d := &Delivery{
		Raw: raw, Properties: header.Of(&raw), ID: raw.MessageId, Queue: queue, Attempt: 1, Redelivered: raw.Redelivered,
		DueAt: header.Instant(raw.Headers, header.Due), Created: header.Instant(raw.Headers, header.Created), index: -1,
	}
	if n, ok := header.Integer(raw.Headers, header.Due); ok && n == 0 { // due immediately, which is not the same as no due time
		d.DueAt = time.UnixMilli(0)
	}
	if n, ok := header.Integer(raw.Headers, header.Attempt); ok && n >= 1 && n <= math.MaxInt32 {
		d.Attempt = int(n)
	}
	if n, ok := header.Integer(raw.Headers, header.Snoozes); ok && n >= 1 && n <= math.MaxInt32 {
		d.Snoozes = int(n)
	}
	if v, ok := header.Integer(raw.Headers, header.Version); ok && v >= 1 {
		d.Version = v
	}
	if n, ok := header.Integer(raw.Headers, header.Deliveries); ok && raw.Redelivered {
		d.returns = n
	}
	d.deliveries = d.returns
	if n, renewed := header.Integer(raw.Headers, header.Delivered); renewed {
		d.Redelivered, d.deliveries = true, d.returns+min(max(n, 0), math.MaxInt32)
	}
	if n, ok := header.Integer(raw.Headers, header.Acquired); ok && raw.Redelivered {
		d.acquired = n
	}
	if n, ok := header.Integer(raw.Headers, header.Returned); ok {
		d.returned = min(max(n, 0), math.MaxInt32)
	}
	if _, carried := raw.Headers[header.Carried]; carried && !naming.Reserved(prefix, raw.Exchange) {
		// The message did not come through an exchange of the strategies, so any publisher may have written the header.
		// Use the property, which the broker has verified against the publisher's login.
		d.UserID = raw.UserId
	}
	d.Exchange, d.RoutingKey = header.SentTo(prefix, raw.Exchange, raw.RoutingKey, raw.Headers, queue)
	return d
}

// decode reads a message from the consumer's queue, and decides when its handler may start.
func (k *Consumer) decode(raw amqp.Delivery, s *subscription) *Delivery {
	d := Decode(raw, k.set.Queue, k.all.cfg.Strategy.Prefix())
	d.MaxAttempts, d.consumer, d.sub = k.set.Retry.MaxAttempts, k, s
	k.checkDue(d)
	return d
}

// AssignID records the id that the handler has given to a message without an id. The message's retries and its dead
// letter have this id.
func (d *Delivery) AssignID(id string) { d.assignedID = id }

// DueSince returns the time from which to count the lateness of a delivery: the due time or, if that is the Unix epoch,
// which means immediately, the time when the task was written or, without a task, when the message was sent.
func DueSince(due, created, sent time.Time) time.Time {
	switch {
	case due.UnixMilli() != 0:
		return due
	case !created.IsZero():
		return created
	}
	return sent
}

// identity returns a value that distinguishes the messages of a queue: the message's id or, without one, a hash of
// its body.
func (d *Delivery) identity() string {
	if d.ID != "" {
		return d.ID
	}
	sum := sha256.Sum256(d.Raw.Body)
	return string(sum[:])
}
