package snapshot

import (
	"cmp"
	"context"
	"encoding/json"
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

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
)

const (
	methodDeath     = "x-death of expired messages"
	methodConnected = "connected_at of the management API"
	methodDate      = "Date of the management API"
)

// The broker's clock is sampled by sending a message every sampleEvery for slightly more than a second, so that the
// samples include the transition from one second to the next.
const (
	sampleEvery = 4 * time.Millisecond
	sampleFor   = 1050 * time.Millisecond
	sampleWait  = 3 * time.Second // for messages that have not returned yet
)

// reading is one reading of the broker's clock: the broker's clock is ahead of this process's clock by at least low and
// at most high.
type reading struct{ low, high time.Duration }

// newReading returns the reading for a clock that showed the time shown, with the given resolution, at some point
// between sent and received.
func newReading(sent, received, shown time.Time, resolution time.Duration) reading {
	return reading{shown.Sub(received), shown.Add(resolution).Sub(sent)}
}

// The resolution of a clock's reading depends on the method.
const (
	deathResolution     = time.Second // whole seconds
	connectedResolution = time.Millisecond
	// dateResolution is more than one second, because the HTTP server updates its formatted time only once a second.
	dateResolution = 2 * time.Second
)

// narrow returns the range that satisfies all readings. Many readings together have a resolution of milliseconds
// although each has only whole seconds, because some are just before and some just after the transition to the next
// second. The result ok is false if the readings contradict each other because a clock was set in the meantime.
func narrow(readings []reading) (low, high time.Duration, ok bool) {
	low, high = math.MinInt64, math.MaxInt64
	for _, r := range readings {
		low, high = max(low, r.low), min(high, r.high)
	}
	return low, high, len(readings) > 0 && low <= high
}

// heard adds readings of a node's clock from one method.
func (c *collector) heard(node, method string, readings ...reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.clocks[node] == nil {
		c.clocks[node] = map[string][]reading{}
	}
	c.clocks[node][method] = append(c.clocks[node][method], readings...)
}

// estimates returns the clocks of the nodes, sorted by name. If it is unknown which node's management API answered, its
// readings are used only if there are no others, because the same node may already be listed by its name.
func (c *collector) estimates() []doctor.Clock {
	var all []doctor.Clock
	for _, node := range slices.Sorted(maps.Keys(c.clocks)) {
		if _, visited := c.clocks[node][methodDeath]; node == "" && !visited && len(c.clocks) > 1 {
			continue
		}
		if clock := estimate(c.clocks[node]); clock != nil {
			clock.Node = node
			all = append(all, *clock)
		}
	}
	return all
}

// estimate returns the range of the most precise method, or nil if there is none.
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

// dates asks the management APIs of nodes for the node's name, and uses the time in the response. If a node's API does
// not answer, its clock can still be measured over AMQP.
func (c *collector) dates(ctx context.Context, nodes []*live.Management) {
	var wg sync.WaitGroup
	for _, m := range nodes {
		wg.Go(func() {
			var answer json.RawMessage
			x, err := m.Call(ctx, http.MethodGet, "/api/overview?columns=node", nil, &answer)
			if err != nil {
				return
			}
			var overview struct {
				Node string `json:"node"`
			}
			_ = json.Unmarshal(answer, &overview) // it is an empty list for a user without the monitoring tag
			c.date(overview.Node, x)
		})
	}
	wg.Wait()
}

// date adds the reading of a node's clock from an answer of its management API.
func (c *collector) date(node string, x live.RoundTrip) {
	if x.Date.IsZero() {
		return
	}
	// The request's times are from this machine's clock, while Now may be offset by a test.
	off := time.Until(c.src.Now())
	c.heard(node, methodDate, newReading(x.Sent.Add(off), x.Received.Add(off), x.Date, dateResolution))
}

// visit is a connection to a node, with an exclusive queue on that node. The broker keeps an exclusive queue on the
// node of its connection.
type visit struct {
	address string
	node    string // the node's name, or the address until the name is known
	conn    *amqp.Connection
	hangUp  func()
	ch      *amqp.Channel
	queue   string
	err     error
}

