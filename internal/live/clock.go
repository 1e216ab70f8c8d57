package live

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Time returns the time of the node to which the client is connected, truncated to seconds. The node's clock is read at
// some moment between the call and the return. AMQP has no request for the time, so Time lets a message expire in an
// exclusive queue whose name begins with naming.CanaryQueue(prefix), and reads the time from its x-death header. The
// user needs the permissions to configure, write to and read such queues, and to write to the default exchange.
func (b Broker) Time(ctx context.Context, prefix string) (time.Time, error) {
	queue := naming.CanaryQueue(prefix) + rand.Text()
	s := channels.New(b.Conn)
	defer s.Close()
	at, err := channels.Ask(ctx, s, func(ch *amqp.Channel) (time.Time, error) {
		return askTime(ctx, ch, queue, queue+".held")
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("ask the broker for its time: %w", err)
	}
	return at, nil
}

// askTime sends a message that expires in the queue named held and is then dead-lettered to the queue named queue. It
// returns the time at which the message expired.
func askTime(ctx context.Context, ch *amqp.Channel, queue, held string) (time.Time, error) {
	classic, expires := string(topology.Classic), time.Minute.Milliseconds() // if deleting a queue fails, the queue expires
	for name, args := range map[string]amqp.Table{
		queue: {argument.QueueType: classic, argument.Expires: expires},
		held:  {argument.QueueType: classic, argument.Expires: expires, argument.MessageTTL: int64(0), argument.DeadLetterExchange: "", argument.DeadLetterRoutingKey: queue},
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
			return time.Time{}, errors.New("the test message arrived without an x-death header")
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
