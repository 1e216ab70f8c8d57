package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// objects reads the objects, by the best way there is.
func (c *collector) objects(ctx context.Context) error {
	if c.src.Management != nil {
		c.inspected = time.Now()
		found, err := c.inspect(ctx)
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
	if refused(err) {
		c.unseenf(doctor.AreaArguments, "the user may not configure the objects, so only their existence was checked, not their arguments")
		found, err = c.passive(ctx)
	}
	c.snap.Live = found
	return err
}

// inspect reads the management API, if it is this broker's.
func (c *collector) inspect(ctx context.Context) (observed.Broker, error) {
	if err := c.src.Management.SameCluster(ctx, c.conn); err != nil {
		return observed.Broker{}, err
	}
	return c.src.Management.Inspect(ctx, c.cfg.Want)
}

// passive finds out what exists. Since RabbitMQ 4.3 that takes some right to an
// object; what the user may not look at is taken to be there.
func (c *collector) passive(ctx context.Context) (observed.Broker, error) {
	found := observed.Broker{Source: "AMQP, by passive declarations", Exchanges: map[string]observed.Exchange{}, Queues: map[string]observed.Queue{}}
	var hidden []string
	exists := func(name string, look func(*amqp.Channel) error) (bool, error) {
		err := c.try(look)
		if refused(err) {
			hidden = append(hidden, name)
			return true, nil
		}
		if isCode(err, amqp.NotFound) {
			return false, nil
		}
		return err == nil, cmp.Or(context.Cause(ctx), err)
	}
	for _, e := range c.cfg.Want.Exchanges {
		there, err := exists(e.Name, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, e.AutoDelete, e.Internal, false, nil)
		})
		if err != nil {
			return found, fmt.Errorf("exchange %s: %w", e.Name, err)
		}
		if there {
			found.Exchanges[e.Name] = observed.Exchange{}
		}
	}
	for _, want := range c.cfg.Want.Queues {
		var q observed.Queue
		there, err := exists(want.Name, func(ch *amqp.Channel) error {
			state, err := ch.QueueDeclarePassive(want.Name, true, false, false, false, nil)
			q.Messages, q.Consumers = int64(state.Messages), int64(state.Consumers)
			return err
		})
		if err != nil {
			return found, fmt.Errorf("queue %s: %w", want.Name, err)
		}
		if there {
			found.Queues[want.Name] = q
		}
	}
	if len(hidden) > 0 {
		c.unseenf(doctor.AreaObjects, "%d objects could not be seen; RabbitMQ %s requires some right to each", len(hidden), c.snap.Version)
	}
	return found, nil
}
