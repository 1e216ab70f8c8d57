package faults_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/cluster"
	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// clocks is a broker with a wrong clock, and clients in this process, whose clock is right. To test a consumer with a
// wrong clock, the clocks of the broker and the publishers are wrong by the opposite amount. The consumer sees no
// difference.
type clocks struct {
	t        *testing.T
	broker   *broker.Broker // nil for a cluster
	urls     []string
	strategy amqpx.Strategy

	mu      sync.Mutex
	due     map[string]time.Time // due times by the true clock
	handled map[string]int
	early   []string
	changed chan struct{}
}

const clocksLead = 1500 * time.Millisecond

func newClocks(t *testing.T, ahead time.Duration, delays topology.QueueType) *clocks {
	t.Helper()
	skipIfAsked(t)
	if path, reason := broker.FaketimeAvailable(); path == "" {
		t.Skipf("skipped: %s", reason)
	}
	b, err := broker.Start(t.Context(), broker.Options{Source: broker.Node, Clock: ahead, Advanced: advanced(), Log: func(line string) { t.Log(line) }})
	if err != nil {
		t.Skipf("skipped: no private node here: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	if b.Source() == broker.Environment {
		t.Skipf("skipped: the clock of the broker at %s is not ours to set", broker.EnvURL)
	}
	c := clocksOf(t, delays, b.URL())
	c.broker = b
	return c
}

// clocksOf returns the clocks of running brokers, with delay queues of the given type.
func clocksOf(t *testing.T, delays topology.QueueType, urls ...string) *clocks {
	t.Helper()
	// The layout has few queues, so that it starts quickly. A delay that is a power of two has one hop.
	strategy, err := dlx.NewBucket(dlx.BucketConfig{Radices: slices.Repeat([]int{2}, 13), Resolution: time.Second, QueueType: delays})
	if err != nil {
		t.Fatal(err)
	}
	return &clocks{t: t, urls: urls, strategy: strategy, due: map[string]time.Time{}, handled: map[string]int{}, changed: make(chan struct{}, 1)}
}

// consume opens a client with a consumer that records messages that arrive before they are due.
func (c *clocks) consume(queue string) *amqpx.Client {
	c.t.Helper()
	client, err := amqpx.Open(c.t.Context(), amqpx.Config{
		URLs: c.urls, Strategy: c.strategy, Lead: clocksLead,
		SendTimeout: servers.Patience, ReconnectMin: 50 * time.Millisecond, ReconnectMax: time.Second,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- client.Consume(ctx, queue, c.handle) }()
	c.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			c.t.Error(err)
		}
		if err := client.Close(context.Background()); err != nil {
			c.t.Error(err)
		}
	})
	c.eventually("a consumer of "+queue, func() bool {
		s := client.Stats().Consumers
		return len(s) == 1 && s[0].State == amqpx.ConsumerConsuming
	})
	return client
}

func (c *clocks) handle(_ context.Context, d *amqpx.Delivery) error {
	now := time.Now()
	c.mu.Lock()
	c.handled[d.ID]++
	if ahead := c.due[d.ID].Sub(now); ahead > 0 {
		c.early = append(c.early, fmt.Sprintf("%s by %v", d.ID, ahead))
	}
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
	return nil
}

