package inspect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/consume"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/alike"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Values of DeadLetter.Reason.
const (
	// Reasons that a rabbitdelay consumer writes to amqpx.HeaderReason.
	ReasonRejected   = header.ReasonRejected   // "rejected": the handler returned amqpx.Reject
	ReasonAttempts   = header.ReasonAttempts   // "attempts": all attempts were used up
	ReasonDeliveries = header.ReasonDeliveries // "deliveries": more than 200 deliveries without an outcome
	ReasonUnreadable = header.ReasonUnreadable // "unreadable": amqp091 cannot read its headers, and the dead letter has the header rabbitdelay-raw-headers

	// ReasonParked means that the message became due while no queue was bound for its destination.
	ReasonParked = "parked"

	// The broker's own reasons, as in x-death.
	ReasonExpired       = "expired"        // the TTL of the queue or of the message
	ReasonMaxLen        = "maxlen"         // the queue's length limit
	ReasonDeliveryLimit = "delivery_limit" // the queue's delivery limit
)

// DeadLetter is a message in a dead-letter queue or in the parked queue. In the embedded Delivery, Queue is that queue,
// Attempt is the attempt that failed last, and Exchange and RoutingKey are the ones that a handler saw.
type DeadLetter struct {
	*amqpx.Delivery

	// Reason is why the message is in this queue. It is one of the Reason constants, or "rejected" if another program's
	// consumer rejected the message. It is empty for a message that is not a dead letter.
	Reason string
	// Error is the text of the last error, or empty if none is known.
	Error string
	// Attempts lists the failed attempts, each as "time error", and at most the last 32.
	Attempts []string
	// Died is when the message arrived in this queue, by the clock of the consumer or of the broker. The broker's time
	// is in whole seconds. It is zero if unknown.
	Died time.Time
	// Destination is where the message belongs: the queue in which it died, or the destination that a parked message
	// was sent to. It is zero if unknown.
	Destination topology.Destination
	// Requeued is when Requeue last sent the message, or zero if it never did.
	Requeued time.Time
}

// read decodes a message that was received without Consume. It accepts any message, and treats headers of an unexpected
// type as absent.
func read(raw amqp.Delivery, queue, prefix string) *amqpx.Delivery {
	d := consume.Decode(raw, queue, prefix)
	return &amqpx.Delivery{
		ID: d.ID, Queue: d.Queue, DueAt: d.DueAt, Attempt: d.Attempt, Snoozes: d.Snoozes, Version: d.Version, Created: d.Created,
		Redelivered: d.Redelivered, Exchange: d.Exchange, RoutingKey: d.RoutingKey,
		Body: raw.Body, ContentType: raw.ContentType, ContentEncoding: raw.ContentEncoding, Type: raw.Type,
		CorrelationID: raw.CorrelationId, ReplyTo: raw.ReplyTo, AppID: raw.AppId, Priority: raw.Priority,
		Timestamp: d.Timestamp, Expiration: d.Expiration, UserID: d.UserID, DeliveryMode: d.DeliveryMode, Headers: d.Headers,
	}
}

// ReadDeadLetter decodes a message that was received from a queue. The parameter prefix is the prefix of the delay
// objects, as returned by Strategy.Prefix.
func ReadDeadLetter(raw amqp.Delivery, queue, prefix string) DeadLetter {
	l := DeadLetter{Delivery: read(raw, queue, prefix), Died: raw.Timestamp, Requeued: header.Instant(raw.Headers, header.Requeued)}
	l.Error, _ = raw.Headers[header.Error].(string)
	for _, a := range header.FailedAttempts(raw.Headers) {
		text, _ := a.(string) // FailedAttempts returns only strings
		l.Attempts = append(l.Attempts, text)
	}
	exchange, key := raw.Exchange, raw.RoutingKey
	died, byBroker := lastDeath(raw.Headers, prefix)
	switch reason, _ := raw.Headers[header.Reason].(string); {
	case reason != "":
		l.Reason = reason
		l.Destination.Queue, _ = raw.Headers[header.Queue].(string)
		l.Died = lastAttempt(l.Attempts, l.Died)
		exchange, key = "", "" // it was published to the dead-letter queue itself
	case queue == topology.ParkedQueue(prefix) || raw.Exchange == topology.ParkedQueue(prefix):
		l.Reason = ReasonParked
		l.Destination = parkedFor(raw, prefix)
		if died.at.After(l.Died) {
			l.Died = died.at
		}
	case byBroker:
		l.Reason, l.Died = died.reason, died.at
		l.Destination.Queue = died.queue
		exchange, key = died.exchange, died.key
	}
	if why, ok := raw.Headers[header.Unreadable].(string); ok {
		l.Reason, l.Error = ReasonUnreadable, why
	}
	l.Exchange, l.RoutingKey = header.SentTo(prefix, exchange, key, raw.Headers, l.Destination.Queue)
	return l
}

