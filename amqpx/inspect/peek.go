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

// Bounds of Peek.
const (
	DefaultPeek  = 10
	MaxPeek      = 1000
	maxPeekBytes = 64 << 20 // of bodies; the message that passes it is the last
)

// ErrPeek is wrapped by every *PeekError.
var ErrPeek = errors.New("the queue was not looked into")

// PeekError is why Peek did not look into a queue, before it took anything.
type PeekError struct {
	Queue  string
	Reason string // and what to do
	Err    error  // of the management API, where that is why
}

func (e *PeekError) Error() string { return fmt.Sprintf("%v: %s: %s", ErrPeek, e.Queue, e.Reason) }

// Unwrap makes errors.Is(err, ErrPeek) true.
func (e *PeekError) Unwrap() error { return ErrPeek }

// PeekOptions tune Peek.
type PeekOptions struct {
	// Limit is how many messages are read, from the queue's head; default DefaultPeek, at most MaxPeek.
	Limit int
	// Prefix of the delay objects; default topology.DefaultPrefix.
	Prefix string
	// Management has the type and the delivery limit of the queue. Without it queues are looked into from
	// RabbitMQ 4.3 on only.
	Management *live.Management
}

// Peeked is what lies at the head of a queue.
type Peeked struct {
	Queue    string
	Messages []DeadLetter // in the queue's order; Reason is empty for what is no dead letter
	// More is how many further messages were ready. Messages that consumers hold unacknowledged are not counted,
	// and not seen.
	More int
	// Notes are what the look has disturbed.
	Notes []string

	moved bool // messages that were read before lie before these now
}

// Peek reads the messages at the head of a queue and puts them back. When it returns they are in the queue again,
// so that a Requeue that follows finds them. It acknowledges none, and spends no delivery limit:
//
//   - RabbitMQ 4.3 and later counts a message that is put back by basic.nack as acquired, not as delivered in
//     vain.
//   - Before, every way back counts towards the limit of a quorum queue, 20 by default from 4.0 on. Peek then
//     looks only into queues whose limit nobody reaches, such as those that rabbitdelay declares, and into
//     classic ones; for others it returns a *PeekError that says what to do.
//
// It does not look into delay queues and route queues, whose messages would be late, nor into streams
// (*PeekError).
//
// While it looks, for some milliseconds, consumers do not get these messages, and after it they have the
// redelivered flag. They go back to their place, except in quorum queues before RabbitMQ 4.0, which put them at
// the end; Notes say so. To keep them in order Peek may read more messages than it returns, up to MaxPeek. If the
// process or the connection ends in between, the broker puts them back and counts a delivery.
//
// The connection is one of Dial, which also reads messages that end a connection of amqp091-go's own; Peek refuses
// another (*PeekError).
//
// The user needs the right to read the queue. The error wraps an *amqp.Error with the code NotFound,
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

// mayPeek refuses a queue into which a look would cost something.
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

// peekRefused is for a queue whose limit returns could not tell.
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

// returns is how often a message of a queue may be put back. From RabbitMQ 4.3 on that costs nothing; before, a
// quorum queue compares each time with its delivery limit, which a policy may have set, so that only the
// management API knows it.
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
	case !counts || err == nil && q == nil: // the broker answers for itself
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
	defer func() { _ = ch.Close() }() // what is still held goes back
	before, err := ch.QueueDeclarePassive(p.Queue, true, false, false, false, nil)
	if err != nil {
		return err
	}
	if before.Messages+before.Consumers == 0 { // which is what the broker says of one without a leader
		if err := answers(ctx, conn, p.Queue); err != nil {
			return err
		}
	}
	size := 0
	var last amqp.Delivery
	read := 0
	// A quorum queue keeps what came back before the rest, each behind what was there already. So whoever takes
	// one of these takes all, and they stay in order.
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
		err = ch.Nack(last.DeliveryTag, true, true) // by basic.reject 4.3 counts it
	}
	if err == nil { // a quorum queue answers before it has put them back, and counts the reader as a consumer until then
		err = wire.AwaitSettled(ctx, ch, p.Queue, before.Consumers)
	}
	return err
}

// countedLooks is from how many deliveries on Notes warn of header.MaxDeliveries.
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
