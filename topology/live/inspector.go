package live

import (
	"cmp"
	"context"
	"fmt"

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

// NewAMQPInspector inspects with declarations only. It learns whether an object
// exists and whether it equals the wanted one (the first difference if not), by
// passive declaration and then by declaring it again as it is wanted. Bindings
// and policies stay unknown. The user needs the permission to configure the
// objects. An object that another process deletes between the two steps is
// created again.
func NewAMQPInspector(conn Conn) Inspector { return &amqpInspector{conn} }

type amqpInspector struct{ conn Conn }

// Inspect declares what is wanted, on a few channels.
func (i *amqpInspector) Inspect(ctx context.Context, want topology.Topology) (observed.Broker, error) {
	exchanges := make([]*observed.Exchange, len(want.Exchanges))
	queues := make([]*observed.Queue, len(want.Queues))
	failed := cmp.Or(sideBySide(i.conn, len(exchanges), func(s *session, n int) (err error) {
		exchanges[n], err = inspectExchange(ctx, s, want.Exchanges[n])
		return inspectFailed(topology.KindExchange, want.Exchanges[n].Name, err)
	})...)
	if failed == nil {
		failed = cmp.Or(sideBySide(i.conn, len(queues), func(s *session, n int) (err error) {
			queues[n], err = inspectQueue(ctx, s, want.Queues[n])
			return inspectFailed(topology.KindQueue, want.Queues[n].Name, err)
		})...)
	}
	if failed != nil {
		return observed.Broker{}, failed
	}
	found := observed.Broker{Source: "AMQP", Exchanges: map[string]observed.Exchange{}, Queues: map[string]observed.Queue{}}
	for n, e := range exchanges {
		if e != nil {
			found.Exchanges[want.Exchanges[n].Name] = *e
		}
	}
	for n, q := range queues {
		if q != nil {
			found.Queues[want.Queues[n].Name] = *q
		}
	}
	return found, nil
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
	if found == nil || err != nil {
		return found, err
	}
	err = s.do(ctx, func(ch *amqp.Channel) error { return declareQueue(ch, q, false) })
	if m, ok := parseInequivalent(err, q.Table()); ok {
		found.Mismatches, err = []argument.Mismatch{m}, nil
	}
	return found, err
}

// countQueue counts what is ready in a queue, and its consumers; nil if there is
// none.
func countQueue(ctx context.Context, s *session, queue string) (*observed.Queue, error) {
	var q observed.Queue
	err := s.do(ctx, func(ch *amqp.Channel) error {
		state, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		q.Messages, q.Consumers = int64(state.Messages), int64(state.Consumers)
		return err
	})
	if isCode(err, amqp.NotFound) {
		return nil, nil
	}
	return &q, err
}
