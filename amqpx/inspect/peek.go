package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// Limits of Peek.
const (
	DefaultPeek  = 10
	MaxPeek      = 1000
	maxPeekBytes = 64 << 20 // total size of the bodies; the message that exceeds it is the last
)

// ErrPeek is wrapped by every *PeekError.
var ErrPeek = errors.New("the queue was not looked into")

// PeekError explains why Peek, GroupErrors or Requeue did not examine a queue. It is returned before any message was
// taken.
type PeekError struct {
	Queue  string
	Reason string // the reason and what to do about it
	Err    error  // the error of the management API, if that is the reason
}

func (e *PeekError) Error() string { return fmt.Sprintf("%v: %s: %s", ErrPeek, e.Queue, e.Reason) }

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
	// More is how many further messages were ready. Messages that consumers hold unacknowledged are neither counted nor
	// seen.
	More int
	// Notes describe side effects on the queue, and why messages may be missing.
	Notes []string

	moved bool // messages that had been read before are now ahead of these
}

// Peek reads the messages at the head of a queue and puts them back. They are in the queue again when it returns, so
// that a Requeue that follows finds them. It acknowledges no messages and uses up no delivery limit:
//
//   - RabbitMQ 4.3 and later counts a message that is put back by basic.nack as acquired, not as a failed delivery.
//   - Before 4.3, each time that a message is put back counts towards the delivery limit of a quorum queue, which is 20
//     by default from 4.0 on. Peek then only examines classic queues and queues with a limit that is never reached,
//     such as the ones that rabbitdelay declares. For other queues it returns a *PeekError that says what to do.
//
// It does not examine delay queues and route queues, because their messages would be late, or streams (*PeekError).
//
// For the few milliseconds that Peek takes, consumers do not get these messages, and afterwards the messages have the
// redelivered flag. They return to their original position, except in quorum queues before RabbitMQ 4.0, which put them
// at the end; Notes say so. To keep messages in order, Peek may read more of them than it returns, up to MaxPeek. If
// the process or the connection ends before it is done, the broker puts the messages back and counts a delivery.
//
// The connection must be one that Dial returned, because such a connection can also read messages that would end a
// plain connection of amqp091-go. Peek refuses any other connection (*PeekError).
//
// The user needs the permission to read the queue. The error wraps an *amqp.Error with the code NotFound,
// AccessRefused, or ResourceLocked for a queue that is exclusive or has a single active consumer.
func Peek(ctx context.Context, conn *amqp.Connection, queue string, o PeekOptions) (Peeked, error) {
	if o.Limit < 0 || o.Limit > MaxPeek {
		return Peeked{}, fmt.Errorf("peek %s: limit %d; expected 1 to %d, or 0 for %d", queue, o.Limit, MaxPeek, DefaultPeek)
	}
	if conn == nil {
		return Peeked{}, fmt.Errorf("%w: peek %s: the connection is nil; expected one of Dial", amqpx.ErrConfig, queue)
	}
	if product, _ := conn.Config.Properties["product"].(string); product != wire.Product {
		return Peeked{}, &PeekError{Queue: queue, Reason: "the connection was not opened by inspect.Dial; another ends at the first message whose headers amqp091-go cannot read"}
	}
	o.Limit = cmp.Or(o.Limit, DefaultPeek)
	o.Prefix = cmp.Or(o.Prefix, topology.DefaultPrefix)
	if err := mayPeek(ctx, conn, queue, o); err != nil {
		return Peeked{}, err
	}
	p := Peeked{Queue: queue}
	err := wait.Done(ctx, func() error { return p.read(ctx, conn, o) })
	if err != nil {
		return Peeked{}, fmt.Errorf("peek %s: %w", queue, err)
	}
	p.note(wire.Version(wire.Broker(conn)), o)
	return p, nil
}

// mayPeek refuses a queue whose messages would be dropped or delayed by reading them.
func mayPeek(ctx context.Context, conn *amqp.Connection, queue string, o PeekOptions) error {
	refuse := func(reason string, args ...any) error {
		return &PeekError{Queue: queue, Reason: fmt.Sprintf(reason, args...)}
	}
	if naming.Reserved(o.Prefix, queue) && queue != topology.ParkedQueue(o.Prefix) {
		return refuse("it belongs to the delay strategies with prefix %q, and a message that is read there is late; its count is in the status", o.Prefix)
	}
	limit, err := returns(ctx, o.Management, queue, wire.Version(wire.Broker(conn)))
	switch {
	case err != nil:
		return peekRefused(queue, err)
	case limit < topology.NoDeliveryLimit:
		return refuse(peekCosts+" or dead-letters it; it is %d here. "+
			"On the broker, \"rabbitmq-queues peek %s 1\" shows a message without counting; if the queue has no x-delivery-limit of its own, a policy with delivery-limit %d lifts the limit", limit, queue, topology.NoDeliveryLimit)
	}
	return nil
}