// publish publishes messages as a publisher with a wrong clock would.
func (c *clocks) publish(queue string, ahead time.Duration, n int) (ids []string) {
	c.t.Helper()
	conn, err := amqp.Dial(c.urls[0])
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	for i := range n {
		now := time.Now().Truncate(time.Millisecond)
		delay := 2*time.Second + time.Duration(i)*137*time.Millisecond
		headers := amqp.Table{amqpx.HeaderDue: now.Add(ahead + delay).UnixMilli()}
		lead := time.Duration(i%3) * 700 * time.Millisecond
		if lead > 0 {
			headers["rabbitdelay-lead"] = lead.Milliseconds()
		}
		if i%2 == 0 {
			headers["rabbitdelay-absolute"] = true
		}
		r, err := c.strategy.Route(topology.Destination{Queue: queue}, delay-lead, 0)
		if err != nil {
			c.t.Fatal(err)
		}
		id := fmt.Sprintf("%s, ahead %v, lead %v, %d", queue, ahead, lead, i)
		c.expect(id, now.Add(delay))
		confirm, err := ch.PublishWithDeferredConfirm(r.Exchange, r.RoutingKey, r.Mandatory, false, amqp.Publishing{
			MessageId: id, Timestamp: now.Add(ahead), DeliveryMode: amqp.Persistent, Headers: headers,
		})
		if err != nil || !confirm.Wait() {
			c.t.Fatalf("publishing: got error %v, want nil and a confirm", err)
		}
		ids = append(ids, id)
	}
	return ids
}

// send sends a message with a client. The message is due after the duration away.
func (c *clocks) send(client *amqpx.Client, m amqpx.Message, away time.Duration) {
	c.t.Helper()
	due := time.Now().Add(away).Truncate(time.Millisecond)
	if m.DeliverAt.IsZero() {
		m.Delay = away
	} else {
		m.DeliverAt = due
	}
	c.expect(m.ID, due)
	if err := client.Send(c.t.Context(), m); err != nil {
		c.t.Fatal(err)
	}
}

func (c *clocks) expect(id string, due time.Time) {
	c.mu.Lock()
	c.due[id] = due
	c.mu.Unlock()
}

// happen waits until each message was handled, and fails the test if any was handled early.
func (c *clocks) happen(ids []string) {
	c.t.Helper()
	c.eventually(fmt.Sprintf("%d messages are handled", len(ids)), func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return !slices.ContainsFunc(ids, func(id string) bool { return c.handled[id] == 0 })
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.early) > 0 {
		c.t.Errorf("messages handled before they were due: got %q, want none", c.early)
	}
}

func (c *clocks) eventually(what string, condition func() bool) {
	c.t.Helper()
	deadline := time.After(servers.Patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			c.t.Fatalf("condition not met within %v: %s", servers.Patience, what)
		case <-c.changed:
		case <-tick.C:
		}
	}
}

// waiting returns the number of messages in delay queues.
func (c *clocks) waiting() (n int) {
	out, err := c.broker.Ctl(c.t.Context(), "--silent", "list_queues", "name", "messages")
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		name, count, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(name, "delay.bucket") {
			messages, _ := strconv.Atoi(count)
			n += messages
		}
	}
	return n
}

// No handler receives a message before it is due, no matter which clock is wrong. A consumer's clock is an hour ahead
// or behind, or a broker's clock is set two hours ahead while messages wait. In the latter case, the consumer sends the
// messages back for the rest of their delay.
func TestClocks(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	c := newClocks(t, -hour, topology.Quorum)

	ahead := c.consume("ahead")
	c.happen(c.publish("ahead", -hour, 12))
	if n := ahead.Stats().Consumers[0].Returned; n != 0 {
		t.Errorf("a consumer whose clock is an hour ahead sent back %d messages, want 0", n)
	}

	right := c.consume("right")
	const far = clocksLead + 4096*time.Second // less than the change of the clock; all these messages use the same delay queue
	var short []string
	for i := range 12 {
		m := amqpx.Message{Queue: "right"}
		if i%2 == 0 {
			m.DeliverAt = time.Now()
		}
		m.ID = fmt.Sprintf("far %d", i)
		c.send(right, m, far-time.Duration(i)*time.Millisecond)
		m.ID = fmt.Sprintf("short %d", i)
		c.send(right, m, 40*time.Second+time.Duration(i)*300*time.Millisecond)
		short = append(short, m.ID)
	}
	if err := c.broker.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.broker.SetClock(hour); err != nil {
		t.Fatal(err)
	}
	if err := c.broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.eventually("the consumer has sent back 12 messages", func() bool { return right.Stats().Consumers[0].Returned >= 12 })
	c.happen(short)
	c.eventually("12 messages are in delay queues", func() bool { return c.waiting() == 12 })
	t.Logf("sent back: %d", right.Stats().Consumers[0].Returned)
	c.mu.Lock()
	for id, n := range c.handled {
		if strings.HasPrefix(id, "far") {
			t.Errorf("message %s was handled %d times, want 0 because it is due in an hour", id, n)
		}
	}
	c.mu.Unlock()

	behind := c.consume("behind")
	c.happen(c.publish("behind", hour, 12))
	if n := behind.Stats().Consumers[0].Returned; n != 0 {
		t.Errorf("a consumer whose clock is an hour behind sent back %d messages, want 0", n)
	}
	if behind.Stats().ClockBehind.IsZero() || behind.Health() == nil {
		t.Errorf("a consumer whose clock is an hour behind: got ClockBehind = %v and Health = %v, want both set", behind.Stats().ClockBehind, behind.Health())
	}
}

