package amqpx_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// If a confirm is lost together with its connection, the outcome of a message is unknown. The message is sent again
// with its id, and arrives at least once.
func TestAConfirmIsLost(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.mustSend(amqpx.Message{ID: "first", Queue: "q"})
		m.CutAt("basic.ack", 1)
		c.mustSend(amqpx.Message{ID: "twice", Queue: "q"})
		if ids := m.IDs("q"); !slices.Equal(ids, []string{"first", "twice", "twice"}) {
			t.Errorf(`messages in the queue: got %q, want ["first" "twice" "twice"]`, ids)
		}
		m.Lose("basic.ack", "")
		if err := c.Send(m.within(5*time.Second), amqpx.Message{Queue: "q"}); !errors.Is(err, amqpx.ErrOutcomeUnknown) {
			t.Errorf("a send without a confirm: got %v, want ErrOutcomeUnknown", err)
		}
	})
}

// A full queue with the overflow reject-publish refuses messages with a nack, and the error at the deadline says so.
func TestNackIsInTheError(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{SendTimeout: 5 * time.Second})
		undo := m.Nack("orders")
		msg := amqpx.Message{Queue: "orders"}
		for name, send := range map[string]func() error{
			"Send":      func() error { return c.Send(t.Context(), msg) },
			"SendBatch": func() error { return c.SendBatch(t.Context(), []amqpx.Message{msg}) },
		} {
			if err := send(); !errors.Is(err, amqpx.ErrNacked) || !errors.Is(err, amqpx.ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: got %v, want amqpx.ErrNacked, amqpx.ErrNotSent and context.DeadlineExceeded", name, err)
			}
		}
		time.AfterFunc(time.Second, undo)
		if err := c.Send(t.Context(), msg); err != nil {
			t.Errorf("Send to a queue that accepts messages again: got %v, want no error", err)
		}
	})
}

func TestHeadersThatABrokerDelaysBy(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		h := amqp.Table{"x-opt-delivery-time": time.Now().Add(time.Hour).UnixMilli(), "x-opt-delivery-delay": int64(5000), "x-delay": int64(5), "mine": "kept"}
		c.mustSend(amqpx.Message{Queue: "q", Headers: h})
		m.Holds("q", 1, 0)
		headers := m.State("q").Messages[0].Headers
		for name := range headers {
			if strings.HasPrefix(name, "x-") {
				t.Errorf("the message has the header %s, want none that starts with x-", name)
			}
		}
		if headers["mine"] != "kept" {
			t.Errorf(`the message: got the headers %v, want mine = "kept"`, headers)
		}
	})
}

// A message that would block all other messages in its delay queue is refused. A retry of such a message continues with
// a lower priority.
func TestPriorityBefore43(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: time.Second, Priority: 9})
		me, ok := errors.AsType[*amqpx.MessageError](err)
		if !ok || me.Field != "Priority" || !strings.Contains(err.Error(), "RabbitMQ 4.0.5") || !errors.Is(err, amqpx.ErrNotSent) {
			t.Errorf("Send with a delay and a priority: got %v, want a *MessageError about the priority that names the broker", err)
		}
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: time.Second, Priority: 4}); err != nil {
			t.Errorf("Send with priority 4: got %v, want no error", err)
		}
		if err := c.Send(t.Context(), amqpx.Message{Queue: "retried", Priority: 9}); err != nil {
			t.Errorf("Send with priority 9 and no delay: got %v, want no error", err)
		}
		got := collector{answer: func(d *amqpx.Delivery) error {
			if d.Attempt == 1 {
				return errors.New("not yet")
			}
			return nil
		}}
		k := c.consume("retried", got.handle)
		after(time.Hour)
		if attempts := got.attempts(); !slices.Equal(attempts, []int{1, 2}) {
			t.Errorf("the message was handled in the attempts %v, want [1 2]", attempts)
		}
		k.stop()
	})
}
