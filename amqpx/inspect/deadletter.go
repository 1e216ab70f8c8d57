package inspect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// Reasons of a DeadLetter.
const (
	// Those that a consumer of rabbitdelay writes, in amqpx.HeaderReason.
	ReasonRejected   = header.ReasonRejected   // "rejected": the handler returned amqpx.Reject
	ReasonAttempts   = header.ReasonAttempts   // "attempts": they were used up
	ReasonDeliveries = header.ReasonDeliveries // "deliveries": more than 200 without an outcome
	ReasonUnreadable = header.ReasonUnreadable // "unreadable": its headers are beyond what amqp091 reads; amqpx.HeaderRaw has them

	// ReasonParked: it was due, and nothing was bound for its destination.
	ReasonParked = "parked"

	// The broker's own, as x-death has them.
	ReasonExpired       = "expired"        // a TTL of its queue or of its own
	ReasonMaxLen        = "maxlen"         // the queue's length limit
	ReasonDeliveryLimit = "delivery_limit" // the queue's delivery limit
)

// DeadLetter is a message as it lies in a dead-letter queue or in the parked queue. Its Delivery's Queue is that
// queue; Attempt is the attempt that failed last; Exchange and RoutingKey are what a handler saw.
type DeadLetter struct {
	*amqpx.Delivery

	// Reason is why it lies there: one of the Reason constants, or "rejected" by a consumer that is not
	// rabbitdelay's. It is empty for a message that is no dead letter.
	Reason string
	// Error is the last error's text; empty if none is known.
	Error string
	// Attempts are the failed ones, "instant error" each, at most the last 32.
	Attempts []string
	// Died is when it came to lie there, by the clock of the consumer or the broker, the latter in whole seconds;
	// zero if nothing tells.
	Died time.Time
	// Destination is where it belongs: the queue in which it died, or where a parked message was sent to. It is
	// zero if nothing tells.
	Destination topology.Destination
	// Requeued is when Requeue sent it last; zero if never.
	Requeued time.Time
}

// ReadDeadLetter decodes a message that was received from a queue. Prefix is that of the delay objects,
// Strategy.Prefix.
func ReadDeadLetter(raw amqp.Delivery, queue, prefix string) DeadLetter {
	l := DeadLetter{Delivery: amqpx.ReadDelivery(raw, queue, prefix), Died: raw.Timestamp, Requeued: header.Instant(raw.Headers, header.Requeued)}
	l.Error, _ = raw.Headers[header.Error].(string)
	for _, a := range header.FailedAttempts(raw.Headers) {
		text, _ := a.(string) // it is one
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

// lastAttempt is the instant of the last attempt that has one.
func lastAttempt(attempts []string, otherwise time.Time) time.Time {
	for _, a := range slices.Backward(attempts) {
		text, _, _ := strings.Cut(a, " ")
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
			return at
		}
	}
	return otherwise
}

// parkedFor is the destination of a parked message.
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
	// A message to an exchange says so itself; where the exchange's name ends, the routing key decides.
	name, _ := raw.Headers[header.Destination].(string)
	for i := range len(name) {
		dest := topology.Destination{Exchange: name[:i], RoutingKey: name[min(i+1, len(name)):]}
		if name[i] == ':' && strings.HasSuffix(raw.RoutingKey, "."+dest.Key(prefix)) {
			return dest
		}
	}
	return topology.Destination{}
}

// death is an entry of x-death.
type death struct {
	queue, reason, exchange, key string
	at                           time.Time
}

// lastDeath is the newest death in a queue that is none of the strategies', and ok. Without one it has the
// instant of the newest alone.
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

// DeadLetterFilter chooses dead letters. Its zero value chooses all, and each field that is set narrows the
// choice.
type DeadLetterFilter struct {
	Reasons      []string // one of them, each a constant such as ReasonRejected
	IDs          []string // one of them
	Destinations []string // one of them: a queue, or "exchange:routing key"
	Tasks        bool     // only those of tasks (package schedule)
	Error        string   // a part of the last error's text
	ErrorLike    string   // an error, or an ErrorGroup's: those that are Alike
	// Header with HeaderValue, as text, among the application's headers.
	Header, HeaderValue string
	// OlderThan and NewerThan compare how long it has lain there, see DeadLetter.Died; 0 does not. What does not
	// tell is not chosen.
	OlderThan, NewerThan time.Duration
}

// deadReasons are those that a dead letter can have.
var deadReasons = []string{ReasonRejected, ReasonAttempts, ReasonDeliveries, ReasonUnreadable, ReasonParked, ReasonExpired, ReasonMaxLen, ReasonDeliveryLimit}

// Empty reports whether the filter chooses everything.
func (f *DeadLetterFilter) Empty() bool {
	return len(f.Reasons)+len(f.IDs)+len(f.Destinations) == 0 && !f.Tasks && f.Error == "" && f.ErrorLike == "" && f.Header == "" && f.OlderThan == 0 && f.NewerThan == 0
}

// Matches reports whether the filter chooses a dead letter at an instant.
func (f *DeadLetterFilter) Matches(l *DeadLetter, now time.Time) bool {
	among := func(list []string, s string) bool { return len(list) == 0 || slices.Contains(list, s) }
	if f.Tasks && l.Version == 0 || !among(f.Reasons, l.Reason) || !among(f.IDs, l.ID) || !among(f.Destinations, l.Destination.String()) || !strings.Contains(l.Error, f.Error) {
		return false
	}
	if f.ErrorLike != "" && Alike(l.Error) != Alike(f.ErrorLike) {
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
