package amqpx_test

import (
	"context"
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

func TestQueueInfo(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		look := func(ready, consumers int) {
			t.Helper()
			got, err := c.QueueInfo(m.within(time.Second), "q")
			if want := (amqpx.QueueInfo{Ready: ready, Consumers: consumers}); err != nil || got != want {
				t.Errorf("QueueInfo = %+v, %v, want %+v and no error", got, err, want)
			}
		}
		m.Declare("q", nil)
		look(0, 0)
		for range 3 {
			m.Publish("", "q", amqp.Publishing{Body: []byte("x")})
		}
		after(time.Second)
		look(3, 0)
		// A message that was delivered to a consumer is not ready.
		if err := m.Channel().Qos(1, 0, false); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Channel().ConsumeWithContext(t.Context(), "q", "", false, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		after(time.Second)
		look(2, 1)
		// A broker that blocks publishers still answers.
		defer m.Block("low on disk")()
		look(2, 1)
	})
}

// QueueInfo returns ErrUnavailable for a queue that does not answer, instead of reporting it as empty. Requests for
// other queues still succeed.
func TestQueueInfoOfAQueueWithoutAProcess(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.Declare("q", nil)
		m.Declare("healthy", nil)
		undo := m.RefuseMethod("basic.get", "q", amqp.InternalError, "Cannot get a message from queue 'queue 'q' in vhost '/'': noproc")
		for range 3 {
			info, err := c.QueueInfo(m.within(10*time.Second), "q")
			if !errors.Is(err, amqpx.ErrUnavailable) {
				t.Errorf("QueueInfo = %+v, %v, want ErrUnavailable", info, err)
			}
			if _, err := c.QueueInfo(m.within(10*time.Second), "healthy"); err != nil {
				t.Errorf("QueueInfo of another queue: got %v, want no error", err)
			}
		}
		undo()
		if _, err := c.QueueInfo(m.within(10*time.Second), "q"); err != nil {
			t.Errorf("QueueInfo after the queue answers again: got %v, want no error", err)
		}
	})
}

func TestQueueInfoErrors(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.3.0"}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.Declare("hidden", nil)
		for _, p := range []amqptest.Permission{amqptest.PermissionConfigure, amqptest.PermissionWrite, amqptest.PermissionRead} {
			m.Cleanup(m.Deny("", p, "^hidden$"))
		}
		for queue, code := range map[string]int{"missing": amqp.NotFound, "hidden": amqp.AccessRefused} {
			_, err := c.QueueInfo(m.within(time.Second), queue)
			if ae, ok := errors.AsType[*amqp.Error](err); !ok || ae.Code != code {
				t.Errorf("QueueInfo of the %s queue: got %v, want an *amqp.Error with code %d", queue, err, code)
			}
		}
		m.Declare("q", nil)
		defer m.Lose("queue.declare", "q")()
		if _, err := c.QueueInfo(m.within(time.Second), "q"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("QueueInfo without an answer from the broker: got %v, want context.DeadlineExceeded", err)
		}
	})
}
