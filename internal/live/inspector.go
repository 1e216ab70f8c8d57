package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Inspector reads the objects on a broker. NewAMQPInspector works with a plain connection. Management reads more,
// through the management API.
type Inspector interface {
	// Inspect reads at least the objects in the topology want. Objects that do not exist are absent from the result,
	// without an error.
	Inspect(ctx context.Context, want topology.Topology) (plan.State, error)
}

// NewAMQPInspector returns an Inspector that uses only declarations. It declares each object passively, to find out
// whether it exists, and then again as wanted, to find out whether it equals the wanted object and, if not, what the
// first difference is. Bindings and policies remain unknown. The user needs the permission to configure the objects. If
// another process deletes an object between the two declarations, the second one creates it again.
func NewAMQPInspector(conn Conn) Inspector { return &amqpInspector{conn} }

type amqpInspector struct{ conn Conn }

// Inspect implements Inspector. It checks the wanted objects concurrently, on a few channels.
func (i *amqpInspector) Inspect(ctx context.Context, want topology.Topology) (plan.State, error) {
	exchanges, errs := channels.LookAt(i.conn, want.Exchanges, func(s *channels.Session, e topology.Exchange) (string, *plan.Exchange, error) {
		found, err := inspectExchange(ctx, s, e)
		return e.Name, found, inspectFailed(topology.KindExchange, e.Name, err)
	})
	if err := cmp.Or(errs...); err != nil {
		return plan.State{}, err
	}
	queues, errs := channels.LookAt(i.conn, want.Queues, func(s *channels.Session, q topology.Queue) (string, *plan.Queue, error) {
		found, err := inspectQueue(ctx, s, q)
		return q.Name, found, inspectFailed(topology.KindQueue, q.Name, err)
	})
	if err := cmp.Or(errs...); err != nil {
		return plan.State{}, err
	}
	return plan.State{Source: "AMQP", Exchanges: exchanges, Queues: queues}, nil
}

func inspectFailed(kind topology.Kind, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("inspect %s %q: %w", kind, name, err)
}

// inspectExchange inspects an exchange. It returns nil if the exchange does not exist.
func inspectExchange(ctx context.Context, s *channels.Session, e topology.Exchange) (*plan.Exchange, error) {
	err := s.Do(ctx, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, e.AutoDelete, e.Internal, false, nil)
	})
	if channels.IsCode(err, amqp.NotFound) {
		return nil, nil
	}
	if err == nil {
		err = s.Do(ctx, func(ch *amqp.Channel) error { return channels.DeclareExchange(ch, e, false) })
	}
	if m, ok := channels.Inequivalent(err, e.Table()); ok {
		return &plan.Exchange{Mismatches: []topology.Mismatch{m}}, nil
	}
	return &plan.Exchange{}, err
}

// inspectQueue inspects a queue. It returns nil if the queue does not exist.
func inspectQueue(ctx context.Context, s *channels.Session, q topology.Queue) (*plan.Queue, error) {
	found, err := channels.CountQueue(ctx, s, q.Name)
	if found == nil || found.Unavailable != "" || err != nil {
		return found, err
	}
	err = s.Do(ctx, func(ch *amqp.Channel) error { return channels.DeclareQueue(ch, q, false) })
	if m, ok := channels.Inequivalent(err, q.Table()); ok {
		found.Mismatches, err = []topology.Mismatch{m}, nil
	}
	return found, err
}

// Count contains the current counts of a queue as the broker reports them. Ready does not include unacknowledged
// messages.
type Count struct {
	Ready, Consumers int64
	Missing          bool // the queue does not exist
	// Unavailable says why the broker cannot count the queue's messages: its node is down or does not answer. It is
	// empty if the counts are known. A quorum queue without a leader is reported with counts of 0; use Leaderless to
	// find such queues.
	Unavailable string
}

// Counts counts the ready messages and the consumers of queues, by passive declarations on a few channels. It omits
// queues that the user is not allowed to see, and exclusive queues of other connections. It fails only if the
// connection fails or the context ends.
func Counts(ctx context.Context, conn Conn, queues []string) (map[string]Count, error) {
	counts, errs := channels.LookAt(conn, queues, func(s *channels.Session, name string) (string, *Count, error) {
		q, err := channels.CountQueue(ctx, s, name)
		if refusal, ok := errors.AsType[*amqp.Error](err); err != nil {
			if ok && refusal.Server {
				err = nil
			}
			return name, nil, err
		}
		if q == nil {
			return name, &Count{Missing: true}, nil
		}
		return name, &Count{Ready: q.Messages, Consumers: q.Consumers, Unavailable: q.Unavailable}, nil
	})
	return counts, errors.Join(errs...)
}

// TypeStream is the x-queue-type argument of a stream.
const TypeStream = "stream"

// ErrStream is wrapped by ConsumeQueue's error for a stream, because messages cannot be taken out of a stream.
var ErrStream = errors.New("the queue is a stream, which can be read from any offset without removing messages; consume it with x-stream-offset")

// ConsumeQueue consumes from a queue with manual acknowledgements. For a stream it fails with ErrStream, because a
// stream consumer would start with the next message to be published. To detect streams it sets x-priority to 0, which
// is the default, and which the broker refuses for a stream.
func ConsumeQueue(ch *amqp.Channel, queue, tag string) (<-chan amqp.Delivery, error) {
	deliveries, err := ch.Consume(queue, tag, false, false, false, false, amqp.Table{"x-priority": int32(0)})
	if e, ok := errors.AsType[*amqp.Error](err); ok && e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "rabbit_stream_queue") {
		return nil, fmt.Errorf("%w: %w", ErrStream, err)
	}
	return deliveries, err
}

// OtherType returns the type of an existing queue whose type differs from that of q. It returns "" if the types are the
// same, if there is no such queue, or if the user is not allowed to declare it.
func OtherType(ctx context.Context, conn Conn, q topology.Queue) (string, error) {
	q = topology.Queue{Name: q.Name, Type: q.Type} // without arguments, so that the broker's error names the type as the first difference
	found, err := NewAMQPInspector(conn).Inspect(ctx, topology.Topology{Queues: []topology.Queue{q}})
	if channels.IsCode(err, amqp.AccessRefused) {
		return "", nil
	}
	for _, m := range found.Queues[q.Name].Mismatches {
		if have, ok := m.Have.(string); ok && m.Argument == argument.QueueType {
			return have, nil
		}
	}
	return "", err
}
