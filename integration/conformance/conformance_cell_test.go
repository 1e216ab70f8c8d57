package conformance_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// heartbeat is long enough that connections survive if the machine stalls. A lost connection would cause duplicates,
// which are allowed but would fail the cases.
const heartbeat = time.Minute

// capability is a feature that not every strategy has.
type capability uint

const (
	anyDelay  capability = 1 << iota // accepts delays that were not declared
	savesHops                        // uses a tolerance to pass through fewer queues
	twoHops                          // has delays that pass through several queues
	parks                            // moves a message without a destination to a separate queue
)

var capabilityReason = map[capability]string{
	anyDelay:  "the strategy has declared delays only",
	savesHops: "the strategy has no hops to save",
	twoHops:   "the strategy has at most one hop",
	parks:     "another system's delivery exchange has no alternate exchange",
}

// conformanceCase is one promise, as a test that every cell must pass.
type conformanceCase struct {
	name  string
	needs capability
	run   func(t *testing.T, c *cell)
}

// declaredDelays are the delays of the ttl strategy. Cases for every strategy use only these.
var declaredDelays = []time.Duration{
	300 * time.Millisecond, time.Second, 1500 * time.Millisecond, 2 * time.Second, 3 * time.Second,
	6 * time.Second, 12 * time.Second, 45 * time.Second, time.Hour,
}

// cell is one strategy with one queue type on one broker. Its queues and exchanges have their own prefix.
type cell struct {
	place
	board     *scoreboard
	url       string
	dial      func(ctx context.Context, network, addr string) (net.Conn, error) // nil for TCP
	prefix    string
	queueType topology.QueueType
	can       capability
	pluginToo bool // whether the broker has the plugin, whatever the cell's strategy
	client    *amqpx.Client
	conn      *amqp.Connection // a connection of a program that does not use rabbitdelay
	clean     bool             // the broker outlives the suite
	foreign   bool             // the layout belongs to another system, which declares its queues itself
	log       *zap.Logger

	mu        sync.Mutex
	queues    map[string]bool
	exchanges map[string]bool
}

func openCell(t *testing.T, board *scoreboard, on target, p place, pluginToo bool) *cell {
	t.Helper()
	c := &cell{
		place: p, board: board, url: on.url, dial: on.dial, pluginToo: pluginToo,
		prefix:    fmt.Sprintf("cf%s-%s-%s", strings.ToLower(rand.Text()[:5]), strings.ReplaceAll(p.strategy, " ", "-"), p.queueType),
		queueType: topology.QueueType(p.queueType),
		clean:     on.shared,
		queues:    map[string]bool{}, exchanges: map[string]bool{},
	}
	var s amqpx.Strategy
	var err error
	switch p.strategy {
	case "ttl":
		s, err = dlx.NewTTL(dlx.TTLConfig{Prefix: c.prefix, QueueType: c.queueType, Delays: declaredDelays})
	case "bucket clock":
		s, err = dlx.NewBucket(dlx.BucketConfig{Prefix: c.prefix, QueueType: c.queueType})
		c.can = anyDelay | savesHops | twoHops
	case "bucket hex":
		s, err = dlx.NewBucket(dlx.BucketConfig{Prefix: c.prefix, QueueType: c.queueType, Layout: dlx.LayoutHex})
		c.can = anyDelay | savesHops | twoHops
	case "plugin":
		s, err = plugin.New(plugin.Config{Prefix: c.prefix})
		c.can = anyDelay
	case "native":
		s, err = dlx.NewNative(dlx.NativeConfig{Prefix: c.prefix, Queues: 2})
		c.can = anyDelay
	default:
		s, err = dlx.NewLevels(dlx.LevelsConfig{Prefix: c.prefix, QueueType: c.queueType, Layout: p.strategy})
		c.can = anyDelay | savesHops | twoHops
		c.foreign = true
	}
	if !c.foreign {
		c.can |= parks
	}
	if err != nil {
		t.Fatal(err)
	}
	plain := amqp.Config{Heartbeat: heartbeat}
	if c.dial != nil {
		plain.Dial = func(network, addr string) (net.Conn, error) { return c.dial(t.Context(), network, addr) }
	}
	if c.conn, err = amqp.DialConfig(c.url, plain); err != nil {
		t.Fatal(err)
	}
	core, warnings := observer.New(zap.WarnLevel)
	c.log = zap.New(core)
	t.Cleanup(func() {
		if t.Failed() {
			c.explain(t, warnings)
		}
		c.removeAll(t)
		_ = c.conn.Close()
	})
	c.client = c.open(t, s)
	return c
}

