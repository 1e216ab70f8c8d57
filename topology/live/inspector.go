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

// Inspector reads what is on a broker. NewAMQPInspector works with a plain
// connection; Management reads more, through the management API.
type Inspector interface {
	// Inspect reads at least the objects that want names. An object that does
	// not exist is absent from the answer, without an error.
	Inspect(ctx context.Context, want topology.Topology) (observed.Broker, error)
}

// NewAMQPInspector inspects with declarations only. It learns whether an object exists and whether it equals
// the wanted one (the first difference if not), by passive declaration and then by declaring it again as it is
// wanted. Bindings and policies stay unknown. The user needs the permission to configure the objects. An object
// that another process deletes between the two steps is created again.
func NewAMQPInspector(conn Conn) Inspector { return &amqpInspector{conn} }

type amqpInspector struct{ conn Conn }

// Inspect declares what is wanted, on a few channels.
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

// lookAt looks at objects side by side and returns what is there, by name, and the error of each.
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

// inspectExchange looks at an exchange; nil if there is none.
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

// inspectQueue looks at a queue; nil if there is none.
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

// countTimeout bounds how long one queue is waited for. A healthy one answers in milliseconds; of a classic queue whose
// node is down the broker may say so after a minute and a half.
const countTimeout = 10 * time.Second

// countQueue counts what is ready in a queue, and its consumers; nil if there is none. A queue whose node is down
// is there and unavailable, although the broker answers with the same code as for none.
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
	case err != nil: // q may still be written
		return nil, err
	}
	return &q, nil
}

// Count is what a queue has now, by the broker's own answer. Messages that a consumer holds are not ready.
type Count struct {
	Ready, Consumers int64
	Missing          bool // there is no such queue
	// Unavailable is why the broker cannot count, because the queue's node is down. A quorum queue without a leader
	// is counted as 0; Leaderless tells.
	Unavailable string
}

// Counts counts what is ready in queues, by passive declarations on a few channels. It
// leaves out queues that the user may not see, or that belong to another connection
// alone. Its error is that of the connection or the context.
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

// TypeStream is the x-queue-type of a stream.
const TypeStream = "stream"

// ErrStream refuses to take messages out of a stream.
var ErrStream = errors.New("it is a stream, which can be read from any place without taking anything: consume it with x-stream-offset")

// ConsumeQueue consumes from a queue, with acknowledgements, unless it is a stream: ErrStream. A stream would
// begin with what comes next. The argument says what holds without it, and the broker refuses it for a stream.
func ConsumeQueue(ch *amqp.Channel, queue, tag string) (<-chan amqp.Delivery, error) {
	deliveries, err := ch.Consume(queue, tag, false, false, false, false, amqp.Table{"x-priority": int32(0)})
	if e, ok := errors.AsType[*amqp.Error](err); ok && e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "rabbit_stream_queue") {
		return nil, fmt.Errorf("%w: %w", ErrStream, err)
	}
	return deliveries, err
}

// OtherType is the type of a queue that is there and has another type than q; "" if
// there is no such queue, or if the user may not declare it.
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
