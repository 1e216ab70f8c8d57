package relay

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ErrMaxSends is recorded for a task that fails because it was sent Config.MaxSends times without being settled.
var ErrMaxSends = errors.New("no handler settled the task")

// eachSender is a Sender that reports the outcome of each message as soon as it is known. *amqpx.Client implements it.
type eachSender interface {
	SendEach(ctx context.Context, msgs []amqpx.Message, outcome func(i int, err error)) error
}

var _ eachSender = (*amqpx.Client)(nil)

// Publish sends the tasks and calls outcome for each of them, with nil if it was confirmed.
func (r *Relay) Publish(ctx context.Context, list []*rows.Task, outcome func(*rows.Task, error)) {
	ctx, cancel := context.WithTimeout(ctx, r.PublishTimeout)
	defer cancel()
	good := make([]*rows.Task, 0, len(list))
	for _, c := range list {
		if c.Bad != nil {
			outcome(c, c.Bad)
		} else {
			good = append(good, c)
		}
	}
	r.send(ctx, good, outcome)
}

// send publishes tasks whose rows are readable. If one message is invalid, the sender rejects its whole batch before it
// sends anything, so send halves the batch until it has found that message.
func (r *Relay) send(ctx context.Context, list []*rows.Task, outcome func(*rows.Task, error)) {
	if len(list) == 0 {
		return
	}
	offset := r.Poller.Offset()
	msgs := make([]amqpx.Message, len(list))
	for i, c := range list {
		msgs[i] = Message(c)
		msgs[i].ClockOffset = offset
	}
	err := r.sendEach(ctx, msgs, func(i int, err error) { outcome(list[i], err) })
	if err == nil {
		return
	}
	if len(list) > 1 && judge(err) != broker {
		half := len(list) / 2
		r.send(ctx, list[:half], outcome)
		r.send(ctx, list[half:], outcome)
		return
	}
	for _, c := range list {
		outcome(c, err)
	}
}

// sendEach calls outcome for each message. If the sender rejects the whole batch, so that nothing was sent, sendEach
// returns its error instead.
func (r *Relay) sendEach(ctx context.Context, msgs []amqpx.Message, outcome func(i int, err error)) error {
	if each, ok := r.Sender.(eachSender); ok {
		return each.SendEach(ctx, msgs, outcome)
	}
	err := r.Sender.SendBatch(ctx, msgs)
	be, ok := errors.AsType[*amqpx.BatchError](err)
	if err != nil && !ok {
		return err
	}
	for i := range msgs {
		err = nil
		if ok && be.Failed[i] != nil {
			err = be.Failed[i]
		}
		outcome(i, err)
	}
	return nil
}

// verdict is the cause of a failed send: the broker, the task's destination or the task itself.
type verdict int

const (
	broker      verdict = iota // any message might fail now
	destination                // the destination does not accept the message now
	impossible                 // the task can never be sent
)

func judge(err error) verdict {
	var key *topology.KeyError
	_, tried := errors.AsType[*amqpx.SendError](err)
	switch {
	case errors.Is(err, ErrMaxSends), errors.Is(err, amqpx.ErrMessage), errors.Is(err, topology.ErrDelay), rows.IsRowError(err), errors.As(err, &key):
		return impossible
	case errors.Is(err, topology.ErrDestination) && !tried: // the client itself rejected the destination
		return impossible
	case errors.Is(err, topology.ErrDestination), errors.Is(err, amqpx.ErrNacked), errors.Is(err, amqpx.ErrUnroutable):
		return destination
	}
	if gone(err) {
		return destination
	}
	return broker
}

// gone reports whether the destination does not exist or the user is not allowed to access it. Unlike a full queue,
// that condition does not resolve itself.
func gone(err error) bool {
	if errors.Is(err, topology.ErrDestination) {
		return true
	}
	if _, dialing := errors.AsType[*amqpx.DialError](err); dialing {
		return false // a refused login says nothing about the destination
	}
	ae, ok := errors.AsType[*amqp.Error](err)
	return ok && (ae.Code == amqp.NotFound || ae.Code == amqp.AccessRefused)
}

// withoutID removes the message id from an error, so that tasks that fail for the same reason have the same last_error.
func withoutID(err error) error {
	if se, ok := errors.AsType[*amqpx.SendError](err); ok {
		return errors.New("not confirmed: " + se.Cause.Error())
	}
	return err
}

// Message returns the message that the relay publishes for a task.
func Message(t *rows.Task) amqpx.Message {
	m := amqpx.Message{
		ID: t.ID, Queue: t.Queue, Exchange: t.Exchange, RoutingKey: t.RoutingKey,
		DeliverAt: t.DeliverAt, Body: t.Body, ContentType: t.ContentType, Type: t.Type, CorrelationID: t.CorrelationID, Priority: t.Priority,
		Version: t.Version, Created: t.CreatedAt, Attempt: t.Attempts + 1,
	}
	if t.NotBefore.After(m.DeliverAt) {
		m.DeliverAt = t.NotBefore
	}
	if len(t.Headers) > 0 {
		m.Headers = make(map[string]any, len(t.Headers))
		for k, v := range t.Headers {
			m.Headers[k] = v
		}
	}
	return m
}
