package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ttlQueues delays messages as many programs do without a library: with one queue for each delay in whole seconds,
// whose messages expire and are dead-lettered to the queue of the tasks. Delays are rounded up to seconds. The queues
// have the safety of rabbitdelay's, so that both cost the broker the same per queue.
type ttlQueues struct {
	queue string
	names map[int64]string // declared queues by seconds
}

func openTTLQueues(ctx context.Context, e *env) (system, error) {
	return openPlain(ctx, dialing(e.broker.URL()), e.name(), &ttlQueues{names: map[int64]string{}})
}

func (q *ttlQueues) declare(_ *amqp.Channel, queue string) error {
	q.queue = queue
	return nil
}

func (q *ttlQueues) address(ch *amqp.Channel, delay time.Duration) (exchange, key string, headers amqp.Table, err error) {
	seconds := int64((delay + time.Second - 1) / time.Second)
	if seconds == 0 {
		return "", q.queue, nil, nil
	}
	name, declared := q.names[seconds]
	if !declared {
		name = fmt.Sprintf("%s.%ds", q.queue, seconds)
		_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{
			"x-queue-type":              "quorum",
			"x-message-ttl":             seconds * 1000,
			"x-dead-letter-exchange":    "",
			"x-dead-letter-routing-key": q.queue,
			"x-dead-letter-strategy":    "at-least-once",
			"x-overflow":                "reject-publish",
		})
		if err != nil {
			return "", "", nil, err
		}
		q.names[seconds] = name
	}
	return "", name, nil, nil
}

func (q *ttlQueues) remove(ch *amqp.Channel) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Values(q.names)) {
		_, err := ch.QueueDelete(name, false, false, false)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
