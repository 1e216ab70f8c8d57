package live

import (
	"context"
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
)

// TypeStream is the x-queue-type of a stream.
const TypeStream = "stream"

// ErrStream refuses to take messages out of a stream.
var ErrStream = errors.New("it is a stream, which can be read from any place without taking anything: consume it with x-stream-offset")

// ConsumeQueue consumes from a queue, with acknowledgements, unless it is a stream:
// ErrStream. A stream would begin with what comes next. The argument says what holds
// without it, and the broker refuses it for a stream.
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
