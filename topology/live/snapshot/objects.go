package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

func (c *collector) objects(ctx context.Context) error {
	if c.src.Management != nil {
		c.inspected = time.Now()
		var found observed.Broker
		err := c.src.Management.SameCluster(ctx, c.conn)
		if err == nil {
			found, err = c.src.Management.Inspect(ctx, c.cfg.Want)
		}
		if _, foreign := errors.AsType[*live.ClusterError](err); foreign {
			return err
		}
		if err == nil {
			c.snap.Live, c.managed = found, true
			return nil
		}
		c.unseenf(doctor.AreaManagement, "the management API did not answer; dead letters in transit, undescribed queues and blocked connections were not checked: %s", oneLine(err))
	} else {
		c.unseenf(doctor.AreaManagement, "without the management API (broker.management_url), dead letters in transit, undescribed queues and blocked connections cannot be checked")
	}
	found, err := live.NewAMQPInspector(c.conn).Inspect(ctx, c.cfg.Want)
	if isCode(err, amqp.AccessRefused) {
		c.unseenf(doctor.AreaArguments, "the user may not configure the objects, so only their existence was checked, not their arguments")
		found, err = c.passive(ctx)
	}
	c.snap.Live = found
	return err
}

// passive finds out what exists. Since RabbitMQ 4.3 that takes some right to an
// object; what the user may not look at is taken to be there.
func (c *collector) passive(ctx context.Context) (observed.Broker, error) {
	found := observed.Broker{Source: "AMQP, by passive declarations", Exchanges: map[string]observed.Exchange{}, Queues: map[string]observed.Queue{}}
	hidden := 0
	exists := func(kind topology.Kind, name string, look func(*amqp.Channel) error) (bool, error) {
		err := onChannel(c.conn, look)
		if isCode(err, amqp.AccessRefused) {
			hidden++
			return true, nil
		}
		if isCode(err, amqp.NotFound) {
			return false, nil
		}
		if err = cmp.Or(context.Cause(ctx), err); err != nil {
			return false, fmt.Errorf("%s %s: %w", kind, name, err)
		}
		return true, nil
	}
	for _, e := range c.cfg.Want.Exchanges {
		there, err := exists(topology.KindExchange, e.Name, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, e.AutoDelete, e.Internal, false, nil)
		})
		if err != nil {
			return found, err
		}
		if there {
			found.Exchanges[e.Name] = observed.Exchange{}
		}
	}
	for _, want := range c.cfg.Want.Queues {
		var q observed.Queue
		there, err := exists(topology.KindQueue, want.Name, func(ch *amqp.Channel) error {
			state, err := ch.QueueDeclarePassive(want.Name, true, false, false, false, nil)
			q.Messages, q.Consumers = int64(state.Messages), int64(state.Consumers)
			return err
		})
		if err != nil {
			return found, err
		}
		if there {
			found.Queues[want.Name] = q
		}
	}
	if hidden > 0 {
		c.unseenf(doctor.AreaObjects, "%d objects could not be seen; RabbitMQ %s requires some right to each", hidden, c.snap.Version)
	}
	return found, nil
}