// A broker's clock is set ahead while messages wait. Ten minutes while the broker is down affect quorum queues, whose
// messages have an absolute expiry time. An hour while the broker runs affects classic queues in RabbitMQ 3.10.
func TestClockSetAhead(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]struct {
		delays topology.QueueType
		ahead  time.Duration
		down   bool
	}{
		"quorum, while it is down": {topology.Quorum, 10 * time.Minute, true},
		"classic, while it runs":   {topology.Classic, time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClocks(t, time.Second, s.delays)
			consumer := c.consume("q")
			var ids []string
			for i := range 360 {
				m := amqpx.Message{ID: fmt.Sprint(i), Queue: "q"}
				ids = append(ids, m.ID)
				c.send(consumer, m, 20*time.Second+time.Duration(i)*100*time.Millisecond)
			}
			if s.down {
				if err := c.broker.Stop(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.broker.SetClock(s.ahead); err != nil {
				t.Fatal(err)
			}
			if s.down {
				if err := c.broker.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			c.happen(ids)
			t.Logf("sent back: %d", consumer.Stats().Consumers[0].Returned)
		})
	}
}

// One node of three has a clock that is ahead. The other nodes are restarted one after the other, so that this node
// becomes the leader of queues whose messages have expiry times by another node's clock.
func TestClocksOfACluster(t *testing.T) {
	t.Parallel()
	// A consumer can hold a message that is 2 s early. After two hops, the message is more than 2 s early.
	for _, ahead := range []time.Duration{2 * time.Second, 30 * time.Second} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			testClocksOfACluster(t, ahead)
		})
	}
}

func testClocksOfACluster(t *testing.T, ahead time.Duration) {
	t.Helper()
	skipIfAsked(t)
	if path, reason := broker.FaketimeAvailable(); path == "" {
		t.Skipf("skipped: %s", reason)
	}
	nodes := threeNodes(t, cluster.Options{Ahead: []time.Duration{ahead}, Advanced: advanced()})
	c := clocksOf(t, topology.Quorum, nodes.URLs()...)
	consumer := c.consume("right")
	returned := func() uint64 { return consumer.Stats().Consumers[0].Returned }
	for round := 0; round == 0 || ahead > clocksLead+2*time.Second && returned() == 0; round++ {
		if round == 5 {
			t.Fatal("after 5 rounds, no message has arrived too early, want at least one for a meaningful test")
		}
		var ids []string
		for i := range 300 {
			id := fmt.Sprintf("%d.%d", round, i)
			c.send(consumer, amqpx.Message{ID: id, Queue: "right"}, 20*time.Second+time.Duration(i)*150*time.Millisecond)
			ids = append(ids, id)
		}
		for i := 1; i < nodes.Nodes(); i++ {
			for _, step := range []func(context.Context, int) error{nodes.Stop, nodes.Start, nodes.WaitReady} {
				if err := step(t.Context(), i); err != nil {
					t.Fatal(err)
				}
			}
		}
		c.happen(ids)
	}
	t.Logf("sent back: %d", returned())
}
