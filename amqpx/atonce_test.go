package amqpx_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// events declares the exchange events, and the queue audit, which receives its messages with the keys order.*.
func (m *memory) events() {
	m.Helper()
	ch := m.Channel()
	m.Declare("audit", nil)
	if err := errors.Join(ch.ExchangeDeclare("events", "topic", true, false, false, false, nil),
		ch.QueueBind("audit", "order.*", "events", false, nil)); err != nil {
		m.Fatal(err)
	}
}

// routeQueues returns the route queues that were created for exchange destinations.
func (m *memory) routeQueues() (names []string) {
	for _, name := range m.Queues() {
		if strings.HasPrefix(name, "delay.route.") {
			names = append(names, name)
		}
	}
	return names
}

// A message that is already due is published directly to its exchange, so no routing key needs a route queue.
func TestDueNowToAnExchange(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		m.events()
		c := m.open(amqpx.Config{MaxRouteQueues: 1})
		due := time.Now().Add(-time.Hour)
		var batch []amqpx.Message
		for i := range 10 {
			key := fmt.Sprintf("order.%d", i)
			c.mustSend(amqpx.Message{Exchange: "events", RoutingKey: key}, amqpx.Message{Exchange: "events", RoutingKey: key, DeliverAt: due})
			batch = append(batch, amqpx.Message{Exchange: "events", RoutingKey: key})
		}
		if err := c.SendBatch(t.Context(), batch); err != nil {
			t.Error(err)
		}
		m.Holds("audit", 30, 0)
		if got := m.routeQueues(); len(got) > 0 {
			t.Errorf("after sends of messages that are due: got the route queues %v, want none", got)
		}
		var got collector
		c.consume("audit", got.handle, amqpx.WithConcurrency(1))
		after(0)
		if d := got.all()[1]; !d.DueAt.Equal(due) || d.Exchange != "events" || d.RoutingKey != "order.0" || d.Headers[amqpx.HeaderDestination] != "events:order.0" {
			t.Errorf(`the audit consumer's second delivery: got %+v, want DueAt = %v, Exchange = "events", RoutingKey = "order.0" and "events:order.0" in the destination header`,
				d.Delivery, due)
		}
	})
}

// Send refuses the same destinations for a message without a delay as for one with a delay. It returns ErrUnroutable
// for a message that no queue would receive.
func TestDueNowIsRefused(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		m.events()
		c := m.open(amqpx.Config{})
		careful := m.open(amqpx.Config{Declare: amqpx.DeclareListed})
		for name, test := range map[string]struct {
			client   *client
			exchange string
			want     error
		}{
			"missing exchange":  {c, "nowhere", topology.ErrDestination},
			"delivery exchange": {c, "delay.deliver", topology.ErrDestination},
			"unlisted exchange": {careful, "events", topology.ErrDestination},
			"unbound key":       {c, "events", amqpx.ErrUnroutable},
		} {
			began := time.Now()
			err := test.client.Send(t.Context(), amqpx.Message{Exchange: test.exchange, RoutingKey: "k"})
			took := time.Since(began)
			if !errors.Is(err, test.want) {
				t.Errorf("%s: Send returned %v, want %v", name, err, test.want)
			}
			if took > time.Second {
				t.Errorf("%s: Send returned %v after %v, want an answer within 1s", name, err, took)
			}
		}
	})
}

// While one queue behind the exchange refuses a message, the other queues receive only a few copies rather than one per
// attempt.
func TestDueNowWhileAQueueRefuses(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		m.events()
		m.Declare("full", amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
		if err := m.Channel().QueueBind("full", "order.*", "events", false, nil); err != nil {
			t.Fatal(err)
		}
		m.Publish("", "full", amqp.Publishing{})
		c := m.open(amqpx.Config{})
		c.mustSend(amqpx.Message{ID: "m", Exchange: "events", RoutingKey: "order.1"})
		after(time.Minute)
		if n := m.State("audit").Ready; n > 3 {
			t.Errorf("the other queue has %d copies, want at most 3", n)
		}
		if _, err := m.Channel().QueuePurge("full", false); err != nil {
			t.Fatal(err)
		}
		after(10 * time.Minute)
		if got := m.IDs("full"); len(got) != 1 || got[0] != "m" {
			t.Errorf("the queue that was full has %q, want only m", got)
		}
	})
}
