package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
)

// Nodes is a cluster without Docker. It consists of nodes of the installed rabbitmq-server on 127.0.0.1. Its methods
// are safe for concurrent use by callers that work on different nodes.
type Nodes struct {
	nodes []*broker.Broker
	names []string
}

// StartNodes starts a cluster without Docker. Options.TickTime and Options.Ahead do not apply, and Version must be the
// installed one. The error wraps ErrUnavailable if this machine cannot run a cluster.
func StartNodes(ctx context.Context, o Options) (_ *Nodes, err error) {
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	c := &Nodes{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, startup)
	defer cancel()
	for i := range o.Nodes {
		opts := broker.Options{Source: broker.Node, Version: o.Version, Advanced: o.Advanced}
		if i > 0 {
			opts.Beside = c.nodes[0]
		}
		b, err := broker.Start(ctx, opts)
		switch {
		case errors.Is(err, broker.ErrNoBroker):
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		case err != nil:
			return nil, fmt.Errorf("cluster: start node %d: %w", i, err)
		case b.Source() != broker.Node:
			return nil, errors.Join(fmt.Errorf("%w: %s is set", ErrUnavailable, broker.EnvURL), b.Close())
		}
		c.nodes = append(c.nodes, b)
		if err := c.enter(ctx, i); err != nil {
			return nil, err
		}
	}
	if err := waitFormed(ctx, o.Nodes, func(i int, args ...string) (string, error) { return c.Ctl(ctx, i, args...) }); err != nil {
		return nil, err
	}
	if o.Log != nil {
		o.Log(fmt.Sprintf("cluster: %d private nodes of RabbitMQ %s", o.Nodes, c.Version()))
	}
	return c, nil
}

// enter adds a new node to the cluster.
func (c *Nodes) enter(ctx context.Context, i int) error {
	name, err := c.Ctl(ctx, i, "--silent", "eval", "node().")
	if err != nil {
		return err
	}
	c.names = append(c.names, strings.Trim(strings.TrimSpace(name), "'"))
	if i == 0 {
		return nil
	}
	for _, command := range [][]string{{"stop_app"}, {"join_cluster", c.names[0]}, {"start_app"}} {
		if _, err := c.Ctl(ctx, i, command...); err != nil {
			return err
		}
	}
	return nil
}

// Nodes returns the number of nodes.
func (c *Nodes) Nodes() int { return len(c.nodes) }

// URLs returns the AMQP URLs of the nodes, with the password.
func (c *Nodes) URLs() (urls []string) {
	for _, b := range c.nodes {
		urls = append(urls, b.URL())
	}
	return urls
}

// Version returns the version that the nodes report.
func (c *Nodes) Version() string { return c.nodes[0].Version() }

// Stop stops a node gracefully. The node keeps its data and its port for Start.
func (c *Nodes) Stop(ctx context.Context, i int) error {
	return explain(i, "stop", c.nodes[i].Stop(ctx))
}

// Kill kills a node, which simulates a crash.
func (c *Nodes) Kill(ctx context.Context, i int) error {
	return explain(i, "kill", c.nodes[i].Kill(ctx))
}

// Start starts a node after Stop or Kill and returns when it accepts connections. A node of a cluster only starts
// together with a majority of the nodes.
func (c *Nodes) Start(ctx context.Context, i int) error {
	return explain(i, "start", c.nodes[i].Start(ctx))
}

// Pause freezes a node. Its connections stay open.
func (c *Nodes) Pause(ctx context.Context, i int) error {
	return explain(i, "pause", c.nodes[i].Pause(ctx))
}

// Resume undoes Pause.
func (c *Nodes) Resume(ctx context.Context, i int) error {
	return explain(i, "resume", c.nodes[i].Resume(ctx))
}

// Leave isolates a node from the other nodes by refusing their connections. Clients can still reach it.
func (c *Nodes) Leave(ctx context.Context, i int) error {
	return c.each(ctx, i, "erlang:set_cookie('%[1]s', 'of nobody'), erlang:disconnect_node('%[1]s').")
}

// Join undoes Leave.
func (c *Nodes) Join(ctx context.Context, i int) error {
	return c.each(ctx, i, "erlang:set_cookie('%[1]s', erlang:get_cookie()), net_kernel:connect_node('%[1]s').")
}

// each evaluates an expression on a node once for each other node.
func (c *Nodes) each(ctx context.Context, i int, expression string) error {
	for j, name := range c.names {
		if j == i {
			continue
		}
		if _, err := c.Ctl(ctx, i, "eval", fmt.Sprintf(expression, name)); err != nil {
			return err
		}
	}
	return nil
}

// Ctl runs rabbitmqctl on a node and returns what it printed.
func (c *Nodes) Ctl(ctx context.Context, i int, args ...string) (string, error) {
	out, err := c.nodes[i].Ctl(ctx, args...)
	return out, explain(i, "run rabbitmqctl on", err)
}

// Leader returns the node that leads a quorum queue, as reported by the node from.
func (c *Nodes) Leader(ctx context.Context, from int, queue string) (int, error) {
	return leader(func(args ...string) (string, error) { return c.Ctl(ctx, from, args...) }, queue, func(name string) int {
		return slices.Index(c.names, name)
	})
}

// Close stops the nodes. It stops the first node last, because the others use its epmd.
func (c *Nodes) Close() (err error) {
	for _, b := range slices.Backward(c.nodes) {
		err = errors.Join(err, b.Close())
	}
	return err
}
