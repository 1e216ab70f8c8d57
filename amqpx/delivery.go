package amqpx

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/consume"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
)

// Handler handles one message. Its error decides what happens to the message: nil acknowledges it, Reject(err)
// dead-letters it immediately, RetryIn(d, err) retries it after d, Snooze(d) delivers it again after d without counting
// an attempt, and Requeue(err) returns it to the queue unchanged. After any other error, and after a panic, the message
// is retried with the consumer's back-off until MaxAttempts, and then dead-lettered. The context is cancelled when the
// consumer's drain time or the context of Close has ended.
type Handler func(ctx context.Context, d *Delivery) error

// Delivery is a received message. A middleware or a handler may change its fields, for example to decrypt the body.
// Retries and the dead letter contain the message as it was received, and share the bytes of Body and the map in
// Headers with the Delivery. So assign new values to these two fields, and do not modify the old ones.
//
// Tests of a Handler can create a Delivery: an idempotent handler needs ID and Queue, a task handler needs ID, Version
// and DueAt.
type Delivery struct {
	ID    string // AMQP message-id; empty if the publisher gave none
	Queue string // the queue from which the message was consumed
	// DueAt is the due time that the publisher asked for, or zero if the message has no header HeaderDue. The Unix
	// epoch means immediately (see DueSince). For a retry it is the time of the retry.
	DueAt time.Time
	// Attempt counts the attempts to handle the message, 1 on the first delivery. It increases with each of
	// rabbitdelay's own retries, but not with a redelivery after a lost connection. Since RabbitMQ 4.3, it also
	// increases if the handler ran past the broker's consumer timeout.
	Attempt int
	// MaxAttempts is the consumer's limit. After an error in attempt number MaxAttempts there is no further attempt.
	MaxAttempts int
	Snoozes     int       // number of times the message was snoozed
	Version     int64     // the task's version; 0 without a task
	Created     time.Time // when the task's row was written; zero without a task
	Redelivered bool      // the broker may have delivered the message before

	// Exchange and RoutingKey are the destination that the message was originally sent to. They are the same on every
	// attempt. For a message that was sent to an exchange, or by another publisher, they are the publisher's exchange
	// and routing key. For a message that was sent to a queue, they are "" and the queue's name.
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
	Timestamp       time.Time // when the message was sent, in whole seconds; zero if absent
	// Expiration, UserID and DeliveryMode are AMQP properties. Retries and snoozes of another publisher's message
	// keep them in the header rabbitdelay-carried, together with its Timestamp and the headers CC and x-delay.
	Expiration   string // in milliseconds, decimal; empty if absent
	UserID       string // the user that the broker has verified; empty if absent
	DeliveryMode uint8  // 1 transient, 2 persistent, 0 absent
	// Headers contains all headers as received.
	Headers amqp.Table

	received *consume.Delivery // nil if the Delivery was not received by Consume
}

// DueSince returns the due time for computing lateness and for showing to users. It is DueAt or, if DueAt is the Unix
// epoch, which means immediately, the time when the task was written or, without a task, the time when the message was
// sent.
func (d *Delivery) DueSince() time.Time { return consume.DueSince(d.DueAt, d.Created, d.Timestamp) }

// deliveryOf returns the Delivery that the handler of a received message gets.
func deliveryOf(r *consume.Delivery) *Delivery {
	return &Delivery{
		ID: r.ID, Queue: r.Queue, DueAt: r.DueAt, Attempt: r.Attempt, MaxAttempts: r.MaxAttempts, Snoozes: r.Snoozes,
		Version: r.Version, Created: r.Created, Redelivered: r.Redelivered, Exchange: r.Exchange, RoutingKey: r.RoutingKey,
		Body: r.Raw.Body, ContentType: r.Raw.ContentType, ContentEncoding: r.Raw.ContentEncoding, Type: r.Raw.Type,
		CorrelationID: r.Raw.CorrelationId, ReplyTo: r.Raw.ReplyTo, AppID: r.Raw.AppId, Priority: r.Raw.Priority,
		Timestamp: r.Timestamp, Expiration: r.Expiration, UserID: r.UserID, DeliveryMode: r.DeliveryMode, Headers: r.Headers,
		received: r,
	}
}

// ApplyPolicy returns the error that the consumer's policy (WithErrorPolicy) substitutes for a handler's error. It is
// for wrappers of a Handler that keep their own record of what happens to a message. The policy is applied only once:
// an error that ApplyPolicy has returned stays unchanged. Without a policy, and for a Delivery that was not received by
// Consume, ApplyPolicy returns err.
func (d *Delivery) ApplyPolicy(err error) error {
	if d.received == nil {
		return err
	}
	return d.received.ApplyPolicy(err)
}

// RetryDelay returns how long the message will wait for its next delivery if the handler returns err: the delay of
// Snooze or RetryIn, or the consumer's back-off. Repeated calls with the same error return the same delay. A delay of 0
// with true means that the handler will run again immediately, in the same attempt (topology.Retry.ImmediateRetries).
// RetryDelay returns false if there will be no further delivery after a delay, because err rejects or requeues the
// message, this was its last attempt, or the Delivery was not received by Consume.
func (d *Delivery) RetryDelay(err error) (delay time.Duration, ok bool) {
	if d.received == nil || err == nil {
		return 0, false
	}
	return d.received.RetryDelay(err)
}

// properties returns the headers, and the properties that must not be set on the message while it is delayed.
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
