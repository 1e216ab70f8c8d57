package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// wantConsumer fails the test unless there is one consumer with the given state, no message waits for a handler, and
// Health reports no problem.
func (c *client) wantConsumer(state amqpx.ConsumerState) {
	c.m.Helper()
	all := c.Stats().Consumers
	if len(all) != 1 || all[0].State != state || !all[0].Oldest.IsZero() {
		c.m.Errorf("Stats: got the consumers %+v, want one that is %s and has no Oldest time", all, state)
	}
	if err := c.Health(); err != nil {
		c.m.Error(err)
	}
}

// pause pauses the consumers of q.
func (c *client) pause(mode amqpx.PauseMode) {
	c.m.Helper()
	if err := c.PauseConsuming("q", mode); err != nil {
		c.m.Error(err)
	}
}

// An unknown mode pauses nothing.
func TestPauseOfAnotherMode(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		var got collector
		c.consume("q", got.handle)
		for _, mode := range []amqpx.PauseMode{"", "handback"} {
			if err := c.PauseConsuming("q", mode); !errors.Is(err, amqpx.ErrConfig) || !strings.Contains(err.Error(), `expected "hand-back" or "keep-place"`) {
				t.Errorf(`mode %q: got %v, want amqpx.ErrConfig that lists "hand-back" and "keep-place"`, mode, err)
			}
		}
		c.mustSend(amqpx.Message{ID: "m", Queue: "q"})
		after(time.Second)
		if ids := got.ids(); len(ids) != 1 {
			t.Errorf("the messages %v were handled, want one message", ids)
		}
	})
}

// PauseConsuming refuses each queue that Consume refuses, with the same error.
func TestPauseOfAnImpossibleQueue(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Declare: amqpx.DeclareListed, Destinations: []topology.Destination{{Queue: "q"}}})
		for _, queue := range []string{"", "delay.parked", "delay.bucket.1s", "two\nlines", strings.Repeat("q", 250), "p"} {
			consumed := c.Consume(t.Context(), queue, nothing)
			paused := c.PauseConsuming(queue, amqpx.PauseKeepPlace)
			if paused == nil || consumed == nil || !strings.HasSuffix(consumed.Error(), paused.Error()) {
				t.Errorf("%q: PauseConsuming returned %v and Consume %v, want the same error from both", queue, paused, consumed)
			}
		}
		for _, queue := range []string{"q", "q.dead"} {
			if err := c.PauseConsuming(queue, amqpx.PauseKeepPlace); err != nil {
				t.Errorf("PauseConsuming of %s: got %v, want no error", queue, err)
			}
		}
	})
}

// A consumer that is paused with PauseHandBack receives nothing until it resumes. Messages that are already being
// handled are still settled.
func TestPauseHandsBack(t *testing.T) {
	inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		finish := make(chan struct{})
		handled := 0
		c.consume("q", func(context.Context, *amqpx.Delivery) error { <-finish; handled++; return nil }, amqpx.WithConcurrency(1), amqpx.WithPrefetch(10))
		for i := range 20 {
			c.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: "q"})
		}
		after(0)
		m.Holds("q", 10, 10)
		c.pause(amqpx.PauseHandBack)
		after(0)
		m.Holds("q", 19, 1) // the handler's delivery
		m.hasConsumers("q", 0)
		c.wantConsumer(amqpx.ConsumerPaused)
		close(finish)
		after(time.Hour)
		m.Holds("q", 19, 0)
		if handled != 1 {
			t.Errorf("%d messages were handled by the end of the pause, want only the one that had started before", handled)
		}
		c.pause(amqpx.PauseHandBack) // pausing twice changes nothing
		after(time.Minute)
		c.ResumeConsuming("q")
		after(time.Minute)
		m.Holds("q", 0, 0)
		c.wantConsumer(amqpx.ConsumerConsuming)
		if handled != 20 {
			t.Errorf("%d messages were handled, want 20", handled)
		}
	})
}

// A consumer that is paused with PauseKeepPlace starts no handlers. When it resumes, it continues with its buffered
// messages in order. A pause in another mode replaces this one.
func TestPauseKeepsPlace(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		var order []string
		c.consume("q", func(_ context.Context, d *amqpx.Delivery) error { order = append(order, d.ID); return nil }, amqpx.WithConcurrency(1), amqpx.WithPrefetch(3))
		after(time.Second)
		c.pause(amqpx.PauseKeepPlace)
		for i := range 5 {
			c.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: "q"})
		}
		after(time.Minute)
		m.Holds("q", 2, 3)
		m.hasConsumers("q", 1)
		c.wantConsumer(amqpx.ConsumerPaused)
		c.ResumeConsuming("q")
		after(time.Second)
		if fmt.Sprint(order) != "[0 1 2 3 4]" {
			t.Errorf("the messages were handled in the order %v, want [0 1 2 3 4]", order)
		}
		c.pause(amqpx.PauseKeepPlace)
		c.mustSend(amqpx.Message{ID: "5", Queue: "q"})
		after(time.Second)
		m.Holds("q", 0, 1)
		if n := c.Stats().Consumers[0].Waiting; n != 1 {
			t.Errorf("%d messages wait, want 1", n)
		}
		c.pause(amqpx.PauseHandBack)
		after(time.Second)
		m.Holds("q", 1, 0)
		m.hasConsumers("q", 0)
		if n := c.Stats().Consumers[0].Waiting; n != 0 {
			t.Errorf("%d messages wait in the consumer after it has handed them back, want 0", n)
		}
	})
}

