package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// client is a client with its own object names. The runner opens it for its group.
type client struct {
	queueType topology.QueueType
	strategy  strategyFor
	lead      time.Duration
	observe   func() (hook amqpx.Hook, end func(context.Context) error, err error) // optional
	hops      *atomic.Int64                                                        // counts the hops of all sent messages; optional

	*amqpx.Client

	queue  string // name of its destination
	routes amqpx.Strategy
	conn   *amqp.Connection
	all    topology.Topology // everything that was declared
	end    func(context.Context) error
}

// strategyFor creates a strategy with the given prefix for its objects.
type strategyFor func(prefix string) (amqpx.Strategy, error)

func bucket(c dlx.BucketConfig) *client {
	return &client{queueType: c.QueueType, strategy: func(prefix string) (amqpx.Strategy, error) {
		c.Prefix = prefix
		return dlx.NewBucket(c)
	}}
}

// clock returns a client with the default layout.
func clock(t topology.QueueType) *client { return bucket(dlx.BucketConfig{QueueType: t}) }

// exact returns a client with the settings of delay.exact: a lead, and a resolution that suits it.
func exact(t topology.QueueType) *client {
	c := bucket(tenths(dlx.LayoutClock, t))
	c.lead = 400 * time.Millisecond
	return c
}

// atTenths is the suffix of the names of cases with a resolution of 100 ms.
const atTenths = ", 100 ms"

// exactly is the suffix of the names of cases that also have a lead.
const exactly = ", exact"

// tenths returns a layout with a resolution of 100 ms instead of its default, so that compared layouts round in the
// same way.
func tenths(layout string, t topology.QueueType) dlx.BucketConfig {
	return dlx.BucketConfig{Layout: layout, QueueType: t, Resolution: 100 * time.Millisecond}
}

// pluggable returns a client with the plugin strategy. It uses classic queues, because the plugin's messages are on one
// node and are not replicated, like those of classic queues.
func pluggable() *client {
	return &client{queueType: topology.Classic, strategy: func(prefix string) (amqpx.Strategy, error) {
		return plugin.New(plugin.Config{Prefix: prefix})
	}}
}

// natively returns a client with the native strategy and the given number of holding queues.
func natively(queues int) *client {
	return &client{queueType: topology.Quorum, strategy: func(prefix string) (amqpx.Strategy, error) {
		return dlx.NewNative(dlx.NativeConfig{Prefix: prefix, Queues: queues})
	}}
}

// countingHops makes a client count the hops of the messages that it sends.
func countingHops(c *client) *client {
	c.hops = new(atomic.Int64)
	return c
}

// open connects c, and declares and binds its destination, so that this does not happen in the first repeat.
func (r *run) open(ctx context.Context, url string, c *client) error {
	r.opened++
	prefix := fmt.Sprintf("%s-%d", r.tag, r.opened)
	s, err := c.strategy(prefix)
	if err != nil {
		return err
	}
	c.queue, c.routes = prefix+".orders", s
	c.all = s.Topology()
	c.all.Exchanges = append(slices.Clone(c.all.Exchanges), topology.Exchange{Name: live.DeclaredExchange(prefix, s.Topology())})
	c.all.Queues = append(slices.Clone(c.all.Queues), topology.Destination{Queue: c.queue}.Queues(c.queueType)...)
	cfg := amqpx.Config{URL: url, Strategy: s, QueueType: c.queueType, Lead: c.lead}
	if c.observe != nil {
		hook, end, err := c.observe()
		if err != nil {
			return err
		}
		cfg.Hooks, c.end = []amqpx.Hook{hook}, end
	}
	if c.hops != nil {
		cfg.Hooks = append(cfg.Hooks, amqpx.Hook{SendEnd: func(_ context.Context, e amqpx.SendEnd) { c.hops.Add(int64(e.Hops)) }})
	}
	if c.Client, err = amqpx.Open(ctx, cfg); err != nil {
		return err
	}
	if c.conn, err = dialRaw(url); err != nil {
		return errors.Join(err, c.Client.Close(ctx))
	}
	if err = c.Send(ctx, amqpx.Message{Queue: c.queue}); err == nil {
		err = c.purge()
	}
	if err != nil {
		return joined(err, c.close(ctx))
	}
	return nil
}

// purge purges all queues of the client.
func (c *client) purge() error {
	ch, err := c.conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	for _, q := range c.all.Queues {
		if _, err := ch.QueuePurge(q.Name, false); err != nil {
			return fmt.Errorf("purge %s: %w", q.Name, err)
		}
	}
	return nil
}

// close closes the client and deletes all its objects from the broker.
func (c *client) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	err := errors.Join(c.Client.Close(ctx), live.Broker{Conn: c.conn}.DeleteAll(ctx, c.all))
	if c.end != nil {
		err = errors.Join(err, c.end(ctx))
	}
	_ = c.conn.CloseDeadline(time.Now().Add(2 * time.Second)) // the work is done
	return err
}

// plain returns n additional queues without any arguments except their type.
func (c *client) plain(n int) ([]string, error) {
	ch, err := c.conn.Channel()
	if err != nil {
		return nil, err
	}
	defer ch.Close()
	names := make([]string, n)
	for i := range names {
		q := topology.Queue{Name: fmt.Sprintf("%s.plain-%d", c.queue, i), Type: c.queueType}
		names[i] = q.Name
		if slices.ContainsFunc(c.all.Queues, func(o topology.Queue) bool { return o.Name == q.Name }) {
			continue
		}
		if _, err := ch.QueueDeclare(q.Name, true, false, false, false, amqp.Table{"x-queue-type": string(q.Type)}); err != nil {
			return nil, err
		}
		c.all.Queues = append(c.all.Queues, q)
	}
	return names, nil
}

// dialRaw connects with the same settings as amqpx.
func dialRaw(url string) (*amqp.Connection, error) {
	return amqp.DialConfig(url, amqp.Config{Heartbeat: 10 * time.Second, Locale: "en_US"})
}