const peekCosts = "RabbitMQ before 4.3 counts each look towards the delivery limit of a quorum queue, and drops the message beyond it"

// peekRefused returns the error for a queue whose limit could not be determined by the function returns.
func peekRefused(queue string, err error) error {
	e := &PeekError{Queue: queue, Reason: peekCosts + "; " + err.Error()}
	switch {
	case errors.Is(err, live.ErrStream):
		e.Reason = err.Error()
	case live.IsDenied(err):
		e.Reason = peekCosts + "; the user may not read the limit from the management API: it needs the tag management, or monitoring"
	case !errors.Is(err, errLimitUnknown) && !errors.Is(err, errLimitNotYet):
		e.Err = err
	}
	return e
}

var (
	errLimitUnknown = errors.New("the limit may be a policy's, which AMQP does not show: give the management API (broker.management_url)")
	errLimitNotYet  = errors.New("the management API does not know yet whether a policy sets it, as for some seconds after the queue was declared or its node started: try again in 10 s")
)

// returns reports how often a message of a queue may be put back. From RabbitMQ 4.3 on there is no limit. Before, a
// quorum queue compares the count with its delivery limit, which may be set by a policy, so that only the management
// API knows it.
func returns(ctx context.Context, m *live.Management, queue string, v observed.Version) (int64, error) {
	counts := !v.Known() || v.Before(4, 3, 0)
	if m == nil {
		if counts {
			return 0, errLimitUnknown
		}
		return math.MaxInt64, nil
	}
	q, err := m.Queue(ctx, queue)
	switch {
	case err == nil && q != nil && q.Type == live.TypeStream:
		return 0, live.ErrStream
	case !counts || err == nil && q == nil: // the broker itself reports that the queue does not exist
		return math.MaxInt64, nil
	case err != nil:
		return 0, fmt.Errorf("the limit could not be read: %w", err)
	}
	limit, _ := q.DeliveryLimit(v)
	switch {
	case q.EffectivePolicy == nil && (limit >= 0 || q.Type == topology.Quorum):
		return 0, errLimitNotYet
	case limit < 0:
		return math.MaxInt64, nil
	}
	return limit, nil
}

// read gets messages and puts them back.
func (p *Peeked) read(ctx context.Context, conn *amqp.Connection, o PeekOptions) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }() // puts back any messages that are still held
	before, err := ch.QueueDeclarePassive(p.Queue, true, false, false, false, nil)
	if err != nil {
		return err
	}
	if before.Messages+before.Consumers == 0 { // the broker reports the same for a queue without a leader
		if err := answers(ctx, conn, p.Queue); err != nil {
			return err
		}
	}
	size := 0
	var last amqp.Delivery
	read := 0
	// A quorum queue keeps returned messages ahead of the rest, each behind the ones that were returned before. To
	// preserve their order, read either all or none of the returned messages.
	for (read < o.Limit || last.Redelivered) && read < MaxPeek && size < maxPeekBytes && ctx.Err() == nil {
		raw, ok, failed := ch.Get(p.Queue, false)
		if err = failed; err != nil || !ok {
			break
		}
		last, size = raw, size+len(raw.Body)
		if read++; read <= o.Limit {
			p.Messages = append(p.Messages, ReadDeadLetter(raw, p.Queue, o.Prefix))
		}
	}
	p.More = read - len(p.Messages) + int(last.MessageCount)
	p.moved = last.Redelivered && last.MessageCount > 0
	if err == nil && read > 0 {
		err = ch.Nack(last.DeliveryTag, true, true) // because 4.3 counts a basic.reject
	}
	// A quorum queue answers before it has put the messages back, and counts the reader as a consumer until then.
	if err == nil {
		err = wire.AwaitSettled(ctx, ch, p.Queue, before.Consumers)
	}
	return err
}

// countedLooks is the number of deliveries from which on Notes warns about header.MaxDeliveries.
const countedLooks = header.MaxDeliveries / 2

func (p *Peeked) note(v observed.Version, o PeekOptions) {
	if len(p.Messages) == 0 {
		return
	}
	switch {
	case p.More > 0 && v.Before(4, 0, 0):
		p.Notes = append(p.Notes, "before RabbitMQ 4.0 a quorum queue puts what was read at its end: these messages are now behind the others")
	case p.moved:
		p.Notes = append(p.Notes, fmt.Sprintf("more than %d messages have been read and put back at some time; in a quorum queue the ones read now are behind the others of these", MaxPeek))
	}
	var most int64
	for _, m := range p.Messages {
		n, _ := header.Integer(m.Headers, header.Deliveries)
		most = max(most, n)
	}
	if most >= countedLooks {
		p.Notes = append(p.Notes, fmt.Sprintf("a message has been read %d times; in a destination's queue a consumer of rabbitdelay dead-letters it after %d", most, header.MaxDeliveries))
	}
	if len(p.Messages) < o.Limit && p.More > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("stopped after %d MiB of bodies", maxPeekBytes>>20))
	}
}