// measure compares the clock of each reachable node with this process's clock. If a node does not answer, measure
// reports it in Unchecked and continues with the other nodes.
func (c *collector) measure(ctx context.Context) error {
	if c.src.SkipClock {
		return nil
	}
	if c.snap.Blocked != "" {
		// If no clock is known at all, package doctor reports that.
		if unmet := c.unmet(nil); len(unmet) > 0 && len(unmet) < len(c.running()) {
			c.uncheckedf(doctor.AreaClock, "the clock of %s was not measured, because that sends messages, and the broker blocks connections that publish (%s)",
				strings.Join(unmet, ", "), c.snap.Blocked)
		}
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
			// Keep the readings that were taken before an error. A user without the permissions has none.
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
	if c.managed && c.onlyDated() {
		one, cancel := c.ask(ctx)
		defer cancel()
		c.dates(one, c.src.Management.Each()) // a second after the first time, which halves the uncertainty of a time in whole seconds
	}
	return nil
}

// onlyDated reports whether a node's clock is known only from dates of the management API.
func (c *collector) onlyDated() bool {
	for node, ways := range c.clocks {
		if len(ways) == 1 && len(ways[methodDate]) > 0 && (node != "" || len(c.clocks) == 1) {
			return true
		}
	}
	return false
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
		case isCode(v.err, amqp.AccessRefused): // package doctor reports missing permissions if they matter
		case ctx.Err() == nil:
			c.uncheckedf(doctor.AreaClock, "the clock of %s was not measured: %s", cmp.Or(v.address, "the broker"), oneLine(v.err))
		}
	}
	for _, v := range tried {
		meet(v)
	}
	// If there are fewer addresses than nodes, one address may lead to several nodes.
	running := c.running()
	for i := 0; len(ways) < len(running) && i < 2*len(running) && len(met) > 0 && len(c.unmet(met)) > 0 && ctx.Err() == nil; i++ {
		if v := c.visit(ctx, ways[i%len(ways)]); v.err == nil {
			meet(v)
		}
	}
	if unmet := c.unmet(met); len(met) > 0 && len(unmet) > 0 {
		c.uncheckedf(doctor.AreaClock, "no address in the settings leads to %s, so the clock there was not measured; list every node in broker.urls", strings.Join(unmet, ", "))
	}
	return met
}

// running returns the names of the running nodes, or nil if the list of nodes is incomplete.
func (c *collector) running() []string {
	var names []string
	for _, n := range c.snap.Nodes {
		if c.snap.NodesComplete && n.Running {
			names = append(names, n.Name)
		}
	}
	return names
}

// unmet returns the running nodes that were reached neither over AMQP nor through the management API.
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
	if v.ch, v.err = channels.Open(v.conn); v.err == nil {
		var q amqp.Queue
		q, v.err = v.ch.QueueDeclare("", false, true, true, false, nil)
		v.queue = q.Name
	}
	if v.err != nil {
		v.hangUp()
		return v
	}
	if c.snap.NodesComplete && len(c.snap.Nodes) == 1 {
		v.node = c.snap.Nodes[0].Name
	} else if c.managed {
		one, cancel := c.ask(ctx)
		defer cancel()
		if q, err := c.src.Management.Queue(one, v.queue); err == nil && q != nil && q.Node != "" {
			v.node = q.Node
		}
	}
	return v
}

// sample sends messages through a queue in which they expire immediately. The broker records the time in their
// x-death header, in whole seconds.
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
				return readings, errors.New("the channel was closed")
			}
			i, err := strconv.Atoi(d.MessageId)
			deaths, _ := d.Headers["x-death"].([]any)
			var death amqp.Table
			if len(deaths) > 0 {
				death, _ = deaths[0].(amqp.Table)
			}
			at, dated := death["time"].(time.Time)
			if err != nil || i < 0 || i >= len(sent) || !dated {
				return readings, errors.New("a message was changed by the broker")
			}
			readings = append(readings, newReading(sent[i], c.src.Now(), at, deathResolution))
		case <-stop:
			sending = false
		case <-giveUp:
			return readings, errors.New("messages did not return")
		case <-ctx.Done():
			return readings, context.Cause(ctx)
		}
	}
	return readings, nil
}
