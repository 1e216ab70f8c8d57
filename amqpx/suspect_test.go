package amqpx_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
)

// breakQueue makes the broker close each connection that starts to consume from a queue, as RabbitMQ does if the
// queue's process is gone.
func (m *memory) breakQueue(name string) (undo func()) {
	return m.RefuseMethod("basic.consume", name, amqp.InternalError, "the queue's process is gone")
}

// If consuming from a queue makes the broker close the connection, that consumer gets a separate connection, so that
// healthy consumers keep theirs.
func TestBrokenQueueStopsNoOtherConsumer(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.mustSend(amqpx.Message{Queue: "broken"}, amqpx.Message{Queue: "healthy"})
		defer m.breakQueue("broken")()
		healthy := &collector{answer: func(*amqpx.Delivery) error {
			<-time.After(20 * time.Second)
			return nil
		}}
		first := c.consume("healthy", healthy.handle)
		second := c.consume("broken", nothing)
		after(time.Minute)
		if got := len(healthy.all()); got > 2 { // the first 541 closes the connection that both consumers share
			t.Errorf("the healthy queue's handler ran %d times, want at most twice", got)
		}
		if left := m.State("healthy"); left.Ready+left.Unacked != 0 {
			t.Errorf("%d messages in the healthy queue are not acknowledged, want 0", left.Ready+left.Unacked)
		}
		before := c.Stats().Consume.Sessions
		after(10 * time.Minute)
		if got := c.Stats().Consume.Sessions; got != before {
			t.Errorf("the healthy consumer's connection was reopened %d times, want 0", got-before)
		}
		first.stop()
		second.stop()
		if left := m.connections("consume broken"); len(left) > 0 {
			t.Errorf("after the consumer stopped, the client has the separate connections %q, want none", left)
		}
	})
}

// Health reports which consumer's queue is broken, and why, until the queue works again.
func TestHealthOfABrokenQueue(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		repair := m.breakQueue("broken")
		got := &collector{}
		k := c.consume("broken", got.handle)
		after(time.Minute)
		var health *amqpx.HealthError
		if err := c.Health(); !errors.As(err, &health) {
			t.Fatalf("Health returned %v, want a *HealthError", err)
		}
		if len(health.Problems) != 1 || health.Problems[0].Part != "consumer broken" {
			t.Errorf(`Health: got %v, want one problem, of the part "consumer broken"`, health)
		}
		if !strings.Contains(health.Error(), "closed the connection") || !strings.Contains(health.Error(), "process") {
			t.Errorf("Health: got %v, want an error that says why the broker closed the connection", health)
		}
		repair()
		after(time.Minute)
		c.mustSend(amqpx.Message{ID: "m", Queue: "broken"})
		after(time.Second)
		if err := c.Health(); err != nil {
			t.Errorf("Health after the repair: got %v, want nil", err)
		}
		if len(got.all()) != 1 {
			t.Errorf("after the repair, the messages %q were handled, want one message", got.ids())
		}
		m.CutConnections()
		after(time.Minute)
		if err := c.Health(); err != nil {
			t.Errorf("Health after a lost connection: got %v, want nil", err)
		}
		k.stop()
	})
}

// If several consumers start together and one of them makes the broker close the connection, only that one gets a
// separate connection.
func TestOneOfManyConsumersIsSuspected(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		defer m.breakQueue("broken")()
		ctx, cancel := context.WithCancel(t.Context())
		all := []amqpx.Consumer{{Queue: "broken", Handler: nothing}}
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
			all = append(all, amqpx.Consumer{Queue: name, Handler: nothing})
		}
		ended := make(chan error, 1)
		go func() { ended <- c.ConsumeAll(ctx, all...) }()
		after(time.Minute)
		if got := len(m.connections(" consume")); got != 1 {
			t.Errorf("the client has %d shared connections, want 1", got)
		}
		for _, k := range c.Stats().Consumers {
			if own := k.Connection != nil; own != (k.Queue == "broken") {
				t.Errorf("queue %s has a separate connection: got %t, want %t", k.Queue, own, !own)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A queue that does not answer delays the start of other consumers only briefly.
func TestSilentQueueDelaysNoStart(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		defer m.Lose("basic.consume", "silent")()
		silent, other := c.consume("silent", nothing), c.consume("other", nothing)
		after(5 * time.Second)
		m.hasConsumers("other", 1)
		other.stop()
		_ = silent.end()
	})
}

// Requeueing messages from a broken queue does not interrupt any consumer.
func TestRequeueOfABrokenQueueStopsNoConsumer(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		k := c.consume("healthy", nothing)
		c.mustSend(amqpx.Message{Queue: "broken"})
		after(time.Second)
		defer m.breakQueue("broken")()
		defer m.RefuseMethod("basic.get", "broken", amqp.InternalError, "the queue's process is gone")()
		before := c.Stats().Consume.Sessions
		if _, err := inspect.Requeue(t.Context(), c.Client, inspect.RequeueOptions{Queue: "broken"}); err == nil {
			t.Error("Requeue from a broken queue: got no error, want one")
		}
		after(time.Minute)
		if got := c.Stats().Consume.Sessions; got != before {
			t.Errorf("the consumer's connection was reopened %d times, want 0", got-before)
		}
		k.stop()
	})
}
