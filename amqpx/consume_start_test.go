package amqpx_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Consume refuses a queue to which no retry could be sent, before it declares or consumes anything.
func TestConsumeRefusesQueuesWithoutARetryRoute(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		for queue, hint := range map[string]string{
			"delay.parked":           "rabbitdelay requeue --parked",
			"delay.bucket.1s":        "belongs to the delay strategies",
			"delay.route.events:a":   "belongs to the delay strategies",
			strings.Repeat("n", 250): "bytes",
			strings.Repeat("n", 235): "bytes",
		} {
			err := c.Consume(t.Context(), queue, nothing)
			if !errors.Is(err, amqpx.ErrConfig) || !strings.Contains(err.Error(), hint) {
				t.Errorf("Consume from %.20s: got %v, want amqpx.ErrConfig with %q", queue, err, hint)
			}
		}
		if err := c.Consume(t.Context(), "q", nothing, amqpx.WithDeadLetterQueue("delay.bucket.1s")); !errors.Is(err, amqpx.ErrConfig) {
			t.Errorf("Consume with a dead-letter queue that delays: got %v, want amqpx.ErrConfig", err)
		}
		if _, ok := m.Queue("q"); ok || len(m.Connections()) != 1 {
			t.Errorf("after Consume with invalid options: queue declared: %t, %d connections; want false and 1", ok, len(m.Connections()))
		}
		c.consume(strings.Repeat("n", 220), nothing).stop()
	})
}

// If Consume has not consumed anything yet, it immediately returns an error for a destination that Send would refuse.
// Otherwise it could wait forever.
func TestConsumeRefusesUnusableQueues(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c, careful := m.open(amqpx.Config{}), m.open(amqpx.Config{Declare: amqpx.DeclareNothing})
		if _, err := m.Channel().QueueDeclare("mine", false, false, true, false, nil); err != nil {
			t.Fatal(err)
		}
		for name, test := range map[string]struct {
			client *client
			queue  string
			is     error
		}{
			"exclusive to another": {c, "mine", topology.ErrDestination},
			"missing":              {careful, "orders.exprie", topology.ErrDestination},
			"not UTF-8":            {c, "a\xff", amqpx.ErrConfig},
			"a line break":         {c, "a\nb", amqpx.ErrConfig},
		} {
			began := time.Now()
			err := test.client.Consume(m.within(time.Hour), test.queue, nothing)
			if !errors.Is(err, test.is) || time.Since(began) > time.Minute {
				t.Errorf("%s: Consume returned %v after %v, want %v after at most 1m", name, err, time.Since(began), test.is)
			}
		}
		if err := c.Consume(t.Context(), "q", nothing, amqpx.WithDeadLetterQueue("amq.dead")); !errors.Is(err, amqpx.ErrConfig) {
			t.Errorf("Consume with a reserved dead-letter queue: got %v, want amqpx.ErrConfig", err)
		}
		for _, name := range []string{"a\xff", "a\nb", "a\r"} {
			if err := c.Send(t.Context(), amqpx.Message{Queue: name}); !errors.Is(err, amqpx.ErrMessage) {
				t.Errorf("Send to the queue %q: got %v, want amqpx.ErrMessage", name, err)
			}
			if err := c.Send(t.Context(), amqpx.Message{Exchange: "amq.topic", RoutingKey: name}); !errors.Is(err, amqpx.ErrMessage) {
				t.Errorf("Send with the routing key %q: got %v, want amqpx.ErrMessage", name, err)
			}
		}
	})
}

// A consumer that is stopped while it starts leaves no consumer on the broker. The broker would otherwise deliver
// messages to a consumer that handles none.
func TestAbandonedStart(t *testing.T) {
	for _, method := range []string{"queue.declare", "channel.open", "basic.qos", "basic.consume"} {
		t.Run(method, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				c := m.open(amqpx.Config{})
				c.mustSend(amqpx.Message{ID: "m", Queue: "q"})
				m.Control(func(f amqptest.Frame) (a amqptest.Action) {
					if f.Method == method && f.FromClient && !strings.Contains(f.Connection, "publish") {
						a.Delay = time.Second
					}
					return a
				})
				k := c.consume("q", nothing)
				after(500 * time.Millisecond)
				began := time.Now()
				if err := k.end(); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took > 2*time.Second { // time for the deliveries to return to the queue
					t.Errorf("Consume returned after %v, want at most 2s", took)
				}
				after(time.Minute)
				m.Holds("q", 1, 0)
				m.hasConsumers("q", 0)
			})
		})
	}
}

// A consumer that has never run gives up if the broker refuses its login for several seconds, but survives a short
// refusal.
func TestRefusedConnection(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.RefuseLogins()
		began := time.Now()
		err := c.Consume(t.Context(), "q", nothing)
		ae, ok := errors.AsType[*amqp.Error](err)
		if took := time.Since(began); !ok || ae.Code != amqp.AccessRefused || took < 2*time.Second || took > 10*time.Second {
			t.Errorf("Consume returned %v after %v, want ACCESS_REFUSED after 2s to 10s", err, took)
		}
	})
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		undo := m.RefuseLogins()
		k := c.consume("q", nothing)
		after(time.Second)
		undo()
		after(time.Minute)
		m.hasConsumers("q", 1)
		k.stop()
	})
}

// While a destination is checked again, a consumer of its queue can start, even if the check gets no answer.
func TestConsumeWhileItsQueueIsChecked(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{RecheckInterval: time.Second})
		c.mustSend(amqpx.Message{Queue: "q"})
		after(2 * time.Second)
		// The declaration gets no answer. Then the broker blocks the connection, on which the client has published, and no
		// longer reads from it.
		undo := m.Lose("queue.declare", "q")
		c.mustSend(amqpx.Message{Queue: "q"})
		after(0)
		undo()
		m.Block("memory")
		var got collector
		k := c.consume("q", got.handle)
		after(20 * time.Second)
		if n := len(got.all()); n != 2 {
			t.Errorf("%d messages were handled within 20 s, want 2", n)
		}
		k.stop()
	})
}
