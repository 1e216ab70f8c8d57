package inspect

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// mayPeek returns an error if reading the queue's messages could drop or delay them.
func mayPeek(ctx context.Context, conn *amqp.Connection, queue string, o PeekOptions) error {
	refuse := func(reason string, args ...any) error {
		return &PeekError{queue: queue, reason: fmt.Sprintf(reason, args...)}
	}
	if naming.Reserved(o.Prefix, queue) && queue != topology.ParkedQueue(o.Prefix) {
		return refuse("it belongs to the delay strategies with prefix %q, and reading a message there would make it late; rabbitdelay status shows how many messages it has", o.Prefix)
	}
	limit, err := allowedReturns(ctx, live.Internal(o.Management), queue, wire.Version(wire.Broker(conn)))
	switch {
	case errors.Is(err, live.ErrUnavailable):
		return err
	case err != nil:
		return peekRefused(queue, err)
	case limit < topology.NoDeliveryLimit:
		return refuse(peekCosts+" or dead-letters it; the limit of this queue is %d. "+
			"On the broker, \"rabbitmq-queues peek %s 1\" shows a message without counting towards the limit; if the queue has no x-delivery-limit of its own, a policy with delivery-limit %d lifts the limit", limit, queue, topology.NoDeliveryLimit)
	}
	return nil
}

// limitTimeout is how long the management API may take to report a queue's delivery limit.
const limitTimeout = 5 * time.Second

const peekCosts = "before 4.3, RabbitMQ counts each read towards the delivery limit of a quorum queue; above the limit, it drops the message"

// peekRefused returns the error for a queue that Peek must not read. The parameter err says why the function
// allowedReturns could not determine how many times the queue's messages may be put back.
func peekRefused(queue string, err error) error {
	e := &PeekError{queue: queue, reason: peekCosts + "; " + err.Error()}
	switch {
	case errors.Is(err, live.ErrStream):
		e.reason = err.Error()
	case live.IsDenied(err):
		e.reason = peekCosts + "; the user is not allowed to read the limit from the management API: the user needs the management or monitoring tag"
	case !errors.Is(err, errLimitUnknown) && !errors.Is(err, errLimitNotYet):
		e.Err = err
	}
	return e
}

var (
	errLimitUnknown = errors.New("a policy may set the limit, and AMQP does not show policies; this needs the management API (broker.management_url)")
	errLimitNotYet  = errors.New("the management API does not report yet whether a policy sets the limit, because the queue was declared or its node started a moment ago; try again in 10 s")
)

// allowedReturns returns how many times a message of the queue may be put back. From RabbitMQ 4.3 on there is no limit.
// Before that, a quorum queue compares the count with its delivery limit, which may be set by a policy, so only the
// management API reports it. If the management API reports that the queue has no leader, the error is a
// *live.UnavailableError, because such a queue would not answer.
func allowedReturns(ctx context.Context, m *live.Management, queue string, v plan.Version) (int64, error) {
	counts := !v.Known() || v.Before(4, 3, 0)
	if m == nil {
		if counts {
			return 0, errLimitUnknown
		}
		return math.MaxInt64, nil
	}
	one, cancel := context.WithTimeout(ctx, limitTimeout)
	defer cancel()
	q, err := m.Queue(one, queue)
	if err != nil && one.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no answer from the management API within %v", limitTimeout)
	}
	switch {
	case err == nil && q != nil && q.Type == live.TypeStream:
		return 0, live.ErrStream
	case err == nil && q != nil && q.Unavailable != "":
		return 0, &live.UnavailableError{Queue: queue, Reason: q.Unavailable}
	case !counts || err == nil && q == nil: // if the queue does not exist, the broker reports that when it is read
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

// countReady calls count with a time limit, because a broker may take minutes to say that a queue does not answer.
func countReady(ctx context.Context, conn *amqp.Connection, queue string) (amqp.Queue, error) {
	one, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	q, err := wait.Value(one, func() (amqp.Queue, error) {
		ch, err := channels.Open(conn)
		if err != nil {
			return amqp.Queue{}, err
		}
		defer func() { _ = ch.Close() }() // no messages are held on the channel, so none are requeued
		return count(one, conn, ch, queue)
	})
	why, down := channels.Down(err)
	switch {
	case down:
		return q, &live.UnavailableError{Queue: queue, Reason: why}
	case err != nil && one.Err() != nil && ctx.Err() == nil:
		return q, unanswered(queue, getTimeout)
	}
	return q, err
}
