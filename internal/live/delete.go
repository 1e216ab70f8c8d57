package live

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// DeleteAll deletes everything that the topology describes, including messages, without checking whether it is in use.
// Use it for objects that a test or a demo created for itself.
func (b Broker) DeleteAll(ctx context.Context, t topology.Topology) error {
	queues := channels.SideBySide(b.Conn, len(t.Queues), func(s *channels.Session, i int) error {
		_, err := channels.DeleteQueue(ctx, s, t.Queues[i].Name, false)
		return objectFailed(topology.KindQueue, t.Queues[i].Name, err)
	})
	exchanges := channels.SideBySide(b.Conn, len(t.Exchanges), func(s *channels.Session, i int) error {
		return objectFailed(topology.KindExchange, t.Exchanges[i].Name, channels.DeleteExchange(ctx, s, t.Exchanges[i].Name, false))
	})
	return errors.Join(errors.Join(queues...), errors.Join(exchanges...))
}

// objectFailed wraps the error of deleting an object. It returns nil if the object does not exist.
func objectFailed(kind topology.Kind, name string, err error) error {
	if err == nil || channels.IsCode(err, amqp.NotFound) {
		return nil
	}
	return &ObjectError{Kind: kind, Name: name, Op: "delete", Err: err}
}
