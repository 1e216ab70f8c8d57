package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// foreignMessage returns a message like one from a publisher that does not use rabbitdelay.
func foreignMessage(key string) amqp.Publishing {
	return amqp.Publishing{
		MessageId: "m-" + key, Body: []byte("body"), Expiration: "90000", UserId: "guest", DeliveryMode: amqp.Transient,
		Timestamp: time.Unix(1_700_000_000, 0), Priority: 3, AppId: "shop", ReplyTo: "answers",
		Headers: amqp.Table{"x-delay": int32(5000), "CC": []any{"copy." + key}, "tenant": "blue"},
	}
}

// Properties that a publisher without rabbitdelay has set are restored after retries, snoozes and a forward with a
// delay, and are sent unchanged by a forward without one.
func TestForwardKeepsForeignProperties(t *testing.T) {
	inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.apply(topology.Topology{
			Exchanges: []topology.Exchange{{Name: "shop", Kind: "topic"}, {Name: "shop.due", Kind: "topic"}},
			Queues:    []topology.Queue{{Name: "in"}, {Name: "out"}, {Name: "copies"}},
			Bindings: []topology.Binding{
				{Exchange: "shop", Queue: "in", RoutingKey: "#"}, {Exchange: "shop.due", Queue: "out", RoutingKey: "order.#"},
				{Exchange: "shop.due", Queue: "copies", RoutingKey: "copy.#"},
			},
		})
		var steps []string
		k := c.consume("in", func(ctx context.Context, d *amqpx.Delivery) error {
			steps = append(steps, fmt.Sprintln(d.Attempt, d.Snoozes, d.Exchange, d.RoutingKey, d.Expiration, d.UserID,
				d.DeliveryMode, d.Timestamp.Unix(), d.Headers["x-delay"], d.Headers["CC"]))
			switch len(steps) {
			case 1:
				return errors.New("no")
			case 2:
				return amqpx.Snooze(time.Minute)
			}
			return c.Forward(ctx, d, topology.Destination{Queue: "mid"}, time.Hour)
		})
		k2 := c.consume("mid", func(ctx context.Context, d *amqpx.Delivery) error {
			steps = append(steps, fmt.Sprintln(d.Attempt, d.Snoozes, d.Exchange, d.RoutingKey, d.Expiration, d.UserID,
				d.DeliveryMode, d.Timestamp.Unix(), d.Headers["x-delay"], d.Headers["CC"]))
			return c.Forward(ctx, d, topology.Destination{Exchange: "shop.due", RoutingKey: d.RoutingKey}, 0)
		})
		m.Publish("shop", "order.7", foreignMessage("order.7"))
		after(time.Hour + 90*time.Second) // the message is forwarded after about 61 s, is due an hour later, and expires 90 s after that
		k.stop()
		k2.stop()
		rest := "shop order.7 90000 guest 1 1700000000 5000 [copy.order.7]\n"
		want := []string{"1 0 " + rest, "2 0 " + rest, "2 1 " + rest, "1 0 " + rest}
		if !slices.Equal(steps, want) {
			t.Fatalf("the handler: got the deliveries\n%s\nwant\n%s", strings.Join(steps, "\n"), strings.Join(want, "\n"))
		}
		for _, q := range []string{"out", "copies"} {
			all := m.State(q).Messages
			if len(all) != 1 {
				t.Fatalf("%s has %d messages, want 1", q, len(all))
			}
			got := all[0]
			for _, c := range []struct {
				field     string
				got, want any
			}{
				{"RoutingKey", got.RoutingKey, "order.7"},
				{"Exchange", got.Exchange, "shop.due"},
				{"MessageId", got.MessageId, "m-order.7"},
				{"Expiration", got.Expiration, "90000"},
				{"UserId", got.UserId, "guest"},
				{"DeliveryMode", got.DeliveryMode, amqp.Transient},
				{"Timestamp", got.Timestamp.Unix(), int64(1_700_000_000)},
				{"Priority", got.Priority, uint8(3)},
				{"AppId", got.AppId, "shop"},
				{"ReplyTo", got.ReplyTo, "answers"},
				{"CC", got.Headers["CC"], []any{"copy.order.7"}},
				{"x-delay", got.Headers["x-delay"], int32(5000)},
				{"tenant", got.Headers["tenant"], "blue"},
				{header.Carried, got.Headers[header.Carried], nil},
			} {
				if !reflect.DeepEqual(c.got, c.want) {
					t.Errorf("%s: %s is %#v, want %#v", q, c.field, c.got, c.want)
				}
			}
		}
	})
}

