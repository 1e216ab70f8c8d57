package telemetry

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ObserveQueues reports the messages in the queues of the destinations, in their dead-letter queues and in the parked
// queue, until the registration is unregistered. Queues that the client consumes are included even if their
// destinations are not given. Their dead-letter queues are included if they have the default name. ObserveQueues reads
// at most Config.MaxDestinations queues and their dead-letter queues, with Client.QueueInfo, at most once per
// Config.Interval. Like ObserveStore, it reads in the background. Queues that do not exist, do not answer, or that the
// user is not allowed to examine are left out.
func (t *Telemetry) ObserveQueues(c *amqpx.Client, given []topology.Destination, attributes ...attribute.KeyValue) (metric.Registration, error) {
	m := &maker{meter: t.meter, own: attributes}
	ready := m.gauge("rabbitdelay.queue.ready", "{message}", "Messages in a destination's queue that wait for a consumer.")
	consumers := m.gauge("rabbitdelay.queue.consumers", "{consumer}", "Consumers of a destination's queue, in all processes.")
	dead := m.gauge("rabbitdelay.dead_letters", "{message}", "Messages in a destination's dead-letter queue.")
	parked := m.gauge("rabbitdelay.parked", "{message}", "Messages in the parked queue, whose destinations no longer exist.")
	all := &reading[queues]{interval: t.interval, read: func(ctx context.Context) (queues, error) {
		return readQueues(ctx, c, t.watched(c, given))
	}}
	return m.register(func(ctx context.Context, o metric.Observer) error {
		q, ok := all.recent(ctx)
		if !ok {
			return nil
		}
		for name, x := range q.of {
			at := m.with(semconv.MessagingDestinationName(name))
			o.ObserveInt64(ready, int64(x.own.Ready), at)
			o.ObserveInt64(consumers, int64(x.own.Consumers), at)
			if x.dead != nil {
				o.ObserveInt64(dead, int64(x.dead.Ready), at)
			}
		}
		if q.parked != nil {
			o.ObserveInt64(parked, int64(q.parked.Ready), m.with())
		}
		return nil
	})
}

// watched returns the queues to read, with their dead-letter queues.
func (t *Telemetry) watched(c *amqpx.Client, given []topology.Destination) map[string]string {
	list := map[string]string{}
	add := func(d topology.Destination) {
		if _, listed := list[d.Queue]; !listed && d.Queue != "" && len(list) < t.destinations.most {
			list[d.Queue] = d.DeadLetterQueue()
		}
	}
	for _, d := range given {
		add(d)
	}
	for _, k := range c.Stats().Consumers {
		add(topology.Destination{Queue: k.Queue})
	}
	return list
}

// queues holds the values for the queues that were read.
type queues struct {
	of     map[string]queue // the queues that exist
	parked *amqpx.QueueInfo // nil if it does not exist
}

type queue struct{ own, dead *amqpx.QueueInfo }

func readQueues(ctx context.Context, c *amqpx.Client, watched map[string]string) (q queues, err error) {
	q.of = make(map[string]queue, len(watched))
	for name, deadName := range watched {
		var x queue
		if x.own, err = look(ctx, c, name); err != nil {
			return queues{}, err
		}
		if x.own == nil {
			continue
		}
		if x.dead, err = look(ctx, c, deadName); err != nil {
			return queues{}, err
		}
		q.of[name] = x
	}
	q.parked, err = look(ctx, c, topology.ParkedQueue(c.Strategy().Prefix()))
	return q, err
}

// look reads a queue. It returns nil if the queue does not exist or does not answer, or if the user is not allowed to
// examine it.
func look(ctx context.Context, c *amqpx.Client, name string) (*amqpx.QueueInfo, error) {
	info, err := c.QueueInfo(ctx, name)
	if errors.Is(err, amqpx.ErrUnavailable) {
		return nil, nil
	}
	if refused, ok := errors.AsType[*amqp.Error](err); ok {
		switch refused.Code {
		case amqp.NotFound, amqp.AccessRefused, amqp.ResourceLocked:
			return nil, nil
		}
	}
	return &info, err
}
