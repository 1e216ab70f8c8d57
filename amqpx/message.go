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

// Message is a message to be delivered later. Its destination is either Queue, or Exchange with RoutingKey. Set at most
// one of Delay and DeliverAt to say when it is due. If both are zero, it is due immediately.
type Message struct {
	// ID is the AMQP message-id, at most 255 bytes. If it is empty, the message gets a UUIDv7. All tries of one Send
	// use the same ID, so consumers can recognise duplicates.
	ID string

	// Queue is the destination queue. It may be a broker-named reply queue. With a delay, such a queue must not be
	// exclusive to its connection.
	Queue string
	// Exchange and RoutingKey are the destination if Queue is empty. The exchange may be of any type and must exist. If
	// Exchange is empty too, RoutingKey is the name of a queue.
	Exchange   string
	RoutingKey string

	// Delay counts from the call to Send or, in SendBatch, from when the message is first published. A Delay of 0
	// delivers the message immediately. A message for an exchange is then published directly, without a route queue,
	// and the error is ErrUnroutable if the exchange does not route it to any queue. (With DeclareNothing it still goes
	// through its route queue.) Fractions of a millisecond are rounded up. A negative Delay is an error, and so is a
	// positive one below a microsecond, such as 30 if time.Second was forgotten.
	Delay time.Duration
	// DeliverAt is the due time. If it is in the past, the message is delivered immediately. If it is zero, Delay
	// applies. Times that result from a wrong unit are errors: seconds read as milliseconds (January 1970 to March
	// 1973), and milliseconds read as seconds.
	DeliverAt time.Time
	// ClockOffset is the clock of DeliverAt minus this process's clock. Set it if DeliverAt was computed on another
	// machine, such as the database server. The message waits until the other clock shows DeliverAt, and has DeliverAt
	// as its due time. If the other clock is at least 20 ms behind this process's clock, it also determines
	// Delivery.Timestamp. Without DeliverAt, ClockOffset must be 0.
	ClockOffset time.Duration
	// Tolerance is how much later the message may arrive if that saves hops in the broker. The default, 0, means
	// as close as the strategy's resolution allows.
	Tolerance time.Duration

	Body            []byte
	ContentType     string
	ContentEncoding string
	Type            string
	CorrelationID   string
	ReplyTo         string
	AppID           string
	Priority        uint8
	// Headers are the message's headers. Send copies them, except for names that begin with "rabbitdelay-" and for
	// headers that the broker interprets (x-death, x-first-death-*, x-last-death-*, x-delivery-count, x-acquired-count,
	// x-opt-delivery-time, x-opt-delivery-delay, x-delay, CC and BCC) or that NServiceBus interprets
	// (NServiceBus.Transport.RabbitMQ.DelayInSeconds).
	Headers amqp.Table

	// Attempt is the number of the attempt for which the message will be delivered. 0 and 1 both mean the first.
	Attempt int
	// Version is the version of the task that the message belongs to, or 0 if there is none.
	Version int64
	// Created is when that task's row was written, in whole milliseconds, or zero if there is no task. It distinguishes
	// the task from an earlier one with the same id.
	Created time.Time

	added  amqp.Table         // headers that hooks have added
	own    amqp.Table         // rabbitdelay's own headers; nil unless a received message is passed on
	as     *header.Properties // properties of a message that is forwarded or passed on unchanged; nil if there are none
	userID string             // user-id to publish with, which may make the broker refuse the message; empty for none
	sent   time.Time          // timestamp to publish with in place of the current time
}

// directReplyTo is RabbitMQ's pseudo-queue for direct replies. Each try to publish to it, or with it as ReplyTo, would
// close the channel that all senders share.
const directReplyTo = "amq.rabbitmq.reply-to"

// Check returns a *MessageError if no client could send the message, no matter how it is configured and which broker it
// uses.
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
		return &MessageError{"Queue", fmt.Sprintf("%q is a direct reply-to address, not a queue, and cannot be bound; expected a non-exclusive queue that the requester declares for its replies", m.Queue)}
	}
	if m.own == nil && !isName(m.Queue+m.Exchange+m.RoutingKey) {
		return &MessageError{"Queue", fmt.Sprintf("%q, %q, %q as Queue, Exchange and RoutingKey; expected UTF-8 without line breaks: RabbitMQ closes the connection for names that are not UTF-8, and removes line breaks from names", m.Queue, m.Exchange, m.RoutingKey)}
	}
	return nil
}

// isName reports whether RabbitMQ accepts the characters of s in a name and keeps them unchanged.
func isName(s string) bool { return utf8.ValidString(s) && !strings.ContainsAny(s, "\r\n") }

func (m *Message) checkInstant() error {
	if !m.DeliverAt.IsZero() && m.Delay != 0 {
		return &MessageError{"DeliverAt", fmt.Sprintf("both Delay (%s) and DeliverAt (%s) are set; set one", topology.FormatDuration(m.Delay), m.DeliverAt.Format(time.RFC3339Nano))}
	}
	if m.DeliverAt.IsZero() && m.ClockOffset != 0 {
		return &MessageError{"ClockOffset", fmt.Sprintf("%s without DeliverAt; expected 0, because a Delay is the same by every clock", topology.FormatDuration(m.ClockOffset))}
	}
	if m.Delay < 0 {
		return &MessageError{"Delay", fmt.Sprintf("%s is negative; expected 0 or more, or DeliverAt for an absolute time", topology.FormatDuration(m.Delay))}
	}
	if m.Tolerance < 0 {
		return &MessageError{"Tolerance", fmt.Sprintf("%s is negative; expected 0 or more", topology.FormatDuration(m.Tolerance))}
	}
	if m.own != nil { // a received message is passed on unchanged
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
		return &MessageError{"ReplyTo", directReplyTo + " works only on the channel that consumes from it, and the broker closes any other channel that uses it; expected a queue's name"}
	}
	if m.Version < 0 {
		return &MessageError{"Version", fmt.Sprintf("%d; expected the version of a task, or 0 for a message without a task", m.Version)}
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
