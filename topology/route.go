package topology

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Route says where to publish a message, and how long it is delayed there.
type Route struct {
	Exchange   string
	RoutingKey string
	// Queue is the delay queue that the message enters. It is empty if the message enters none, or if the strategy does
	// not know the queue. If a queue stops confirming messages, the client delays only the messages for that queue.
	Queue   string
	Headers map[string]any // headers to merge into the message's headers; may be nil
	// InstantHeader is the name of the header that makes the broker itself delay the message. The header contains
	// the time at which the delay ends, as int64 milliseconds since the epoch. The client sets it when it encodes
	// the message. InstantHeader is empty if the delay results from the queues on the route.
	InstantHeader string
	Delay         time.Duration // the actual delay, never shorter than requested
	Hops          int           // number of delay queues that the message passes through
	// Mandatory reports whether basic.publish may set the mandatory flag. An x-delayed-message exchange returns every
	// mandatory message.
	Mandatory bool
}

// HeaderInstant is the header that makes RabbitMQ 4.4 and later delay a message in a quorum queue. Its value is an
// int64 in milliseconds since the epoch. The message is not delayed if the value has another type or is in the past, on
// an older broker, in a classic queue, or in a stream.
const HeaderInstant = "x-opt-delivery-time"

// ErrDelay is wrapped by every *DelayError.
var ErrDelay = errors.New("invalid delay")

// DelayError explains why a strategy has no route for a delay, and which delays it accepts.
type DelayError struct {
	Strategy string
	Delay    time.Duration
	Min, Max time.Duration   // the bounds, inclusive
	Declared []time.Duration // for ttl, the declared delays; nil otherwise
	Reason   string          // e.g. "is negative", "exceeds the strategy's maximum"
	Hint     string          // what the caller can do
}

func (e *DelayError) Error() string {
	msg := fmt.Sprintf("%s strategy: delay %s %s", e.Strategy, FormatDuration(e.Delay), e.Reason)
	if e.Declared != nil {
		texts := make([]string, len(e.Declared))
		for i, d := range e.Declared {
			texts[i] = FormatDuration(d)
		}
		msg += "; declared delays are " + strings.Join(texts, ", ")
	} else {
		msg += fmt.Sprintf("; it accepts %s to %s", FormatDuration(e.Min), FormatDuration(e.Max))
	}
	if e.Hint != "" {
		msg += "; " + e.Hint
	}
	return msg
}

// Unwrap makes errors.Is(err, ErrDelay) true.
func (e *DelayError) Unwrap() error { return ErrDelay }

// MaxRoutingKey is the maximum length of a routing key or an object's name in AMQP 0-9-1, in bytes.
const MaxRoutingKey = 255

// KeyError reports a destination whose name is too long for a routing key that also contains the strategy's own
// words.
type KeyError struct {
	Strategy string
	Key      string // the destination's key
	Overhead int    // number of bytes that the strategy adds to the key, at most
}

func (e *KeyError) Error() string {
	return fmt.Sprintf("%s strategy: destination %q is %d bytes long, the strategy needs up to %d more, and a routing key holds %d; shorten the name by %d",
		e.Strategy, e.Key, len(e.Key), e.Overhead, MaxRoutingKey, len(e.Key)+e.Overhead-MaxRoutingKey)
}

// Unwrap makes errors.Is(err, ErrDestination) true.
func (e *KeyError) Unwrap() error { return ErrDestination }