// Forward without a delay declares no queue per routing key. It returns ErrUnroutable for a routing key without a
// binding.
func TestForwardNeedsNoRouteQueues(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{MaxRouteQueues: 1})
		c.apply(topology.Topology{
			Exchanges: []topology.Exchange{{Name: "shop", Kind: "topic"}}, Queues: []topology.Queue{{Name: "out"}},
			Bindings: []topology.Binding{{Exchange: "shop", Queue: "out", RoutingKey: "order.*"}},
		})
		before := len(m.Queues())
		for i := range 1000 {
			d := &amqpx.Delivery{ID: fmt.Sprint(i)}
			if err := c.Forward(m.Context(), d, topology.Destination{Exchange: "shop", RoutingKey: fmt.Sprint("order.", i)}, 0); err != nil {
				t.Fatal(err)
			}
		}
		m.Holds("out", 1000, 0)
		if n := len(m.Queues()); n != before {
			t.Errorf("after forwarding to 1000 keys: got %d queues, want %d as before", n, before)
		}
		err := c.Forward(m.Context(), &amqpx.Delivery{}, topology.Destination{Exchange: "shop", RoutingKey: "nobody"}, 0)
		if !errors.Is(err, amqpx.ErrUnroutable) {
			t.Errorf("Forward with an unbound routing key: got %v, want ErrUnroutable", err)
		}
		if err := c.Forward(m.Context(), &amqpx.Delivery{}, topology.Destination{Queue: "delay.parked"}, 0); !errors.Is(err, topology.ErrDestination) {
			t.Errorf("Forward to delay.parked: got %v, want ErrDestination", err)
		}
	})
}

// If one queue behind an exchange refuses a message, other queues may have received it, so the outcome is unknown.
func TestForwardToAQueueThatRefuses(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.Declare("full", amqp.Table{"x-max-length": int32(1), "x-overflow": "reject-publish"})
		m.Publish("", "full", amqp.Publishing{})
		c.apply(topology.Topology{
			Exchanges: []topology.Exchange{{Name: "shop", Kind: "fanout"}}, Queues: []topology.Queue{{Name: "q"}},
			Bindings: []topology.Binding{{Exchange: "shop", Queue: "q"}},
		})
		if err := m.Channel().QueueBind("full", "", "shop", false, nil); err != nil {
			t.Fatal(err)
		}
		err := c.Forward(m.within(time.Second), &amqpx.Delivery{ID: "1"}, topology.Destination{Exchange: "shop"}, 0)
		if !errors.Is(err, amqpx.ErrNacked) || !errors.Is(err, amqpx.ErrOutcomeUnknown) || m.State("q").Ready == 0 {
			t.Errorf("Forward to two queues, one of which refuses: got %v with %d messages in the other queue, want ErrNacked and ErrOutcomeUnknown with at least 1", err, m.State("q").Ready)
		}
	})
}

// A user-id is not trusted if it is in a header, which any publisher can write.
func TestForwardIgnoresUserIDsInHeaders(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.Declare("q", nil)
		var users []string
		k := c.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
			users = append(users, d.UserID)
			return nil
		})
		m.Publish("", "q", amqp.Publishing{Headers: amqp.Table{header.Carried: amqp.Table{"user-id": "root"}}})
		after(time.Second)
		k.stop()
		if !slices.Equal(users, []string{""}) {
			t.Errorf(`the deliveries have the user-ids %q, want [""]`, users)
		}
	})
}

// apply declares the objects that a test needs in addition to destinations.
func (c *client) apply(want topology.Topology) {
	c.m.Helper()
	if err := c.Apply(c.m.Context(), want); err != nil {
		c.m.Fatal(err)
	}
}

