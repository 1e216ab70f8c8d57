package live

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// Time returns the time of the node that the connection leads to, truncated to seconds. It is the time at some moment
// between the call and the return. AMQP has no request for the time, so Time lets a message expire in an exclusive
// queue whose name begins with naming.CanaryQueue(prefix), and reads the time from its x-death header. The user needs
// the permissions to configure, write to and read such queues, and to write to the default exchange.
func (b Broker) Time(ctx context.Context, prefix string) (at time.Time, err error) {
	queue := naming.CanaryQueue(prefix) + rand.Text()
	s := &session{conn: b.Conn}
	defer s.close()
	err = s.do(ctx, func(ch *amqp.Channel) (err error) {
		at, err = askTime(ctx, ch, queue, queue+".held")
		return err
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("ask the broker for its time: %w", err)
	}
	return at, nil
}

// askTime sends a message that expires in the queue named held and is then dead-lettered to the queue named queue.
func askTime(ctx context.Context, ch *amqp.Channel, queue, held string) (time.Time, error) {
	classic := string(topology.Classic)
	for name, args := range map[string]amqp.Table{
		queue: {argument.QueueType: classic},
		held:  {argument.QueueType: classic, argument.MessageTTL: int64(0), argument.DeadLetterExchange: "", argument.DeadLetterRoutingKey: queue},
	} {
		if _, err := ch.QueueDeclare(name, false, false, true, false, args); err != nil {
			return time.Time{}, err
		}
	}
	arrivals, err := ch.Consume(queue, "", true, true, false, false, nil)
	if err != nil {
		return time.Time{}, err
	}
	if err := ch.PublishWithContext(ctx, "", held, false, false, amqp.Publishing{Type: "time"}); err != nil {
		return time.Time{}, err
	}
	select {
	case d, ok := <-arrivals:
		if !ok {
			return time.Time{}, amqp.ErrClosed
		}
		at, ok := expiredAt(d, held)
		if !ok {
			return time.Time{}, errors.New("its message has no x-death")
		}
		for _, name := range []string{held, queue} {
			if _, err := ch.QueueDelete(name, false, false, true); err != nil {
				return time.Time{}, err
			}
		}
		return at, nil
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
}
