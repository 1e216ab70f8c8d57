package amqpx

import (
	amqp "github.com/rabbitmq/amqp091-go"

	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/consume"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/declare"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/flow"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
)

// Errors that Client's methods return. Use errors.Is to check for them.
var (
	// ErrConfig is wrapped by every error about a configuration or an argument for which there is no more specific
	// error.
	ErrConfig = errors.New("invalid configuration")
	// ErrNotSent means that the broker has not accepted the message. Sending it again cannot create a duplicate.
	ErrNotSent = errors.New("not sent")
	// ErrOutcomeUnknown means that the message may or may not arrive. Either it was written to a connection, but no
	// confirm arrived before the deadline or before the connection was lost. Or it was published directly to an
	// exchange, and one of its queues refused the message although others may have accepted it.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrClosed means that the client is closed or is being closed, or that Open did not create it.
	ErrClosed = wire.ErrClosed
	// ErrBlocked means that the broker blocks publishers because of a memory or disk alarm.
	ErrBlocked = wire.ErrBlocked
	// ErrUnroutable means that the broker returned the message because it was routed to no queue. Either a delay queue
	// is missing, and declaring it again did not help, or the message has no delay, and its exchange routes it to no
	// queue or its reply queue is gone.
	ErrUnroutable = flow.ErrUnroutable
	// ErrNacked means that the broker still refused the message (basic.nack) at the last try before the deadline, for
	// example because a queue is full.
	ErrNacked = flow.ErrNacked
	// ErrUnavailable means that a queue exists but does not answer, because it has lost its leader, its process is gone
	// or its node is down. The number of messages in it is unknown.
	ErrUnavailable = live.ErrUnavailable
	// ErrMessage means that the message itself is invalid. It is wrapped by *MessageError.
	ErrMessage = errors.New("invalid message")
	// ErrDrainTimeout means that handlers of a consumer were still running 2 s after the end of the drain time.
	// Their messages were not acknowledged and will be delivered again.
	ErrDrainTimeout = consume.ErrDrainTimeout
	// ErrUnreadableBody means that a body could not be decoded. It is wrapped by the errors of JSON, which reject the
	// message.
	ErrUnreadableBody = errors.New("unreadable body")
	// ErrUnknownType means that ByType has no handler for the message's type.
	ErrUnknownType = errors.New("no handler for messages of type")
	// ErrHandlerTimeout is the cancellation cause of the handler's context when the limit set by Timeout is reached. If
	// the handler then returns an error, the error of the attempt wraps ErrHandlerTimeout.
	ErrHandlerTimeout = errors.New("handler timeout")
)

// SendError is the error for a message that was not confirmed. Send returns it, SendBatch returns it in a *BatchError,
// and SendEach passes it to its callback. errors.Is finds either ErrNotSent or ErrOutcomeUnknown in it, and the cause.
type SendError struct {
	ID      string // the message id; send the message again with the same id
	Unknown bool   // whether the outcome is unknown; if not, the message was not sent
	Tries   int    // number of times the message was written to a connection
	Cause   error
}

func (e *SendError) Error() string {
	if e.Unknown {
		return fmt.Sprintf("message %s: outcome unknown: %v", e.ID, e.Cause)
	}
	return fmt.Sprintf("message %s: not sent: %v", e.ID, e.Cause)
}

// Unwrap returns ErrNotSent or ErrOutcomeUnknown, and the cause.
func (e *SendError) Unwrap() []error {
	if e.Unknown {
		return []error{ErrOutcomeUnknown, e.Cause}
	}
	return []error{ErrNotSent, e.Cause}
}

// StuckError is the cause of a *SendError if the message waited for a queue that has stopped confirming. Its text does
// not say since when, so that equal failures have equal texts and can be grouped.
type StuckError struct {
	Queue string    // the queue that the message would enter
	Since time.Time // the last confirm or, if no message awaited one then, the first publish after it
	Err   error     // the context's error
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("queue %s has stopped confirming messages: %v", e.Queue, e.Err)
}

// Unwrap returns the context's error.
func (e *StuckError) Unwrap() error { return e.Err }

// BatchError is returned by SendBatch if some messages were not confirmed.
type BatchError struct {
	Total int
	// Failed holds the error of each failed message by its index in the batch.
	Failed map[int]*SendError
}

func (e *BatchError) Error() string {
	first := -1
	unknown := 0
	for i, f := range e.Failed {
		if first < 0 || i < first {
			first = i
		}
		if f.Unknown {
			unknown++
		}
	}
	return fmt.Sprintf("%d of %d messages failed (%d with unknown outcome); the first failure (index %d): %v",
		len(e.Failed), e.Total, unknown, first, e.Failed[first])
}

// Unwrap returns the errors of the messages.
func (e *BatchError) Unwrap() []error {
	errs := make([]error, 0, len(e.Failed))
	for _, f := range e.Failed {
		errs = append(errs, f)
	}
	return errs
}

// MessageError is an error about one field of a Message. Reason says what is wrong and what was expected.
type MessageError struct {
	Field  string
	Reason string
}

func (e *MessageError) Error() string { return fmt.Sprintf("message.%s: %s", e.Field, e.Reason) }

// Unwrap makes errors.Is(err, ErrMessage) true.
func (e *MessageError) Unwrap() error { return ErrMessage }

// indexError adds the index of the message in its batch to an error.
type indexError struct {
	index int
	err   error
}

func (e *indexError) Error() string {
	return fmt.Sprintf("message %d of the batch: %v", e.index, e.err)
}
func (e *indexError) Unwrap() error { return e.err }

// DialError is the error of a failed attempt to connect. Reason says what answered at the broker's address, if
// anything, and what that means.
type DialError struct {
	Address string // host:port
	Reason  string
	// Final means that trying again with the same configuration is pointless.
	Final bool
	Err   error // the error of the library or the operating system
}

func (e *DialError) Error() string { return "connect to " + e.Address + ": " + e.Reason }

// Unwrap returns the cause.
func (e *DialError) Unwrap() error { return e.Err }

// permanent reports whether connecting again with the same configuration is pointless. That is the case for
// refused credentials, a refused virtual host, an untrusted certificate, a topology that conflicts with the
// broker's objects, and a broker that cannot delay messages in the way that the strategy needs.
func permanent(err error) bool {
	if n, ok := errors.AsType[*wire.NodesError](err); ok {
		return n.All(permanent)
	}
	if declare.Passes(err) || channels.Limited(err) {
		return false
	}
	if ae, ok := errors.AsType[*amqp.Error](err); ok {
		switch ae.Code {
		case amqp.AccessRefused, amqp.NotAllowed, amqp.PreconditionFailed, amqp.InvalidPath:
			return true
		}
	}
	dial, ok := errors.AsType[*DialError](err)
	return ok && dial.Final || declare.Final(err)
}
