package amqpx

import (
	amqp "github.com/rabbitmq/amqp091-go"

	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/declare"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/flow"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// Sentinels for errors.Is on the errors of Client's methods.
var (
	// ErrConfig is wrapped by every error about a configuration or an argument that no
	// other one is for.
	ErrConfig = errors.New("invalid configuration")
	// ErrNotSent: the broker did not take the message; sending it again cannot
	// make a duplicate.
	ErrNotSent = errors.New("not sent")
	// ErrOutcomeUnknown: the message was written to a connection and no confirm
	// came before the deadline or the end of the connection, or it went straight to an
	// exchange and one of several queues may have refused it; it may arrive.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrClosed: the client is closed.
	ErrClosed = wire.ErrClosed
	// ErrBlocked: the broker blocks publishers (a memory or disk alarm).
	ErrBlocked = wire.ErrBlocked
	// ErrUnroutable: the broker returned the message, because a delay queue is
	// missing and could not be declared again, or because nothing delays the message
	// and its exchange routes it to no queue.
	ErrUnroutable = flow.ErrUnroutable
	// ErrNacked: the broker refused the message (basic.nack), for instance because
	// a queue is full, at every try until the deadline.
	ErrNacked = flow.ErrNacked
	// ErrUnavailable: a queue is there and does not answer, because it has lost its leader, its
	// process is gone or its node is down. How many messages it has is unknown.
	ErrUnavailable = live.ErrUnavailable
	// ErrMessage: the message itself is invalid; wrapped by *MessageError.
	ErrMessage = errors.New("invalid message")
	// ErrDrainTimeout: handlers of a consumer were still running 2 s after the end of the
	// drain time. Their messages were not acknowledged and will be delivered again.
	ErrDrainTimeout = errors.New("drain timeout")
	// ErrBody: a body could not be decoded; wrapped by the errors of JSON, which reject.
	ErrBody = errors.New("body not understood")
	// ErrType: a message has a type for which ByType has no handler.
	ErrType = errors.New("no handler for messages of type")
	// ErrHandlerTimeout: the cause with which the context of a handler ends at the
	// limit of Timeout, wrapped by the error of such an attempt.
	ErrHandlerTimeout = errors.New("handler timeout")
)

// SendError is what Send returns, and SendBatch per message, when a message was
// not confirmed. errors.Is finds either ErrNotSent or ErrOutcomeUnknown in it,
// and the cause.
type SendError struct {
	ID      string // the message id, under which it can be sent again
	Unknown bool   // the outcome is unknown; otherwise it was not sent
	Tries   int    // how often it was written to a connection
	Cause   error
}

func (e *SendError) Error() string {
	if e.Unknown {
		return fmt.Sprintf("message %s: outcome unknown: %v", e.ID, e.Cause)
	}
	return fmt.Sprintf("message %s: not sent: %v", e.ID, e.Cause)
}

// Unwrap returns the class and the cause.
func (e *SendError) Unwrap() []error {
	if e.Unknown {
		return []error{ErrOutcomeUnknown, e.Cause}
	}
	return []error{ErrNotSent, e.Cause}
}

// StuckError is the cause when a message waited for a queue that confirms nothing. As
// in all errors of this package the text is the same however long that lasts.
type StuckError struct {
	Queue string    // that the message would enter
	Since time.Time // the last confirm, or the first message that waits for one
	Err   error     // the context's error
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("queue %s confirms nothing: %v", e.Queue, e.Err)
}

// Unwrap returns the context's error.
func (e *StuckError) Unwrap() error { return e.Err }

// BatchError is what SendBatch returns when some messages were not confirmed.
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
	return fmt.Sprintf("%d of %d messages failed (%d with unknown outcome); first is index %d: %v",
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

// MessageError is about one field of a Message: what is wrong and what was expected.
type MessageError struct {
	Field  string
	Reason string
}

func (e *MessageError) Error() string { return fmt.Sprintf("message.%s: %s", e.Field, e.Reason) }

// Unwrap makes errors.Is(err, ErrMessage) true.
func (e *MessageError) Unwrap() error { return ErrMessage }

// indexError is the error of one message of a batch.
type indexError struct {
	index int
	err   error
}

func (e *indexError) Error() string {
	return fmt.Sprintf("message %d of the batch: %v", e.index, e.err)
}
func (e *indexError) Unwrap() error { return e.err }

// DialError is what answered at a broker's address, if anything, and what that means.
type DialError struct {
	Address string // host:port
	Reason  string
	// Final: trying again with the same configuration is pointless.
	Final bool
	Err   error // as the library or the operating system has it
}

func (e *DialError) Error() string { return "connect to " + e.Address + ": " + e.Reason }

// Unwrap returns the cause.
func (e *DialError) Unwrap() error { return e.Err }

// permanent reports whether connecting again with the same configuration is
// pointless: refused credentials or virtual host, an untrusted certificate, a
// topology that conflicts with what the broker has, or a broker that does not delay
// as the strategy needs it.
func permanent(err error) bool {
	if n, ok := errors.AsType[*wire.NodesError](err); ok {
		return n.All(permanent)
	}
	if declare.Passes(err) {
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
