package topology

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Route is where to publish one message, and the delay it will get there.
type Route struct {
	Exchange   string
	RoutingKey string
	// Queue is the delay queue that the message enters; empty when it enters none
	// or the strategy does not know. When a queue stops confirming, the client holds
	// back its messages only.
	Queue   string
	Headers map[string]any // to be merged into the message's headers; nil for none
	// InstantHeader names the header by which the broker itself delays. It carries the
	// instant at which the delay ends, int64 milliseconds of the epoch, and is written
	// when the message is. Empty where the way through the queues is the delay.
	InstantHeader string
	Delay         time.Duration // the actual delay, never shorter than asked
	Hops          int           // delay queues that the message passes through
	// Mandatory reports whether basic.publish may carry the mandatory flag. The
	// x-delayed-message exchange returns every mandatory message.
	Mandatory bool
}

// HeaderInstant is the header by which RabbitMQ 4.4 and later hold a message in a
// quorum queue: int64, milliseconds of the epoch. A value of another type, an
// instant in the past, an older broker, a classic queue and a stream delay nothing.
const HeaderInstant = "x-opt-delivery-time"

// ErrDelay is wrapped by every *DelayError.
var ErrDelay = errors.New("invalid delay")

// DelayError explains why a strategy has no route for a delay, and what it does
// accept.
type DelayError struct {
	Strategy string
	Delay    time.Duration
	Min, Max time.Duration   // the bounds, inclusive
	Declared []time.Duration // for ttl: the delays there are; nil otherwise
	Reason   string          // e.g. "is negative", "is longer than the strategy's maximum"
	Hint     string          // what to do
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

// MaxRoutingKey is the longest routing key or object name of AMQP 0-9-1, in bytes.
const MaxRoutingKey = 255

// KeyError reports a destination's name that does not fit into a routing key
// together with the strategy's own words.
type KeyError struct {
	Strategy string
	Key      string // the destination's key
	Overhead int    // bytes of the strategy's own words, at most
}

func (e *KeyError) Error() string {
	return fmt.Sprintf("%s strategy: destination %q is %d bytes long, the strategy needs up to %d more, and a routing key holds %d; shorten the name by %d",
		e.Strategy, e.Key, len(e.Key), e.Overhead, MaxRoutingKey, len(e.Key)+e.Overhead-MaxRoutingKey)
}

// Unwrap makes errors.Is(err, ErrDestination) true.
func (e *KeyError) Unwrap() error { return ErrDestination }
