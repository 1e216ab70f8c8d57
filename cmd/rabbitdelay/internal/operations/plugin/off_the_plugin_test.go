package plugin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/bridge"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// arrivals records the published and the received messages by id.
type arrivals struct {
	mu   sync.Mutex
	due  map[string]time.Time
	came map[string][]string // the queues in which each message arrived, by id
}

// reads consumes from a queue while the test runs.
func (a *arrivals) reads(t *testing.T, v *suite.Vhost, queue string) {
	t.Helper()
	in, err := v.Channel(t).Consume(queue, "", true, false, false, false, nil)
	suite.MustSucceed(t, err)
	go func() {
		for d := range in {
			now := time.Now()
			a.mu.Lock()
			if early := a.due[d.MessageId].Sub(now); early > 0 {
				t.Errorf("message %s arrived %v before it was due, in queue %s on RabbitMQ %s", d.MessageId, early, queue, v.Broker.Line())
			}
			a.came[d.MessageId] = append(a.came[d.MessageId], v.Broker.Line())
			a.mu.Unlock()
		}
	}()
}

// all reports whether all messages have arrived.
func (a *arrivals) all() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.came) == len(a.due)
}

// complete waits until no more messages can arrive, and fails the test for missing messages and duplicates.
func (a *arrivals) complete(t *testing.T) {
	t.Helper()
	a.mu.Lock()
	last := time.Now()
	for _, due := range a.due {
		if due.After(last) {
			last = due
		}
	}
	a.mu.Unlock()
	<-time.After(time.Until(last))
	for deadline := time.Now().Add(time.Minute); !a.all() && time.Now().Before(deadline); <-time.After(100 * time.Millisecond) {
	}
	<-time.After(3 * time.Second) // for duplicates that must not arrive
	a.mu.Lock()
	defer a.mu.Unlock()
	by := map[string]int{}
	for id, due := range a.due {
		where := a.came[id]
		by[strings.Join(where, " and ")]++
		if len(where) != 1 {
			t.Errorf("message %s, due at %v, arrived %d times, in the queues %v, want once", id, due, len(where), where)
		}
	}
	t.Logf("%d messages, by the queues in which they arrived: %v", len(a.due), by)
}

// producer publishes messages one after the other without a pause.
type producer struct {
	name string
	a    *arrivals
	mu   sync.Mutex
	send func(id string, delay time.Duration) error
	n    int
}

// sends replaces the function with which the producer publishes. When sends returns, all earlier messages have been
// confirmed.
func (p *producer) sends(send func(id string, delay time.Duration) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.send = send
}

func (p *producer) run(ctx context.Context, t *testing.T) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		p.mu.Lock()
		id, delay := fmt.Sprint(p.name, p.n), time.Duration(3000+rand.IntN(50_000))*time.Millisecond
		p.a.mu.Lock()
		p.a.due[id] = time.Now().Truncate(time.Millisecond).Add(delay) // the plugin counts milliseconds
		p.a.mu.Unlock()
		if err := p.send(id, delay); err != nil {
			t.Errorf("sending message %s: %v", id, err)
		}
		p.n++
		p.mu.Unlock()
		<-tick.C
	}
}

// published waits until the producer has published the given number of further messages.
func (p *producer) published(t *testing.T, more int) {
	t.Helper()
	count := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.n
	}
	until := count() + more
	suite.Eventually(t, "producer "+p.name+" has published more messages", func() bool { return count() >= until })
}

// byPlugin returns a function that publishes through the plugin.
func byPlugin(t *testing.T, v *suite.Vhost, exchange, key string) func(string, time.Duration) error {
	t.Helper()
	ch := v.Channel(t)
	suite.MustSucceed(t, ch.Confirm(false))
	return func(id string, delay time.Duration) error {
		c, err := ch.PublishWithDeferredConfirm(exchange, key, false, false, amqp.Publishing{
			MessageId: id, DeliveryMode: amqp.Persistent, Headers: amqp.Table{"x-delay": delay.Milliseconds()},
		})
		if err != nil {
			return err
		}
		if !c.Wait() {
			return fmt.Errorf("the broker refused message %s", id)
		}
		return nil
	}
}

// byClient returns a function that sends with rabbitdelay's client.
func byClient(c *amqpx.Client, exchange, key string) func(string, time.Duration) error {
	return func(id string, delay time.Duration) error {
		return c.Send(context.Background(), amqpx.Message{ID: id, Exchange: exchange, RoutingKey: key, Delay: delay})
	}
}

