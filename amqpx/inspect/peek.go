package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// Limits of Peek.
const (
	DefaultPeek  = 10
	MaxPeek      = 1000
	maxPeekBytes = 64 << 20 // total size of the bodies; the message that exceeds it is the last

	// getTimeout is how long a queue may take to answer basic.get. A healthy queue answers in milliseconds, and a queue
	// without a leader after a minute or never.
	getTimeout = 10 * time.Second
)

// ErrPeek is wrapped by every *PeekError.
var ErrPeek = errors.New("the queue was not examined")

// PeekError explains why Peek, Walk or Requeue did not examine a queue. It is returned before any message is
// taken.
type PeekError struct {
	queue  string
	reason string // the reason and what to do about it
	Err    error  // the error of the management API, if that is the reason
}

func (e *PeekError) Error() string { return fmt.Sprintf("%v: %s: %s", ErrPeek, e.queue, e.reason) }

// Unwrap makes errors.Is(err, ErrPeek) true.
func (e *PeekError) Unwrap() error { return ErrPeek }

// PeekOptions configures Peek.
type PeekOptions struct {
	// Limit is how many messages are read from the head of the queue; the default is DefaultPeek, the maximum MaxPeek.
	Limit int
	// Prefix is the prefix of the delay objects; the default is topology.DefaultPrefix.
	Prefix string
	// Management is used to read the queue's type and delivery limit. Without it, Peek only examines queues on RabbitMQ
	// 4.3 and later.
	Management *live.Management
}

// Peeked is the result of Peek: the messages at the head of a queue.
type Peeked struct {
	Queue    string
	Messages []DeadLetter // in the queue's order; Reason is empty for messages that are not dead letters
	// More is the number of further messages that were ready. Messages that consumers hold unacknowledged are neither
	// counted nor seen.
	More int
	// Notes describe side effects on the queue, and why messages may be missing.
	Notes []string

	moved bool // messages that had been read before are now ahead of these
	large bool // no more messages were read because their bodies have reached maxPeekBytes
	gone  int  // messages that other consumers took in the meantime
}

// Peek reads the messages at the head of a queue and puts them back. They are in the queue again when it returns, so
// that a subsequent Requeue finds them. It acknowledges no messages and uses up no delivery limit:
//
//   - RabbitMQ 4.3 and later counts a message that is put back by basic.nack as acquired, not as a failed delivery.
//   - Before 4.3, putting a message back counts towards the delivery limit of a quorum queue, which is 20 by default
//     from 4.0 on. Peek then only examines classic queues and queues with a limit that is never reached, such as the
//     ones that rabbitdelay declares. For other queues it returns a *PeekError that says what to do.
//
// It returns a *PeekError for delay queues and route queues, because their messages would be late, and for streams.
//
// For the few milliseconds that Peek takes, consumers do not get these messages, and afterwards the messages have the
// redelivered flag. They return to their original position, except in quorum queues before RabbitMQ 4.0, which put them
// at the end. Notes says so in that case. To keep messages in order, Peek may read more of them than it returns, up to
// MaxPeek. If the process is killed or the connection is lost before Peek is done, the broker puts the messages back
// and counts a delivery.
//
// The connection must be one that Dial returned, because such a connection can even read messages at which a plain
// amqp091-go connection would close. Peek refuses any other connection (*PeekError).
//
// The user needs the permission to read the queue. The error wraps an *amqp.Error with the code NotFound,
// AccessRefused, or ResourceLocked for a queue that is exclusive or has a single active consumer.
func Peek(ctx context.Context, conn *amqp.Connection, queue string, o PeekOptions) (Peeked, error) {
	if o.Limit < 0 || o.Limit > MaxPeek {
		return Peeked{}, fmt.Errorf("peek %s: limit %d; expected 1 to %d, or 0 for the default of %d", queue, o.Limit, MaxPeek, DefaultPeek)
	}
	if err := usable(conn, "peek", queue); err != nil {
		return Peeked{}, err
	}
	o.Limit = cmp.Or(o.Limit, DefaultPeek)
	o.Prefix = cmp.Or(o.Prefix, topology.DefaultPrefix)
	if err := mayPeek(ctx, conn, queue, o); err != nil {
		return Peeked{}, err
	}
	before, err := countReady(ctx, conn, queue)
	if err != nil {
		return Peeked{}, fmt.Errorf("peek %s: %w", queue, channels.NeedsPermission("read", err))
	}
	p := Peeked{Queue: queue}
	one, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(getTimeout, func() { cancel(unanswered(queue, getTimeout)) })
	defer silent.Stop()
	err = wait.Done(one, func() error { return p.read(one, conn, o, before, func() { silent.Reset(getTimeout) }) })
	if why := context.Cause(one); err != nil && ctx.Err() == nil && why != nil {
		err = why
	}
	if err != nil {
		return Peeked{}, fmt.Errorf("peek %s: %w", queue, channels.NeedsPermission("read", err))
	}
	p.note(wire.Version(wire.Broker(conn)), o)
	return p, nil
}

