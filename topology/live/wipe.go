package live

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Wipe deletes everything that the topology describes, including messages,
// without checking for users. It is for objects that a test or a demo created
// for itself.
func (b Broker) Wipe(ctx context.Context, t topology.Topology) error {
	queues := sideBySide(b.Conn, len(t.Queues), func(s *session, i int) error {
		_, err := deleteQueue(ctx, s, t.Queues[i].Name, false)
		return objectFailed(topology.KindQueue, t.Queues[i].Name, err)
	})
	exchanges := sideBySide(b.Conn, len(t.Exchanges), func(s *session, i int) error {
		return objectFailed(topology.KindExchange, t.Exchanges[i].Name, deleteExchange(ctx, s, t.Exchanges[i].Name, false))
	})
	return errors.Join(errors.Join(queues...), errors.Join(exchanges...))
}

// objectFailed is the error of deleting an object, none if it is not there.
func objectFailed(kind topology.Kind, name string, err error) error {
	if err == nil || isCode(err, amqp.NotFound) {
		return nil
	}
	return &ObjectError{Kind: kind, Name: name, Op: "delete", Err: err}
}