// TestOffThePlugin follows docs/off-the-plugin.md on a running system. One application changes its producers, stays on
// its broker until the plugin is disabled, and then moves to RabbitMQ 4.3. The other application cannot change its
// producers, so they move to a bridge on RabbitMQ 4.3. Producers and consumers run throughout, and every message
// arrives once and not early.
func TestOffThePlugin(t *testing.T) {
	t.Parallel()
	if path, reason := broker.PluginAvailable("4.0"); path == "" {
		t.Skip("skipped: " + reason)
	}
	// This test needs its own broker, because it disables the plugin.
	old := suite.NewVhost(t, broker.Shared(t, broker.Options{Version: "4.0", Management: true, Plugin: true, Config: "# TestOffThePlugin"}))
	ctl := ctlOf(t, old)
	next := suite.NamedVhost(t, broker.Shared(t, broker.Options{Version: "4.3", Management: true}), old.Name)
	open := func(v *suite.Vhost) *amqpx.Client {
		s, err := dlx.NewBucket(dlx.BucketConfig{Layout: dlx.LayoutBinary})
		suite.MustSucceed(t, err)
		return suite.OpenClient(t, amqpx.Config{URL: v.URL, Strategy: s})
	}
	a := &arrivals{due: map[string]time.Time{}, came: map[string][]string{}}
	delays(t, old, "orders", "topic", "order.#")
	delays(t, old, "bills", "direct", "bill")
	a.reads(t, old, "orders")
	a.reads(t, old, "bills")
	orders, bills := &producer{name: "order", a: a}, &producer{name: "bill", a: a}
	orders.sends(byPlugin(t, old, "orders", "order.new"))
	bills.sends(byPlugin(t, old, "bills", "bill"))
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer func() { stop(); running.Wait() }()
	var producing sync.WaitGroup
	publishing, endProducers := context.WithCancel(ctx)
	defer func() { endProducers(); producing.Wait() }()
	producing.Go(func() { orders.run(publishing, t) })
	producing.Go(func() { bills.run(publishing, t) })
	orders.published(t, 300)
	bills.published(t, 1)

	status := func() (waiting, exchanges int) {
		t.Helper()
		var s struct{ Exchanges []struct{ Waiting int } }
		r := suite.CommandOn(t, old, "")("plugin", "status", "--json")
		if err := json.Unmarshal([]byte(r.Stdout), &s); err != nil || r.Code != 0 {
			t.Fatalf("plugin status: got %[2]s (error %[1]v), want JSON and exit code 0", err, r)
		}
		for _, x := range s.Exchanges {
			waiting += x.Waiting
		}
		return waiting, len(s.Exchanges)
	}
	if waiting, exchanges := status(); waiting == 0 || exchanges != 2 {
		t.Errorf("plugin status: got %d messages waiting in %d exchanges, want more than 0 and 2", waiting, exchanges)
	}

	orders.sends(byClient(open(old), "orders", "order.new"))
	running.Go(func() { runBridge(t, ctx, open(next), bridge.Exchange{Name: "bills", Type: "direct"}, nil) })
	ch := next.Channel(t)
	suite.Eventually(t, "the bridge has declared its queue and exchange", func() bool {
		probe, err := next.Conn.Channel()
		suite.MustSucceed(t, err)
		defer func() { _ = probe.Close() }()
		_, err = probe.QueueDeclarePassive("bills.bridge.due", true, false, false, false, nil)
		return err == nil && probe.ExchangeDeclarePassive("bills.due", "direct", true, false, false, false, nil) == nil
	})
	suite.Makes(t, next, "bills", suite.QuorumQueue)
	suite.MustSucceed(t, ch.QueueBind("bills", "bill", "bills.due", false, nil))
	a.reads(t, next, "bills")
	bills.sends(byPlugin(t, next, "bills", "bill"))

	drain := func(v *suite.Vhost, args ...string) {
		t.Helper()
		state := filepath.Join(t.TempDir(), "state")
		r := suite.CommandOn(t, v, "delay: {bucket: {layout: binary}}\n")(append([]string{
			"plugin", "drain", "--rabbitmqctl", ctl, "--margin", "20s", "--yes", "--json", "--state", state,
		}, args...)...)
		if rep := reportOf(t, r); r.Code != 0 || rep.Sent == 0 || rep.Twice != 0 || len(rep.Refused) != 0 {
			t.Errorf("drain %v: got %s, want exit code 0, Sent > 0, Twice = 0 and none refused", args, r)
		}
		t.Log(args, r.Stdout)
	}
	drain(old, "--exchange", "orders")
	drain(next, "--exchange", "bills", "--other-broker")
	suite.Eventually(t, "no messages wait in the plugin", func() bool { waiting, _ := status(); return waiting == 0 })

	ch = old.Channel(t)
	suite.MustSucceed(t, ch.ExchangeDelete("orders", false, false))
	suite.MustSucceed(t, ch.ExchangeDeclare("orders", "topic", true, false, false, false, nil))
	suite.MustSucceed(t, ch.QueueBind("orders", "order.#", "orders", false, nil))
	suite.MustSucceed(t, ch.ExchangeDelete("bills", false, false))
	// The image sets the plugin's directory only for the server's own process.
	plugins := "/usr/lib/rabbitmq/plugins:/plugins:/usr/lib/rabbitmq/lib/rabbitmq_server-" + old.Broker.Version() + "/plugins"
	disable := strings.NewReplacer("exec -i", "exec -e RABBITMQ_PLUGINS_DIR="+plugins,
		"rabbitmqctl", "rabbitmq-plugins").Replace(ctl) + " disable rabbitmq_delayed_message_exchange"
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", disable).CombinedOutput(); err != nil {
		t.Fatalf("disabling the plugin: %v: %s", err, out)
	}
	if _, exchanges := status(); exchanges != 0 {
		t.Errorf("after disabling the plugin, %d of its exchanges are left, want 0", exchanges)
	}
	orders.published(t, 300)

	ch = next.Channel(t)
	suite.MustSucceed(t, ch.ExchangeDeclare("orders", "topic", true, false, false, false, nil))
	suite.Makes(t, next, "orders", suite.QuorumQueue)
	suite.MustSucceed(t, ch.QueueBind("orders", "order.#", "orders", false, nil))
	a.reads(t, next, "orders")
	orders.sends(byClient(open(next), "orders", "order.new"))
	orders.published(t, 300)
	endProducers()
	producing.Wait()
	a.complete(t)
	stop()
	running.Wait()
}