// usable returns an error for a connection that Dial did not return.
func usable(conn *amqp.Connection, what, queue string) error {
	if conn == nil {
		return fmt.Errorf("%w: %s %s: the connection is nil; expected one that Dial returned", amqpx.ErrConfig, what, queue)
	}
	if product, _ := conn.Config.Properties["product"].(string); product != wire.Product {
		return &PeekError{queue: queue, reason: "the connection was not opened by inspect.Dial; any other connection breaks at the first message whose headers amqp091-go cannot read"}
	}
	return nil
}

// read gets messages and puts them back. It calls answered after each answer from the broker.
func (p *Peeked) read(ctx context.Context, conn *amqp.Connection, o PeekOptions, before amqp.Queue, answered func()) error {
	ch, err := channels.Open(conn)
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }() // puts back any messages that are still held
	size := 0
	var last amqp.Delivery
	read := 0
	// A quorum queue keeps returned messages ahead of the rest, each behind the ones that were returned before. To
	// preserve their order, read either all or none of the returned messages.
	for (read < o.Limit || last.Redelivered) && read < MaxPeek && size < maxPeekBytes && ctx.Err() == nil {
		raw, ok, failed := ch.Get(p.Queue, false)
		answered()
		if err = failed; err != nil {
			break
		}
		if !ok {
			last.MessageCount = 0
			break
		}
		last, size = raw, size+len(raw.Body)
		if read++; read <= o.Limit {
			p.Messages = append(p.Messages, ReadDeadLetter(raw, p.Queue, o.Prefix))
		}
	}
	p.More = read - len(p.Messages) + int(last.MessageCount)
	p.moved = last.Redelivered && last.MessageCount > 0
	p.large = size >= maxPeekBytes
	p.gone = before.Messages - read - int(last.MessageCount)
	if err == nil && read > 0 {
		err = ch.Nack(last.DeliveryTag, true, true) // not basic.reject, which 4.3 counts as a failed delivery
	}
	// A quorum queue answers before it has put the messages back, and counts the reader as a consumer until then.
	if err == nil {
		err = wire.AwaitSettled(ctx, ch, p.Queue, before.Consumers)
	}
	return err
}

// countedLooks is the number of deliveries from which Notes warns about header.MaxDeliveries.
const countedLooks = header.MaxDeliveries / 2

func (p *Peeked) note(v plan.Version, o PeekOptions) {
	if len(p.Messages) == 0 {
		return
	}
	switch {
	case p.More > 0 && v.Before(4, 0, 0):
		p.Notes = append(p.Notes, "before RabbitMQ 4.0, a quorum queue puts the messages that were read at its end: these messages are now behind the others")
	case p.moved:
		p.Notes = append(p.Notes, fmt.Sprintf("more than %d messages were read and put back earlier; in a quorum queue, the messages read now are behind the rest of them", MaxPeek))
	}
	var most int64
	for _, m := range p.Messages {
		n, _ := header.Integer(m.Headers, header.Deliveries)
		most = max(most, n)
	}
	if most >= countedLooks {
		p.Notes = append(p.Notes, fmt.Sprintf("a message has been read %d times; in a destination's queue, a rabbitdelay consumer dead-letters it after %d", most, header.MaxDeliveries))
	}
	if p.gone > 0 && len(p.Messages) < o.Limit {
		p.Notes = append(p.Notes, fmt.Sprintf("other consumers took further messages while these were read: %d", p.gone))
	}
	if p.large && len(p.Messages) < o.Limit && p.More > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("stopped after %d MiB of bodies", maxPeekBytes>>20))
	}
}
