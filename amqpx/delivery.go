package amqpx

import (
	"context"
	"math"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
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
	// redelivery after a lost connection does not count.
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

	received *received // nil in a Delivery that a test made
}

// received is what a Delivery has of its consumer. Copies of a Delivery share it.
type received struct {
	consumer *consumer
	once     sync.Once
	backoff  time.Duration // before the next attempt, decided once
}

// decode reads a message of the consumer's queue.
func (k *consumer) decode(raw amqp.Delivery) *Delivery {
	d := decode(raw, k.queue)
	d.MaxAttempts, d.received = k.retry.MaxAttempts, &received{consumer: k}
	d.believeUser(k.c.strategy.Prefix(), &raw)
	d.Exchange, d.RoutingKey = sentTo(k.c.strategy.Prefix(), raw.Exchange, raw.RoutingKey, raw.Headers, k.queue)
	return d
}

// decode reads a received message, without where it was sent to. It takes whatever
// comes: headers of other types than expected count as absent.
func decode(raw amqp.Delivery, queue string) *Delivery {
	d := &Delivery{
		ID: raw.MessageId, Queue: queue, Attempt: 1, Redelivered: raw.Redelivered,
		Body: raw.Body, ContentType: raw.ContentType, ContentEncoding: raw.ContentEncoding,
		Type: raw.Type, CorrelationID: raw.CorrelationId, ReplyTo: raw.ReplyTo, AppID: raw.AppId,
		Priority: raw.Priority, Timestamp: raw.Timestamp, Headers: raw.Headers,
		Expiration: raw.Expiration, UserID: raw.UserId, DeliveryMode: raw.DeliveryMode,
	}
	d.uncarry()
	if due, ok := headerInt(raw.Headers, HeaderDue); ok && due > 0 && due < maxEpochMilli {
		d.DueAt = time.UnixMilli(due)
	}
	if n, ok := headerInt(raw.Headers, HeaderAttempt); ok && n >= 1 && n <= math.MaxInt32 {
		d.Attempt = int(n)
	}
	if n, ok := headerInt(raw.Headers, HeaderSnoozes); ok && n >= 1 && n <= math.MaxInt32 {
		d.Snoozes = int(n)
	}
	if v, ok := headerInt(raw.Headers, HeaderVersion); ok {
		d.Version = v
	}
	if at, ok := headerInt(raw.Headers, HeaderCreated); ok && at > 0 && at < maxEpochMilli {
		d.Created = time.UnixMilli(at)
	}
	return d
}

// sentTo is where a message was sent to that came to a queue through an exchange,
// with a routing key. What a strategy delivers, retries above all, comes through an
// exchange of ours and with a key of ours; a retry's headers then have the exchange
// and the key of the first attempt.
func sentTo(prefix, exchange, key string, headers amqp.Table, queue string) (string, string) {
	if exchange != "" && !topology.Reserved(prefix, exchange) {
		return exchange, key
	}
	if exchange, _ = headers[HeaderExchange].(string); exchange == "" {
		return "", queue
	}
	key, _ = headers[HeaderRoutingKey].(string)
	return exchange, key
}

// origin adds the headers of a retry or a dead letter that say where the message
// was sent to, unless that was the queue itself.
func (d *Delivery) origin(own amqp.Table) {
	if d.Exchange == "" {
		return
	}
	own[HeaderExchange], own[HeaderRoutingKey] = d.Exchange, d.RoutingKey
	own[HeaderDestination] = topology.Destination{Exchange: d.Exchange, RoutingKey: d.RoutingKey}.String()
}

// maxEpochMilli is the end of the year 9999, the last that RFC 3339 can write.
const maxEpochMilli = 253402300799999

// headerInt reads an integer header of any width.
func headerInt(h amqp.Table, name string) (int64, bool) {
	switch v := h[name].(type) {
	case int64:
		return v, true
	case int32:
		return int64(v), true
	case int16:
		return int64(v), true
	case int8:
		return int64(v), true
	case uint8:
		return int64(v), true
	case uint16:
		return int64(v), true
	case uint32:
		return int64(v), true
	case int:
		return int64(v), true
	}
	return 0, false
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
