package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// Inspector reads the objects on a broker. NewAMQPInspector works with a plain connection. Management reads more,
// through the management API.
type Inspector interface {
	// Inspect reads at least the objects that want names. Objects that do not exist are absent from the result,
	// without an error.
	Inspect(ctx context.Context, want topology.Topology) (observed.Broker, error)
}

// NewAMQPInspector returns an Inspector that uses declarations only. It learns whether an object exists and whether
// it equals the wanted one, or else the first difference. For that it declares the object passively and then again as
// wanted. Bindings and policies remain unknown. The user needs the permission to configure the objects. If another
// process deletes an object between the two declarations, the second one creates it again.
func NewAMQPInspector(conn Conn) Inspector { return &amqpInspector{conn} }

type amqpInspector struct{ conn Conn }

// Inspect implements Inspector. It declares the wanted objects on a few channels.
func (i *amqpInspector) Inspect(ctx context.Context, want topology.Topology) (observed.Broker, error) {
	exchanges, errs := lookAt(i.conn, want.Exchanges, func(s *session, e topology.Exchange) (string, *observed.Exchange, error) {
		found, err := inspectExchange(ctx, s, e)
		return e.Name, found, inspectFailed(topology.KindExchange, e.Name, err)
	})
	if err := cmp.Or(errs...); err != nil {
		return observed.Broker{}, err
	}
	queues, errs := lookAt(i.conn, want.Queues, func(s *session, q topology.Queue) (string, *observed.Queue, error) {
		found, err := inspectQueue(ctx, s, q)
		return q.Name, found, inspectFailed(topology.KindQueue, q.Name, err)
	})
	if err := cmp.Or(errs...); err != nil {
		return observed.Broker{}, err
	}
	return observed.Broker{Source: "AMQP", Exchanges: exchanges, Queues: queues}, nil
}

// lookAt inspects objects concurrently, and returns the existing ones by name and the error of each.
func lookAt[W, F any](conn Conn, wanted []W, look func(s *session, w W) (name string, found *F, err error)) (map[string]F, []error) {
	found, names := make([]*F, len(wanted)), make([]string, len(wanted))
	errs := sideBySide(conn, len(wanted), func(s *session, i int) (err error) {
		names[i], found[i], err = look(s, wanted[i])
		return err
	})
	there := map[string]F{}
	for i, f := range found {
		if f != nil {
			there[names[i]] = *f
		}
	}
	return there, errs
}

func inspectFailed(kind topology.Kind, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("inspect %s %q: %w", kind, name, err)
}

// inspectExchange inspects an exchange. It returns nil if the exchange does not exist.
func inspectExchange(ctx context.Context, s *session, e topology.Exchange) (*observed.Exchange, error) {
	err := s.do(ctx, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, e.AutoDelete, e.Internal, false, nil)
	})
	if isCode(err, amqp.NotFound) {
		return nil, nil
	}
	if err == nil {
		err = s.do(ctx, func(ch *amqp.Channel) error { return declareExchange(ch, e, false) })
	}
	if m, ok := parseInequivalent(err, e.Table()); ok {
		return &observed.Exchange{Mismatches: []argument.Mismatch{m}}, nil
	}
	return &observed.Exchange{}, err
}

// inspectQueue inspects a queue. It returns nil if the queue does not exist.
func inspectQueue(ctx context.Context, s *session, q topology.Queue) (*observed.Queue, error) {
	found, err := countQueue(ctx, s, q.Name)
	if found == nil || found.Unavailable != "" || err != nil {
		return found, err
	}
	err = s.do(ctx, func(ch *amqp.Channel) error { return declareQueue(ch, q, false) })
	if m, ok := parseInequivalent(err, q.Table()); ok {
		found.Mismatches, err = []argument.Mismatch{m}, nil
	}
	return found, err
}

// countTimeout bounds how long countQueue waits for one queue. A healthy queue answers in milliseconds. For a classic
// queue whose node is down the broker may take a minute and a half to say so.
const countTimeout = 10 * time.Second

// countQueue counts a queue's ready messages and its consumers. It returns nil if the queue does not exist. A queue
// whose node is down is returned as unavailable, although the broker answers with the same code as for a queue that
// does not exist.
func countQueue(ctx context.Context, s *session, queue string) (*observed.Queue, error) {
	var q observed.Queue
	one, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	err := s.do(one, func(ch *amqp.Channel) error {
		state, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		q.Messages, q.Consumers = int64(state.Messages), int64(state.Consumers)
		return err
	})
	why, down := queueDown(err)
	switch {
	case down:
		return &observed.Queue{Unavailable: why}, nil
	case err != nil && one.Err() != nil && ctx.Err() == nil:
		return &observed.Queue{Unavailable: fmt.Sprintf("no answer within %v", countTimeout)}, nil
	case isCode(err, amqp.NotFound):
		return nil, nil
	case err != nil: // the operation may still be writing to q
		return nil, err
	}
	return &q, nil
}

// Count holds the current counts of a queue as the broker reports them. Unacknowledged messages are not ready.
type Count struct {
	Ready, Consumers int64
	Missing          bool // the queue does not exist
	// Unavailable is the reason why the broker cannot count, which is that the queue's node is down or does not
	// answer. It is empty otherwise. A quorum queue without a leader is counted as 0, and only Leaderless finds it.
	Unavailable string
}

// Counts counts the ready messages and the consumers of queues, by passive declarations on a few channels. It omits
// queues that the user may not see, and exclusive queues of other connections. It fails only if the connection fails
// or the context ends.
func Counts(ctx context.Context, conn Conn, queues []string) (map[string]Count, error) {
	counts, errs := lookAt(conn, queues, func(s *session, name string) (string, *Count, error) {
		q, err := countQueue(ctx, s, name)
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
var ErrStream = errors.New("it is a stream, which can be read from any place without taking anything: consume it with x-stream-offset")

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

// OtherType returns the type of an existing queue whose type differs from that of q. It returns "" if the types are
// the same, if there is no such queue, or if the user may not declare it.
func OtherType(ctx context.Context, conn Conn, q topology.Queue) (string, error) {
	q = topology.Queue{Name: q.Name, Type: q.Type} // the broker names the first argument that differs
	found, err := NewAMQPInspector(conn).Inspect(ctx, topology.Topology{Queues: []topology.Queue{q}})
	if isCode(err, amqp.AccessRefused) {
		return "", nil
	}
	for _, m := range found.Queues[q.Name].Mismatches {
		if have, ok := m.Have.(string); ok && m.Argument == argument.QueueType {
			return have, nil
		}
	}
	return "", err
}