// If a pause ends while there is no connection, the consumer is down, and Health reports it.
func TestPauseEndsWithoutConnection(t *testing.T) {
	for _, mode := range []amqpx.PauseMode{amqpx.PauseHandBack, amqpx.PauseKeepPlace} {
		t.Run(string(mode), func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				c := m.open(amqpx.Config{})
				c.consume("q", nothing)
				after(time.Second)
				c.pause(mode)
				after(time.Second)
				admit := m.RefuseConnections()
				m.CutConnections()
				after(time.Minute)
				c.ResumeConsuming("q")
				after(time.Second)
				if k := c.Stats().Consumers[0]; k.State != amqpx.ConsumerDown || k.Reason == "" {
					t.Errorf("Stats: got the consumer %+v, want it to be down, with a reason", k)
				}
				if err := c.Health(); err == nil || !strings.Contains(err.Error(), "consumer q: down since") {
					t.Errorf("Health: got %v, want the consumer to be down", err)
				}
				admit()
				after(time.Minute)
				c.wantConsumer(amqpx.ConsumerConsuming)
			})
		})
	}
}

// In a rolling update, a paused single active consumer stays active or is replaced by another consumer, depending on
// the mode of the pause.
func TestPauseOfASingleActiveConsumer(t *testing.T) {
	for mode, taken := range map[amqpx.PauseMode]int{amqpx.PauseKeepPlace: 0, amqpx.PauseHandBack: 4} {
		t.Run(string(mode), func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				old, fresh := m.open(amqpx.Config{}), m.open(amqpx.Config{})
				m.declareSingleActive("q")
				var byOld, byFresh int
				old.consume("q", func(context.Context, *amqpx.Delivery) error { byOld++; return nil }, amqpx.WithConcurrency(1))
				after(time.Second)
				old.pause(mode)
				fresh.consume("q", func(context.Context, *amqpx.Delivery) error { byFresh++; return nil }, amqpx.WithConcurrency(1))
				after(time.Second)
				for i := range 4 {
					old.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: "q"})
				}
				after(time.Minute)
				if byOld != 0 || byFresh != taken {
					t.Errorf("during the pause, the old consumer handled %d messages and the new one %d, want 0 and %d", byOld, byFresh, taken)
				}
				old.ResumeConsuming("q")
				after(time.Minute)
				if byOld+byFresh != 4 || byFresh != taken {
					t.Errorf("after the pause, the old consumer has handled %d messages and the new one %d, want %d and %d", byOld, byFresh, 4-taken, taken)
				}
			})
		})
	}
}

// A consumer can start while its queue is paused, and can lose its connection and stop during the pause.
func TestPauseBeforeConsume(t *testing.T) {
	for _, mode := range []amqpx.PauseMode{amqpx.PauseHandBack, amqpx.PauseKeepPlace} {
		inMemory(t, func(t *testing.T, m *memory) {
			c := m.open(amqpx.Config{})
			c.pause(mode)
			k := c.consume("q", func(context.Context, *amqpx.Delivery) error {
				t.Error("a message was handled during the pause, want none")
				return nil
			})
			c.mustSend(amqpx.Message{Queue: "q"})
			after(time.Minute)
			c.wantConsumer(amqpx.ConsumerPaused)
			m.CutConnections()
			after(time.Minute)
			c.wantConsumer(amqpx.ConsumerPaused)
			if err := k.end(); err != nil {
				t.Errorf("%s: Consume returned %v, want nil", mode, err)
			}
			after(time.Second)
			m.Holds("q", 1, 0)
		})
	}
}

func (m *memory) declareSingleActive(queue string) {
	m.Helper()
	conn, err := m.Server.Connect()
	if err != nil {
		m.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		m.Fatal(err)
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true}); err != nil {
		m.Fatal(err)
	}
}

// A consumer can be paused while it increases its prefetch for held messages by adding a broker consumer. The added one
// is cancelled as well.
func TestPauseWhilePrefetchGrows(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Latency: 20 * time.Millisecond}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Lead: 10 * time.Second})
		var got collector
		c.consume("q", got.handle, amqpx.WithPrefetch(1))
		after(time.Second)
		for i := range 8 {
			c.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: "q", Delay: 9 * time.Second})
			after(time.Duration(i) * 5 * time.Millisecond)
			c.pause(amqpx.PauseHandBack)
			after(300 * time.Millisecond)
			m.hasConsumers("q", 0)
			c.ResumeConsuming("q")
			after(300 * time.Millisecond)
		}
		after(time.Minute)
		if n := len(got.all()); n != 8 {
			t.Errorf("%d messages were handled, want 8", n)
		}
	})
}
