package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/bridge"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// A producer may check for the bridge's exchange, or declare it as a topic exchange with the plugin's argument. Only
// producers that declare the plugin's exchange type have to change.
func TestBridgeProducersDeclarations(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		c := suite.Requeuer(t, v)
		suite.MustSucceed(t, c.Apply(t.Context(), bridge.Exchange{Name: "shop", Type: "direct"}.Topology()))
		argument := amqp.Table{"x-delayed-type": "direct"}
		ch := v.Channel(t)
		suite.MustSucceed(t, ch.ExchangeDeclarePassive("shop", "x-delayed-message", true, false, false, false, argument))
		suite.MustSucceed(t, ch.ExchangeDeclare("shop", "topic", true, false, false, false, argument))
		conn := v.Dial(t) // a separate connection, because 3.10 closes it
		ch, err := conn.Channel()
		suite.MustSucceed(t, err)
		err = ch.ExchangeDeclare("shop", "x-delayed-message", true, false, false, false, argument)
		ae, _ := errors.AsType[*amqp.Error](err)
		want := amqp.PreconditionFailed
		if strings.HasPrefix(c.BrokerVersion(), "RabbitMQ 3.") {
			want = amqp.CommandInvalid
		}
		if ae == nil || ae.Code != want {
			t.Errorf("%s: declaring with the plugin's type: got error %v, want code %d", c.BrokerVersion(), err, want)
		}
	})
}

// Messages with different routing keys pass through every type of exchange. None is early or lost, and each keeps the
// properties that its publisher has set, even while one bridge stops and another one starts. A message that expires
// before a bridge receives it is still delayed.
func TestBridge(t *testing.T) {
	t.Parallel()
	suite.OnSomePrepared(t, func(t *testing.T, v *suite.Vhost) {
		for _, kind := range bridge.Types() {
			t.Run(kind, func(t *testing.T) { bridges(t, v, bridge.Exchange{Name: "shop-" + kind, Type: kind}) })
		}
	})
}

func bridges(t *testing.T, v *suite.Vhost, x bridge.Exchange) {
	const messages = 200
	open := func() *amqpx.Client { return suite.OpenClient(t, amqpx.Config{URL: v.URL}) }
	c := open()
	suite.MustSucceed(t, c.Apply(t.Context(), x.Topology()))
	ch := v.Channel(t)
	out := x.Name + ".out"
	_, err := ch.QueueDeclare(out, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	suite.MustSucceed(t, err)
	for i := range messages {
		if i == 0 || x.Type == amqp.ExchangeDirect {
			key := map[string]string{"direct": fmt.Sprint("order.", i), "topic": "order.#"}[x.Type]
			suite.MustSucceed(t, ch.QueueBind(out, key, x.Due(), false, amqp.Table{"x-match": "all", "tenant": "blue"}))
		}
	}
	suite.MustSucceed(t, ch.Confirm(false))
	published, expirations := time.Now(), map[string]string{}
	for i := range messages {
		p := amqp.Publishing{
			MessageId: fmt.Sprint(i), UserId: "guest", Expiration: "600000", DeliveryMode: amqp.Persistent, Timestamp: time.Unix(1_700_000_000, 0),
			Headers: amqp.Table{"x-delay": int32(3000), "tenant": "blue"},
		}
		if i < messages/4 { // only these, because messages expire only at the head of a queue
			p.Expiration = "3000" // no bridge is running by then
		}
		expirations[p.MessageId] = p.Expiration
		dc, err := ch.PublishWithDeferredConfirm(x.Name, fmt.Sprint("order.", i), true, false, p)
		if err != nil || !dc.Wait() {
			t.Fatalf("publishing message %[2]d to exchange %[1]s: got error %[3]v, want nil and a confirm", x.Name, i, err)
		}
	}
	suite.Eventually(t, "the expired messages are in the queue for due messages", func() bool {
		q, err := c.QueueInfo(t.Context(), x.DueQueue())
		return err == nil && q.Ready == messages/4
	})
	var mu sync.Mutex
	came := map[string]int{}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reader := make(chan error, 1)
	go func() {
		reader <- c.Consume(ctx, out, func(_ context.Context, d *amqpx.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			came[d.ID]++
			if early := time.Until(published.Add(3 * time.Second)); early > 0 {
				t.Errorf("message %s arrived %v before it was due", d.ID, early)
			}
			for _, c := range []struct {
				field     string
				got, want any
			}{
				{"RoutingKey", d.RoutingKey, "order." + d.ID},
				{"Exchange", d.Exchange, x.Due()},
				{"UserID", d.UserID, "guest"},
				{"Expiration", d.Expiration, expirations[d.ID]},
				{"Timestamp", d.Timestamp.Unix(), int64(1_700_000_000)},
				{"x-delay", fmt.Sprint(d.Headers["x-delay"]), "-3000"},
			} {
				if c.got != c.want {
					t.Errorf("message %s: %s is %v, want %v", d.ID, c.field, c.got, c.want)
				}
			}
			return nil
		}, amqpx.WithConcurrency(64))
	}()
	first, end := context.WithCancel(t.Context())
	runBridge(t, first, open(), x, end)
	second, endSecond := context.WithCancel(t.Context())
	defer endSecond()
	ended := make(chan struct{})
	go func() { defer close(ended); runBridge(t, second, open(), x, nil) }()
	suite.Eventually(t, "all messages have arrived", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(came) == messages
	})
	endSecond()
	<-ended
	stop()
	suite.MustSucceed(t, <-reader)
}

