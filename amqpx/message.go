package amqpx

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/topology"
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
	// Fractions of a millisecond round up. Negative is an error, and so is less than a
	// microsecond, such as the 30 of a forgotten time.Second.
	Delay time.Duration
	// DeliverAt is the due instant; an instant in the past delivers at once. If
	// it is zero, Delay applies. Instants that come from a wrong unit are errors: seconds read as
	// milliseconds (January 1970 to March 1973), and milliseconds read as seconds.
	DeliverAt time.Time
	// ClockOffset is the clock of DeliverAt minus this process's, for a DeliverAt
	// that was computed on another machine, such as the database's. The message
	// waits until that clock shows DeliverAt, and has that as its due instant. Where that clock
	// is behind, Delivery.Timestamp goes by it too.
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

	added  amqp.Table         // headers of hooks
	own    amqp.Table         // further headers of rabbitdelay's own
	as     *header.Properties // of a message that is forwarded or passed on as it is; nil for none
	userID string             // that it is published with, by which the broker may refuse it; empty for none
	sent   time.Time          // its timestamp, instead of the present
}

// directReplyTo is a pseudo-queue. One message with it would break the channel
// that all senders share, once for each try.
const directReplyTo = "amq.rabbitmq.reply-to"

// Check returns the *MessageError of a message that no client can send, whatever
// its configuration and the broker.
func (m *Message) Check() error {
	for _, check := range []func() error{m.checkDestination, m.checkInstant, m.checkProperties} {
		if err := check(); err != nil {
			return err
		}
	}
	return checkHeaders(m.own, m.Headers)
}

func (m *Message) checkDestination() error {
	switch {
	case m.Queue == "" && m.Exchange == "" && m.RoutingKey == "":
		return &MessageError{"Queue", "no destination; give a queue, or an exchange and a routing key"}
	case m.Queue != "" && (m.Exchange != "" || m.RoutingKey != ""):
		return &MessageError{"Queue", fmt.Sprintf("both a queue (%q) and an exchange or routing key (%q, %q); give one destination", m.Queue, m.Exchange, m.RoutingKey)}
	}
	if strings.HasPrefix(m.Queue, directReplyTo) {
		return &MessageError{"Queue", fmt.Sprintf("%q is an address of direct reply-to, which is no queue and cannot be bound; expected a queue that the requester declares for its replies, not exclusive", m.Queue)}
	}
	if m.own == nil && !isName(m.Queue+m.Exchange+m.RoutingKey) {
		return &MessageError{"Queue", fmt.Sprintf("%q, %q, %q as Queue, Exchange and RoutingKey; expected UTF-8 without line breaks: RabbitMQ ends the connection over names that are not UTF-8, and cuts line breaks out of them", m.Queue, m.Exchange, m.RoutingKey)}
	}
	return nil
}

// isName reports whether RabbitMQ accepts s, unchanged, as the name of a queue.
func isName(s string) bool { return utf8.ValidString(s) && !strings.ContainsAny(s, "\r\n") }

func (m *Message) checkInstant() error {
	if !m.DeliverAt.IsZero() && m.Delay != 0 {
		return &MessageError{"DeliverAt", fmt.Sprintf("both Delay (%s) and DeliverAt (%s) are set; set one", topology.FormatDuration(m.Delay), m.DeliverAt.Format(time.RFC3339Nano))}
	}
	if m.DeliverAt.IsZero() && m.ClockOffset != 0 {
		return &MessageError{"ClockOffset", fmt.Sprintf("%s without DeliverAt; expected 0, because a Delay is the same by every clock", topology.FormatDuration(m.ClockOffset))}
	}
	if m.Delay < 0 {
		return &MessageError{"Delay", fmt.Sprintf("%s is negative; expected 0 or more, or DeliverAt for an instant", topology.FormatDuration(m.Delay))}
	}
	if m.Tolerance < 0 {
		return &MessageError{"Tolerance", fmt.Sprintf("%s is negative; expected 0 or more", topology.FormatDuration(m.Tolerance))}
	}
	if m.own != nil { // it is passed on as it came
		return nil
	}
	for _, slip := range []struct{ field, reason string }{
		{"DeliverAt", units.Instant(m.DeliverAt)}, {"Delay", units.Duration(m.Delay)}, {"Tolerance", units.Duration(m.Tolerance)},
	} {
		if slip.reason != "" {
			return &MessageError{slip.field, slip.reason}
		}
	}
	return nil
}

func (m *Message) checkProperties() error {
	if m.ReplyTo == directReplyTo {
		return &MessageError{"ReplyTo", directReplyTo + " is answered only on the channel that consumes from it, and the broker closes any other that publishes it; expected a queue's name"}
	}
	if m.Attempt < 0 {
		return &MessageError{"Attempt", fmt.Sprintf("%d; expected 0 or more", m.Attempt)}
	}
	for _, s := range []struct{ field, value string }{
		{"ID", m.ID}, {"Queue", m.Queue}, {"Exchange", m.Exchange}, {"RoutingKey", m.RoutingKey},
		{"ContentType", m.ContentType}, {"ContentEncoding", m.ContentEncoding}, {"Type", m.Type},
		{"CorrelationID", m.CorrelationID}, {"ReplyTo", m.ReplyTo}, {"AppID", m.AppID},
	} {
		if len(s.value) > 255 {
			return &MessageError{s.field, fmt.Sprintf("%d bytes; AMQP allows 255", len(s.value))}
		}
	}
	return nil
}