// A requeued message is redelivered unchanged after a pause, and no attempt is counted.
func TestRequeueAsItIs(t *testing.T) {
	inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
		c, o := m.watched(amqpx.Config{})
		c.apply(topology.Topology{
			Exchanges: []topology.Exchange{{Name: "shop", Kind: "fanout"}}, Queues: []topology.Queue{{Name: "q"}},
			Bindings: []topology.Binding{{Exchange: "shop", Queue: "q"}},
		})
		var came []time.Time
		k := c.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
			came = append(came, time.Now())
			if d.RoutingKey != "order.7" || d.Attempt != 1 || d.Headers["x-delay"] != int32(5000) || d.Headers[header.Carried] != nil || d.Expiration != "90000" {
				t.Errorf(`delivery %d: got %+v, want routing key "order.7", attempt 1, x-delay = 5000, no %s header and expiration "90000"`,
					len(came), d, header.Carried)
			}
			if _, ok := d.RetryDelay(amqpx.Requeue(nil)); ok {
				t.Error("RetryDelay of a requeued message: got a delay, want none")
			}
			if len(came) < 4 {
				return amqpx.Requeue(errors.New("not now"))
			}
			return nil
		}, amqpx.WithRetry(topology.Retry{MaxAttempts: 1}))
		m.Publish("shop", "order.7", foreignMessage("order.7"))
		after(time.Minute)
		k.stop()
		if len(came) != 4 || came[3].Sub(came[0]) < 1500*time.Millisecond {
			t.Errorf("the deliveries were at %v, want 4 of them, with at least 1500ms between the first and the last", came)
		}
		// The broker may deliver a message again before the hook gets the outcome of the delivery before, so their order
		// may differ.
		if got := slices.Sorted(slices.Values(o.saw().outcomes)); !slices.Equal(got, []amqpx.Outcome{amqpx.OutcomeAcked, amqpx.OutcomeRequeued, amqpx.OutcomeRequeued, amqpx.OutcomeRequeued}) {
			t.Errorf("the handlers have the outcomes %v, want one acked and three requeued", got)
		}
	})
}

// The pause before a message is requeued grows with its deliveries, even if the broker does not count failed ones.
func TestRequeuePausesGrow(t *testing.T) {
	inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		var came []time.Time
		c.consume("q", func(context.Context, *amqpx.Delivery) error {
			if came = append(came, time.Now()); len(came) < 7 {
				return amqpx.Requeue(nil)
			}
			return nil
		})
		c.mustSend(amqpx.Message{ID: "x", Queue: "q"})
		after(10 * time.Minute)
		if len(came) != 7 {
			t.Fatalf("a message that is requeued six times: got %d deliveries, want 7", len(came))
		}
		first, last := came[1].Sub(came[0]), came[6].Sub(came[5])
		if first < 500*time.Millisecond || first > time.Second || last < 5*time.Second || last > 10*time.Second {
			t.Errorf("the first pause was %v and the last %v, want 500ms to 1s and 5s to 10s", first, last)
		}
	})
}

// A message without an id keeps the id that Forward gave it when it is retried, so that the retry and the forwarded
// message can be recognised as the same message.
func TestForwardedMessagesKeepTheirNewID(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		var ids []string
		c.consume("in", func(ctx context.Context, d *amqpx.Delivery) error {
			if len(ids) == 0 && d.ID != "" {
				t.Errorf("the message was delivered with the id %q, want none", d.ID)
			}
			if err := c.Forward(ctx, d, topology.Destination{Queue: "out"}, time.Minute); err != nil {
				t.Error(err)
			}
			if ids = append(ids, d.ID); len(ids) == 1 {
				return errors.New("after it was forwarded")
			}
			return nil
		})
		m.Publish("", "in", amqp.Publishing{Body: []byte("x")})
		after(time.Hour)
		if len(ids) != 2 || ids[0] == "" || ids[0] != ids[1] {
			t.Errorf("the deliveries have the ids %q, want one non-empty id twice", ids)
		}
	})
}

// A middleware may change the Delivery, for example to decrypt the body. The retry has the body that was received.
func TestRetriesHaveTheReceivedBody(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		var bodies []string
		decrypt := func(next amqpx.Handler) amqpx.Handler {
			return func(ctx context.Context, d *amqpx.Delivery) error {
				d.Body = []byte(strings.TrimPrefix(string(d.Body), "sealed "))
				return next(ctx, d)
			}
		}
		c.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
			bodies = append(bodies, string(d.Body))
			return amqpx.Reject(nil)
		}, amqpx.WithMiddleware(decrypt))
		c.mustSend(amqpx.Message{Queue: "q", Body: []byte("sealed letter")})
		after(time.Minute)
		dead := m.State("q.dead").Messages
		if len(dead) != 1 || string(dead[0].Body) != "sealed letter" || !slices.Equal(bodies, []string{"letter"}) {
			t.Errorf(`the handler got the bodies %q, and the dead letters are %v, want ["letter"] and one dead letter with the body "sealed letter"`, bodies, dead)
		}
	})
}