// open opens a client with the cell's prefix and closes it when the test ends.
func (c *cell) open(t *testing.T, s amqpx.Strategy) *amqpx.Client {
	t.Helper()
	top := s.Topology()
	for _, q := range top.Queues {
		if _, theirs := foreign.System(q.Name); !theirs {
			c.ownQueue(q.Name)
		}
	}
	for _, x := range top.Exchanges {
		if _, theirs := foreign.System(x.Name); !theirs {
			c.ownExchange(x.Name)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*suite.Patience)
	defer cancel()
	client, err := amqpx.Open(ctx, amqpx.Config{
		URL: c.url, Dial: c.dial, Strategy: s, QueueType: c.queueType, Logger: c.log,
		Heartbeat: heartbeat, SendTimeout: suite.Patience, DialTimeout: suite.Patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(context.Background()); err != nil {
			t.Errorf("closing the client: %v", err)
		}
	})
	return client
}

// cannot returns the reason why the cell lacks a needed capability, or "" if it has all of them.
func (c *cell) cannot(needs capability) string {
	for bit, reason := range capabilityReason {
		if needs&^c.can&bit != 0 {
			return reason
		}
	}
	return ""
}

// queue returns a destination name that belongs to the cell; see destination.
func (c *cell) queue(name string) string { return c.destination(c.prefix + "-" + name) }

// destination returns a queue that the first Send or Consume declares, or that already exists if
// another system's program declares it.
func (c *cell) destination(name string) string {
	c.ownQueue(name)
	if !c.foreign {
		return name
	}
	if ch, err := c.conn.Channel(); err == nil {
		_, _ = ch.QueueDeclare(name, true, false, false, false, topology.Queue{Type: c.queueType}.Table()) // without the queue, sending to it fails
		_ = ch.Close()
	}
	return name
}

func (c *cell) ownQueue(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queues[name], c.queues[name+".dead"] = true, true
}

func (c *cell) ownExchange(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exchanges[name] = true
}

// explain logs the warnings of a failed cell's clients and its parked messages.
func (c *cell) explain(t *testing.T, warnings *observer.ObservedLogs) {
	entries := warnings.All()
	for _, e := range entries[:min(len(entries), 100)] {
		if e.Message == "handler panicked" {
			continue // some handlers panic on purpose, and the message is very long
		}
		t.Logf("client: %s %s %s %v", e.Time.Format(time.StampMilli), e.LoggerName, e.Message, e.ContextMap())
	}
	ch, err := c.conn.Channel()
	if err != nil {
		t.Logf("opening a channel to read parked messages: %v", err)
		return
	}
	defer func() { _ = ch.Close() }()
	for range 20 {
		d, ok, err := ch.Get(topology.ParkedQueue(c.prefix), true)
		if err != nil || !ok {
			return
		}
		t.Logf("parked: %v", arrival{d, time.Time{}})
	}
}

// removeAll deletes the cell's queues and exchanges if the broker outlives the suite.
func (c *cell) removeAll(t *testing.T) {
	if !c.clean {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ch, err := c.conn.Channel()
	if err != nil {
		t.Errorf("opening a channel to clean up: %v", err)
		return
	}
	defer func() { _ = ch.Close() }()
	for q := range c.queues {
		if _, err := ch.QueueDelete(q, false, false, false); err != nil {
			t.Errorf("deleting queue %s: %v", q, err)
			return
		}
	}
	for x := range c.exchanges {
		if err := ch.ExchangeDelete(x, false, false); err != nil {
			t.Errorf("deleting exchange %s: %v", x, err)
			return
		}
	}
}

// send fails the test unless all messages were confirmed.
func (c *cell) send(t *testing.T, msgs ...amqpx.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), suite.Patience)
	defer cancel()
	for _, m := range msgs {
		if err := c.client.Send(ctx, m); err != nil {
			t.Fatalf("Send of %+v: %v", m, err)
		}
	}
}

