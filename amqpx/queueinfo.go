package amqpx

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
)

// QueueInfo is what a broker tells about a queue.
type QueueInfo struct {
	Ready     int // messages that wait for a consumer
	Consumers int
}

// QueueInfo asks the broker about a queue by a passive declaration, which changes
// nothing. It takes three round trips, on a channel of its own of the connection
// for declarations, and needs no right to the queue before RabbitMQ 4.3, and any
// right (configure, write or read) since.
//
// The broker counts the messages that are ready. It leaves out those that a
// consumer holds unacknowledged, those that are still in a delay queue, and those
// that the last delay queue has begun to hand over: a queue without a ready
// message need not be done with.
//
// The error wraps an *amqp.Error with the code NotFound for a queue that does not
// exist, or whose node is down; AccessRefused for one that the user may not see;
// ResourceLocked for one that is exclusive to another connection.
func (c *Client) QueueInfo(ctx context.Context, queue string) (QueueInfo, error) {
	var info QueueInfo
	sess, err := c.pub.Wait(ctx, false)
	if err == nil {
		err = c.decl.Do(ctx, sess.Session, func(conn *amqp.Connection) error {
			ch := wire.Channel{Conn: conn}
			defer ch.Close()
			return ch.Do(func(ch *amqp.Channel) error {
				q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
				info = QueueInfo{Ready: q.Messages, Consumers: q.Consumers}
				return err
			})
		})
	}
	if err != nil {
		return QueueInfo{}, fmt.Errorf("looking at queue %s: %w", queue, err)
	}
	return info, nil
}