// runBridge runs a bridge until ctx is cancelled. If end is not nil, it is called after the first messages.
func runBridge(t *testing.T, ctx context.Context, c *amqpx.Client, x bridge.Exchange, end func()) { //nolint:revive // t first, as everywhere
	t.Helper()
	b, err := bridge.New(c, bridge.Config{Exchange: x})
	if err != nil {
		t.Error(err)
		return
	}
	if end != nil {
		go func() {
			for b.Stats().Delayed == 0 && ctx.Err() == nil {
				<-time.After(time.Millisecond)
			}
			end()
		}()
	}
	if err := b.Declare(ctx); err != nil {
		t.Errorf("Declare returned %v, want no error", err)
		return
	}
	if err := b.Run(ctx); err != nil {
		t.Errorf("Run returned %v, want no error", err)
	}
}

// The bridge refuses to start if a queue is bound to its exchange, because the queue would receive all messages without
// a delay. If the exchange has another type, the advice is not to remove bindings, because the plugin would drop
// waiting messages without them.
func TestBridgeRefusesBypasses(t *testing.T) {
	t.Parallel()
	suite.OnSomePrepared(t, func(t *testing.T, v *suite.Vhost) {
		ch := v.Channel(t)
		suite.MustSucceed(t, ch.ExchangeDeclare("shop", "topic", true, false, false, false, nil))
		_, err := ch.QueueDeclare("mail", true, false, false, false, nil)
		suite.MustSucceed(t, err)
		suite.MustSucceed(t, ch.QueueBind("mail", "order.#", "shop", false, nil))
		r := suite.CommandOn(t, v, "")("bridge", "--exchange", "shop", "--type", "topic")
		if r.Code != 1 || !strings.Contains(r.Stderr, "bypass the bridge") {
			t.Errorf(`bridge: got %v, want exit code 1 and "bypass the bridge" in the errors`, r)
		}
		suite.MustSucceed(t, ch.ExchangeDeclare("fan", "fanout", true, false, false, false, nil))
		suite.MustSucceed(t, ch.QueueBind("mail", "", "fan", false, nil))
		for _, args := range [][]string{nil, {"--dry-run"}} {
			r := suite.CommandOn(t, v, "")(append([]string{"bridge", "--exchange", "fan", "--type", "topic"}, args...)...)
			if r.Code == 0 || strings.Contains(r.Stderr, "bypass the bridge") || !strings.Contains(r.Stdout+r.Stderr, "fanout") {
				t.Errorf(`bridge %v: got %v, want an exit code other than 0 and output containing "fanout" but not "bypass the bridge"`, args, r)
			}
		}
	})
}

// If a program publishes a message to a bridge that the plugin has already delayed, the bridge forwards it immediately,
// with the headers that the plugin has set.
func TestBridgeAfterThePlugin(t *testing.T) {
	t.Parallel()
	onPlugins(t, func(t *testing.T, v *suite.Vhost) {
		delays(t, v, "old", "direct", "paid")
		ch := v.Channel(t)
		delayed(t, ch, "old", "paid", 200*time.Millisecond, amqp.Publishing{MessageId: "m"})
		d := takesAll(t, v, "old", 1, suite.Patience)[0]
		if !strings.HasPrefix(fmt.Sprint(d.Headers["x-delay"]), "-") {
			t.Fatalf("the plugin delivered the headers %+v, want a negative x-delay", d.Headers)
		}
		x := bridge.Exchange{Name: "shop", Type: "direct"}
		c := suite.OpenClient(t, amqpx.Config{URL: v.URL})
		suite.MustSucceed(t, c.Apply(t.Context(), x.Topology()))
		suite.Makes(t, v, "out", suite.QuorumQueue)
		suite.MustSucceed(t, ch.QueueBind("out", "paid", x.Due(), false, nil))
		p, err := ch.PublishWithDeferredConfirm("shop", "paid", true, false, amqp.Publishing{MessageId: d.MessageId, Headers: d.Headers})
		if err != nil || !p.Wait() {
			t.Fatalf("publishing to exchange shop: got error %v, want nil and a confirm", err)
		}
		b, err := bridge.New(c, bridge.Config{Exchange: x})
		suite.MustSucceed(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx) }()
		got := takesAll(t, v, "out", 1, suite.Patience)
		stop()
		suite.MustSucceed(t, <-ended)
		if s := b.Stats(); len(got) != 1 || s.Delayed != 0 || fmt.Sprint(got[0].Headers["x-delay"]) != fmt.Sprint(d.Headers["x-delay"]) {
			t.Errorf(`got the statistics %+v and the messages %+v, want Delayed = 0 and one message with x-delay = %v`, s, got, fmt.Sprint(d.Headers["x-delay"]))
		}
	})
}
