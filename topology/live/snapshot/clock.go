package snapshot

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

const (
	methodDeath     = "x-death of expired messages"
	methodConnected = "connected_at of the management API"
	methodDate      = "Date of the management API"
)

// Sampling of the broker's clock: a message every sampleEvery for a little more
// than a second, so that one second's end lies among them.
const (
	sampleEvery = 4 * time.Millisecond
	sampleFor   = 1050 * time.Millisecond
	sampleWait  = 3 * time.Second // for what is still under way
)

// reading is what one look at the broker's clock says about how far it is ahead of this process's.
type reading struct{ low, high time.Duration }

// newReading is of a clock that showed a time, exact to resolution, between sent and received.
func newReading(sent, received, shown time.Time, resolution time.Duration) reading {
	return reading{shown.Sub(received), shown.Add(resolution).Sub(sent)}
}

// Resolutions of the ways to look.
const (
	deathResolution     = time.Second // whole seconds
	connectedResolution = time.Millisecond
	// dateResolution is more than its whole seconds: the HTTP server renews its text of the time
	// only once a second.
	dateResolution = 2 * time.Second
)

// narrow combines readings: the difference satisfies all of them. Whole seconds become milliseconds in this
// way, because among many readings some lie just before and some just after the second's end. It fails where
// the readings contradict each other, because a clock was set meanwhile.
func narrow(readings []reading) (low, high time.Duration, ok bool) {
	low, high = math.MinInt64, math.MaxInt64
	for _, r := range readings {
		low, high = max(low, r.low), min(high, r.high)
	}
	return low, high, len(readings) > 0 && low <= high
}

// heard adds readings of the clock of a node, which one way gave.
func (c *collector) heard(node, method string, readings ...reading) {
	if c.clocks[node] == nil {
		c.clocks[node] = map[string][]reading{}
	}
	c.clocks[node][method] = append(c.clocks[node][method], readings...)
}

// estimates returns the clocks of the nodes, by name.
func (c *collector) estimates() []doctor.Clock {
	var all []doctor.Clock
	for _, node := range slices.Sorted(maps.Keys(c.clocks)) {
		if clock := estimate(c.clocks[node]); clock != nil {
			clock.Node = node
			all = append(all, *clock)
		}
	}
	return all
}

// estimate returns what the best of several ways to measure gave, by name.
func estimate(ways map[string][]reading) *doctor.Clock {
	var best *doctor.Clock
	for _, method := range []string{methodDeath, methodConnected, methodDate} {
		low, high, ok := narrow(ways[method])
		if ok && (best == nil || high-low < best.High-best.Low) {
			best = &doctor.Clock{Low: low, High: high, Method: method}
		}
	}
	return best
}

// dates asks the management API of each node for its name, and hears the time in its
// answer. A node that does not answer is asked by AMQP.
func (c *collector) dates(ctx context.Context) {
	if !c.managed {
		return
	}
	ctx, stop := c.ask(ctx)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, sampleWait)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, m := range c.src.Management.Each() {
		wg.Go(func() {
			var overview struct {
				Node string `json:"node"`
			}
			x, err := m.Call(ctx, http.MethodGet, "/api/overview?columns=node", nil, &overview)
			if err != nil || x.Date.IsZero() {
				return
			}
			// The times of the exchange are this machine's; a test may have set Now off.
			off := time.Until(c.src.Now())
			mu.Lock()
			defer mu.Unlock()
			c.heard(overview.Node, methodDate, newReading(x.Sent.Add(off), x.Received.Add(off), x.Date, dateResolution))
		})
	}
	wg.Wait()
}

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
		case isCode(v.err, amqp.AccessRefused): // that is a finding about permissions, or nobody's business
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
		one, cancel := c.ask(ctx)
		defer cancel()
		if q, err := c.src.Management.Queue(one, v.queue); err == nil && q != nil && q.Node != "" {
			v.node = q.Node
		}
	}
	return v
}

// sample sends messages through a queue in which they expire at once. The broker
// notes in their x-death header when they did, in whole seconds.
func (c *collector) sample(ctx context.Context, v *visit) ([]reading, error) {
	out, err := v.ch.QueueDeclare("", false, true, true, false, amqp.Table{
		argument.MessageTTL: int32(0), argument.DeadLetterExchange: "", argument.DeadLetterRoutingKey: v.queue,
	})
	if err != nil {
		return nil, err
	}
	deliveries, err := v.ch.Consume(v.queue, "", true, true, false, false, nil)
	if err != nil {
		return nil, err
	}
	var sent []time.Time
	var readings []reading
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	stop := time.After(sampleFor)
	giveUp := time.After(sampleFor + sampleWait)
	sending := true
	for sending || len(readings) < len(sent) {
		select {
		case <-tick.C:
			if !sending {
				continue
			}
			sent = append(sent, c.src.Now())
			err := v.ch.PublishWithContext(ctx, "", out.Name, false, false, amqp.Publishing{MessageId: strconv.Itoa(len(sent) - 1)})
			if err != nil {
				return readings, err
			}
		case d, ok := <-deliveries:
			if !ok {
				return readings, errors.New("the channel ended")
			}
			i, err := strconv.Atoi(d.MessageId)
			deaths, _ := d.Headers["x-death"].([]any)
			var death amqp.Table
			if len(deaths) > 0 {
				death, _ = deaths[0].(amqp.Table)
			}
			at, dated := death["time"].(time.Time)
			if err != nil || i < 0 || i >= len(sent) || !dated {
				return readings, errors.New("a message came back changed")
			}
			readings = append(readings, newReading(sent[i], c.src.Now(), at, deathResolution))
		case <-stop:
			sending = false
		case <-giveUp:
			return readings, errors.New("messages did not come back")
		case <-ctx.Done():
			return readings, context.Cause(ctx)
		}
	}
	return readings, nil
}
