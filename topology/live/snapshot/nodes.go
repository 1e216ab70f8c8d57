package snapshot

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// visit is a connection to a node, with a queue of its own there: the broker keeps an
// exclusive queue on the node of its connection.
type visit struct {
	address string
	node    string // its name, or the address while that is not known
	conn    *amqp.Connection
	hangUp  func()
	ch      *amqp.Channel
	queue   string
	err     error
}

// measure compares the clock of each node that can be reached with this process's. A
// node that does not answer is said, and keeps no other from being looked at.
func (c *collector) measure(ctx context.Context) error {
	c.dates(ctx)
	if c.src.SkipClock || c.snap.Blocked != "" {
		return nil
	}
	limit, cancel := context.WithTimeout(ctx, sampleFor+2*sampleWait)
	defer cancel()
	visits := c.visits(limit)
	readings := make([][]reading, len(visits))
	reasons := make([]string, len(visits))
	var wg sync.WaitGroup
	for i, v := range visits {
		wg.Go(func() {
			defer v.hangUp()
			// What came before the end counts, and a user who may not simply has none.
			reasons[i] = unlessBlocked(limit, v.conn, func(ctx context.Context) { readings[i], _ = c.sample(ctx, v) })
		})
	}
	wg.Wait()
	for i, v := range visits {
		c.heard(v.node, methodDeath, readings[i]...)
		if c.snap.Blocked == "" {
			c.snap.Blocked = reasons[i]
		}
	}
	c.dates(ctx) // a second apart from the first, which halves what a whole second leaves open
	return nil
}

// visits connects to all nodes, to each once.
func (c *collector) visits(ctx context.Context) []*visit {
	ways := c.src.Nodes
	if len(ways) == 0 {
		ways = []Node{{Dial: c.src.Dial}}
	}
	tried := make([]*visit, len(ways))
	var wg sync.WaitGroup
	for i, n := range ways {
		wg.Go(func() { tried[i] = c.visit(ctx, n) })
	}
	wg.Wait()
	var met []*visit
	meet := func(v *visit) {
		known := slices.ContainsFunc(met, func(m *visit) bool { return m.node == v.node })
		switch {
		case v.err == nil && !known:
			met = append(met, v)
		case v.err == nil:
			v.hangUp()
		case refused(v.err): // that is a finding about permissions, or nobody's business
		case ctx.Err() == nil:
			c.unseenf(doctor.AreaClock, "the clock of %s was not looked at: %s", cmp.Or(v.address, "the broker"), oneLine(v.err))
		}
	}
	for _, v := range tried {
		meet(v)
	}
	// Behind fewer addresses than nodes, one may lead to several.
	running := c.running()
	for i := 0; len(ways) < len(running) && i < 2*len(running) && len(met) > 0 && len(c.unmet(met)) > 0 && ctx.Err() == nil; i++ {
		if v := c.visit(ctx, ways[i%len(ways)]); v.err == nil {
			meet(v)
		}
	}
	if unmet := c.unmet(met); len(met) > 0 && len(unmet) > 0 {
		c.unseenf(doctor.AreaClock, "no address of the settings led to %s, so the clock there was not looked at; list every node (broker.urls)", strings.Join(unmet, ", "))
	}
	return met
}

// running returns the names of the nodes that are up, as far as they are known.
func (c *collector) running() []string {
	var names []string
	for _, n := range c.snap.Nodes {
		if c.snap.NodesComplete && n.Running {
			names = append(names, n.Name)
		}
	}
	return names
}

// unmet returns the nodes that are up and were not met, by AMQP or the management API.
func (c *collector) unmet(met []*visit) []string {
	return slices.DeleteFunc(c.running(), func(name string) bool {
		return len(c.clocks[name]) > 0 || slices.ContainsFunc(met, func(v *visit) bool { return v.node == name })
	})
}

func (c *collector) visit(ctx context.Context, n Node) *visit {
	v := &visit{address: n.Address, node: n.Address}
	if v.conn, v.hangUp, v.err = dial(ctx, n.Dial); v.err != nil {
		return v
	}
	if v.ch, v.err = v.conn.Channel(); v.err == nil {
		var q amqp.Queue
		q, v.err = v.ch.QueueDeclare("", false, true, true, false, nil)
		v.queue = q.Name
	}
	if v.err != nil {
		v.hangUp()
		return v
	}
	if c.managed {
		if q, err := c.src.Management.Queue(ctx, v.queue); err == nil && q != nil && q.Node != "" {
			v.node = q.Node
		}
	}
	return v
}