// channel opens a plain channel that is closed when the test ends.
func (c *cell) channel(t *testing.T) *amqp.Channel {
	t.Helper()
	ch, err := c.conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ch.Close() })
	return ch
}

// declare declares a queue without rabbitdelay.
func (c *cell) declare(t *testing.T, queue string) string {
	t.Helper()
	c.ownQueue(queue)
	if _, err := c.channel(t).QueueDeclare(queue, true, false, false, false, topology.Queue{Type: c.queueType}.Table()); err != nil {
		t.Fatal(err)
	}
	return queue
}

// arrival is a received message and the time at which this process received it.
type arrival struct {
	amqp.Delivery
	at time.Time
}

func (a arrival) String() string {
	return fmt.Sprintf("%s %.40q from exchange %q, routing key %q, headers %v", a.MessageId, a.Body, a.Exchange, a.RoutingKey, a.Headers)
}

// plain consumes an existing queue as any AMQP program would.
func (c *cell) plain(t *testing.T, queue string) <-chan arrival {
	t.Helper()
	deliveries, err := c.channel(t).Consume(queue, "", true, false, false, false, nil)
	if err != nil {
		t.Fatalf("consuming from %s: %v", queue, err)
	}
	out := make(chan arrival, 10_000)
	go func() {
		defer close(out)
		for d := range deliveries {
			out <- arrival{d, time.Now()}
		}
	}()
	return out
}

// handled is a delivery and the time at which the handler received it.
type handled struct {
	*amqpx.Delivery
	at time.Time
}

// consume runs a handler until the test ends, and passes each delivery on before the handler runs.
func (c *cell) consume(t *testing.T, queue string, h amqpx.Handler, opts ...amqpx.ConsumeOption) <-chan handled {
	t.Helper()
	seen := make(chan handled, 10_000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- c.client.Consume(ctx, queue, func(ctx context.Context, d *amqpx.Delivery) error {
			now := time.Now()
			if now.Before(d.DueAt) {
				t.Errorf("message %s was handled %v before it was due", d.ID, d.DueAt.Sub(now))
			}
			seen <- handled{d, now}
			return h(ctx, d)
		}, opts...)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("consuming from %s: %v", queue, err)
		}
	})
	return seen
}

func acknowledge(context.Context, *amqpx.Delivery) error { return nil }

// take receives n values, and fails the test if they do not arrive in time.
func take[T any](t *testing.T, from <-chan T, n int, what string) []T {
	t.Helper()
	deadline := time.NewTimer(suite.Patience)
	defer deadline.Stop()
	var got []T
	for len(got) < n {
		select {
		case v, ok := <-from:
			if !ok {
				t.Fatalf("%s: the deliveries ended after %d of %d messages", what, len(got), n)
			}
			got = append(got, v)
		case <-deadline.C:
			t.Fatalf("%s: received %d of %d messages within %v", what, len(got), n, suite.Patience)
		}
	}
	return got
}

// nothing checks that no message was routed to the queue. It publishes a message itself, before which every such
// message would arrive.
func (c *cell) nothing(t *testing.T, queue string, from <-chan arrival) {
	t.Helper()
	fence := rand.Text()
	if err := c.channel(t).PublishWithContext(t.Context(), "", queue, true, false, amqp.Publishing{MessageId: fence}); err != nil {
		t.Fatal(err)
	}
	for {
		a := take(t, from, 1, "the fence in "+queue)[0]
		if a.MessageId == fence {
			return
		}
		t.Errorf("queue %s received %v, want no message", queue, a)
	}
}

// skew is how far a broker's clock may deviate from this process's during a delay of several seconds, because Erlang
// applies corrections of the system clock gradually. Deliveries to handlers are checked without this tolerance.
const skew = 5 * time.Millisecond

// notEarly fails the test if a plain delivery arrived before the time in its due header.
func notEarly(t *testing.T, a arrival) {
	t.Helper()
	due, ok := a.Headers[amqpx.HeaderDue].(int64)
	if !ok {
		t.Errorf("%s is %T, want int64: %v", amqpx.HeaderDue, a.Headers[amqpx.HeaderDue], a)
		return
	}
	if early := time.UnixMilli(due).Sub(a.at); early > skew {
		t.Errorf("message arrived %v before it was due, want at most %v: %v", early, skew, a)
	}
}
