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
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// foreignMessage is a message as a client of somebody else's publishes it.
func foreignMessage(key string) amqp.Publishing {
	return amqp.Publishing{
		MessageId: "m-" + key, Body: []byte("body"), Expiration: "90000", UserId: "guest", DeliveryMode: amqp.Transient,
		Timestamp: time.Unix(1_700_000_000, 0), Priority: 3, AppId: "shop", ReplyTo: "answers",
		Headers: amqp.Table{"x-delay": int32(5000), "CC": []any{"copy." + key}, "tenant": "blue"},
	}
}

// What a foreign publisher set is there again after retries, snoozes and a forward
// with a delay, and arrives when it is forwarded without one.
func TestForwardKeepsWhatAForeignPublisherSet(t *testing.T) {
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
			steps = append(steps, fmt.Sprintln(d.Attempt, d.Snoozes, d.Exchange, d.RoutingKey, d.Expiration, d.UserID, d.DeliveryMode, d.Timestamp.Unix(), d.Headers["x-delay"], d.Headers["CC"]))
			switch len(steps) {
			case 1:
				return errors.New("no")
			case 2:
				return amqpx.Snooze(time.Minute)
			}
			return c.Forward(ctx, d, topology.Destination{Queue: "mid"}, time.Hour)
		})
		k2 := c.consume("mid", func(ctx context.Context, d *amqpx.Delivery) error {
			steps = append(steps, fmt.Sprintln(d.Attempt, d.Snoozes, d.Exchange, d.RoutingKey, d.Expiration, d.UserID, d.DeliveryMode, d.Timestamp.Unix(), d.Headers["x-delay"], d.Headers["CC"]))
			return c.Forward(ctx, d, topology.Destination{Exchange: "shop.due", RoutingKey: d.RoutingKey}, 0)
		})
		m.Publish("shop", "order.7", foreignMessage("order.7"))
		after(time.Hour + 90*time.Second) // a minute and a second after the hour it is due, and 90 s later it expires
		k.stop()
		k2.stop()
		rest := "shop order.7 90000 guest 1 1700000000 5000 [copy.order.7]\n"
		want := []string{"1 0 " + rest, "2 0 " + rest, "2 1 " + rest, "1 0 " + rest}
		if !slices.Equal(steps, want) {
			t.Fatalf("deliveries\n%s\nwant\n%s", strings.Join(steps, "\n"), strings.Join(want, "\n"))
		}
		for _, q := range []string{"out", "copies"} {
			all := m.State(q).Messages
			if len(all) != 1 {
				t.Fatalf("%s has %d messages", q, len(all))
			}
			got := all[0]
			if got.RoutingKey != "order.7" || got.Exchange != "shop.due" || got.MessageId != "m-order.7" || got.Expiration != "90000" || got.UserId != "guest" || got.DeliveryMode != amqp.Transient || got.Timestamp.Unix() != 1_700_000_000 || got.Priority != 3 || got.AppId != "shop" || got.ReplyTo != "answers" {
				t.Errorf("%s got %+v", q, got)
			}
			if h := got.Headers; !reflect.DeepEqual(h["CC"], []any{"copy.order.7"}) || h["x-delay"] != int32(5000) || h["tenant"] != "blue" || h[amqpx.HeaderCarried] != nil {
				t.Errorf("%s got the headers %v", q, h)
			}
		}
	})
}

// An exchange may have any number of routing keys without a queue for each, and one
// that nothing is bound for says so.
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
			t.Errorf("%d queues became %d", before, n)
		}
		err := c.Forward(m.Context(), &amqpx.Delivery{}, topology.Destination{Exchange: "shop", RoutingKey: "nobody"}, 0)
		if !errors.Is(err, amqpx.ErrUnroutable) {
			t.Errorf("error %v, want ErrUnroutable", err)
		}
		if err := c.Forward(m.Context(), &amqpx.Delivery{}, topology.Destination{Queue: "delay.parked"}, 0); !errors.Is(err, topology.ErrDestination) {
			t.Errorf("error %v, want ErrDestination", err)
		}
	})
}

// Where one queue of an exchange refuses a message, others have it: it is not unsent.
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
			t.Errorf("%v with %d in the other queue; want ErrNacked, the outcome unknown", err, m.State("q").Ready)
		}
	})
}

// A user-id is carried, and not believed of a header that anybody may write.
func TestForwardBelievesNoUserOfAHeader(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.Declare("q", nil)
		var users []string
		k := c.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
			users = append(users, d.UserID)
			return nil
		})
		m.Publish("", "q", amqp.Publishing{Headers: amqp.Table{amqpx.HeaderCarried: amqp.Table{"user-id": "root"}}})
		after(time.Second)
		k.stop()
		if !slices.Equal(users, []string{""}) {
			t.Errorf("users %q", users)
		}
	})
}

// apply declares what a test needs beside destinations.
func (c *client) apply(want topology.Topology) {
	c.m.Helper()
	if err := c.Apply(c.m.Context(), want); err != nil {
		c.m.Fatal(err)
	}
}

// A requeued message comes again as it was, after pauses, and counts no attempt.
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
			if d.RoutingKey != "order.7" || d.Attempt != 1 || d.Headers["x-delay"] != int32(5000) || d.Headers[amqpx.HeaderCarried] != nil || d.Expiration != "90000" {
				t.Errorf("delivery %d: %+v", len(came), d)
			}
			if _, ok := d.RetryDelay(amqpx.Requeue(nil)); ok {
				t.Error("a requeued message has a retry delay")
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
			t.Errorf("deliveries at %v", came)
		}
		if got := o.saw().outcomes; !slices.Equal(got, []amqpx.Outcome{amqpx.OutcomeRequeued, amqpx.OutcomeRequeued, amqpx.OutcomeRequeued, amqpx.OutcomeAcked}) {
			t.Errorf("outcomes %v", got)
		}
	})
}