// lastAttempt returns the time of the last attempt with a valid time, or fallback if there is none.
func lastAttempt(attempts []string, fallback time.Time) time.Time {
	for _, a := range slices.Backward(attempts) {
		text, _, _ := strings.Cut(a, " ")
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
			return at
		}
	}
	return fallback
}

// parkedFor returns the destination of a parked message.
func parkedFor(raw amqp.Delivery, prefix string) topology.Destination {
	key, ok := dlx.DestinationKey(raw.RoutingKey)
	if tag, rest, _ := strings.Cut(raw.RoutingKey, "."); tag == "plugin" {
		key, ok = rest, true
	}
	if ok {
		if dest, ok := topology.DestinationOf(prefix, key); ok {
			return dest
		}
	}
	// A message to an exchange has its destination in a header. The routing key shows where the exchange's name ends.
	name, _ := raw.Headers[header.Destination].(string)
	for i := range len(name) {
		dest := topology.Destination{Exchange: name[:i], RoutingKey: name[min(i+1, len(name)):]}
		if name[i] == ':' && strings.HasSuffix(raw.RoutingKey, "."+dest.Key(prefix)) {
			return dest
		}
	}
	return topology.Destination{}
}

// death is an entry of the x-death header.
type death struct {
	queue, reason, exchange, key string
	at                           time.Time
}

// lastDeath returns the newest death in a queue that does not belong to a strategy, and true. If there is none, it
// returns false and a death that contains only the time of the newest death.
func lastDeath(h amqp.Table, prefix string) (d death, ok bool) {
	list, _ := h["x-death"].([]any)
	var newest time.Time
	for _, e := range list {
		t, _ := e.(amqp.Table)
		d := death{}
		d.queue, _ = t["queue"].(string)
		d.reason, _ = t["reason"].(string)
		d.exchange, _ = t["exchange"].(string)
		d.at, _ = t["time"].(time.Time)
		if keys, _ := t["routing-keys"].([]any); len(keys) > 0 {
			d.key, _ = keys[0].(string)
		}
		if d.queue != "" && !naming.Reserved(prefix, d.queue) {
			return d, true
		}
		if d.at.After(newest) {
			newest = d.at
		}
	}
	return death{at: newest}, false
}

// DeadLetterFilter selects dead letters. The zero value selects all, and each field that is set narrows the selection.
type DeadLetterFilter struct {
	Reasons      []string // any of these, each a constant such as ReasonRejected
	IDs          []string // any of these
	Destinations []string // any of these: a queue, or "exchange:routing key"
	Tasks        bool     // only dead letters of tasks (package schedule)
	Error        string   // a substring of the last error's text
	ErrorLike    string   // an error; matches errors that differ from it only in numbers, ids and quoted parts, within the first 1,024 bytes
	// Header is the name of an application header, which must have the value HeaderValue when formatted as text.
	Header, HeaderValue string
	// OlderThan and NewerThan limit the time since DeadLetter.Died; 0 means no limit. If either is set, messages whose
	// Died is unknown never match.
	OlderThan, NewerThan time.Duration
}

// deadReasons lists the valid values of DeadLetterFilter.Reasons.
var deadReasons = []string{ReasonRejected, ReasonAttempts, ReasonDeliveries, ReasonUnreadable, ReasonParked, ReasonExpired, ReasonMaxLen, ReasonDeliveryLimit}

// Empty reports whether the filter selects everything.
func (f *DeadLetterFilter) Empty() bool {
	return len(f.Reasons)+len(f.IDs)+len(f.Destinations) == 0 && !f.Tasks && f.Error == "" && f.ErrorLike == "" && f.Header == "" && f.OlderThan == 0 && f.NewerThan == 0
}

// matches reports whether the filter selects a dead letter at the time now.
func (f *DeadLetterFilter) matches(l *DeadLetter, now time.Time) bool {
	among := func(list []string, s string) bool { return len(list) == 0 || slices.Contains(list, s) }
	if f.Tasks && l.Version == 0 || !among(f.Reasons, l.Reason) || !among(f.IDs, l.ID) || !among(f.Destinations, l.Destination.String()) || !strings.Contains(l.Error, f.Error) {
		return false
	}
	if f.ErrorLike != "" && alike.Text(l.Error) != alike.Text(f.ErrorLike) {
		return false
	}
	if f.Header != "" {
		v, ok := l.Headers[f.Header]
		if text, isText := v.([]byte); isText {
			v = string(text)
		}
		if !ok || fmt.Sprint(v) != f.HeaderValue {
			return false
		}
	}
	if f.OlderThan == 0 && f.NewerThan == 0 {
		return true
	}
	age := now.Sub(l.Died)
	return !l.Died.IsZero() && age >= f.OlderThan && (f.NewerThan == 0 || age <= f.NewerThan)
}
