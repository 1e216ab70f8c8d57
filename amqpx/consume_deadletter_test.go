package amqpx_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
)

// A deleted dead-letter queue is declared again, and all dead letters arrive in it.
func TestDeletedDeadLetterQueueComesBack(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		got := collector{answer: func(d *amqpx.Delivery) error {
			if strings.HasPrefix(d.ID, "bad") {
				return amqpx.Reject(errors.New("no"))
			}
			return nil
		}}
		k := c.consume("q", got.handle)
		c.mustSend(amqpx.Message{ID: "good", Queue: "q"}) // later messages do not check the queue again
		m.Delete("q.dead")
		for i := range 20 {
			c.mustSend(amqpx.Message{ID: fmt.Sprint("bad", i), Queue: "q"})
		}
		after(time.Minute)
		m.Holds("q.dead", 20, 0)
		if n := m.Publishes(""); n > 100 {
			t.Errorf("the client published %d messages for 20 dead letters, want at most 100", n)
		}
		k.stop()
	})
}

// A missing dead-letter queue, or a delay queue that accepts nothing, blocks the messages that need it but no handler.
// The client tries to send them at growing intervals, and logs the problem once a minute.
func TestNoPlaceForAFailedMessage(t *testing.T) {
	for name, trouble := range map[string]struct {
		begin   func(m *memory) (undo func())
		fail    func(error) error
		arrived func(m *memory) int
	}{
		"dead letter": {func(m *memory) func() {
			m.Delete("q.dead")
			return m.Deny("", amqptest.PermissionConfigure, `^q\.dead$`)
		}, amqpx.Reject, func(m *memory) int { return m.State("q.dead").Ready }},
		"retry": {(*memory).refuseDelays, func(err error) error { return amqpx.RetryIn(time.Hour, err) }, (*memory).delayed},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				c, o := m.watched(amqpx.Config{})
				got := collector{answer: func(d *amqpx.Delivery) error {
					if d.ID == "bad" {
						return trouble.fail(errors.New("no"))
					}
					return nil
				}}
				k := c.consume("q", got.handle, amqpx.WithConcurrency(1))
				c.mustSend(amqpx.Message{ID: "first", Queue: "q"})
				undo := trouble.begin(m)
				c.mustSend(amqpx.Message{ID: "bad", Queue: "q"}, amqpx.Message{ID: "good", Queue: "q"})
				after(time.Second)
				if ids := got.ids(); !slices.Equal(ids, []string{"first", "bad", "good"}) {
					t.Errorf("while another message was stuck, the messages %v were handled, want [first bad good]", ids)
				}
				before := o.saw().sends
				after(10 * time.Minute)
				if n := o.saw().sends - before; n > 170 {
					t.Errorf("the stuck message was sent %d times in ten minutes, want at most 170", n)
				}
				if n := o.log.FilterLevelExact(zap.WarnLevel).Len(); n > 13 {
					t.Errorf("the client logged %d warnings in ten minutes, want at most 13", n)
				}
				undo()
				after(time.Minute)
				if n := trouble.arrived(m); n != 1 {
					t.Errorf("%d messages arrived, want 1", n)
				}
				k.stop()
			})
		})
	}
}

// A message that has returned to its queue more than 200 times is dead-lettered without being handled. A message that
// has returned less often, for example because an operator peeked at it, is handled.
func TestPoison(t *testing.T) {
	for looks, want := range map[int]string{100: "handled", 201: "q.dead"} {
		t.Run(want, func(t *testing.T) {
			inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
				c := m.open(amqpx.Config{})
				c.mustSend(amqpx.Message{ID: "m", Queue: "q"})
				for range looks {
					d, ok, err := m.Channel().Get("q", false)
					if err != nil || !ok {
						t.Fatalf("basic.get: got a message: %t, error %v, want a message and no error", ok, err)
					}
					if err := d.Nack(false, true); err != nil {
						t.Fatal(err)
					}
				}
				var got collector
				k := c.consume("q", got.handle)
				after(time.Second)
				k.stop()
				handled, dead := len(got.all()), m.State("q.dead").Messages
				if want == "handled" {
					if handled != 1 || len(dead) != 0 {
						t.Errorf("the message was handled %d times, and the dead letters are %v, want once and no dead letters", handled, dead)
					}
					return
				}
				if handled != 0 || len(dead) != 1 || dead[0].Headers[amqpx.HeaderReason] != inspect.ReasonDeliveries {
					t.Errorf("the message was handled %d times, and the dead letters are %v, want 0, and one dead letter with the reason \"deliveries\"",
						handled, dead)
				}
			})
		})
	}
}

// A delivery count that a publisher wrote does not dead-letter a message, whether or not the queue replaces the count.
func TestForgedDeliveryCount(t *testing.T) {
	for _, kind := range []string{"classic", "quorum"} {
		for _, redelivered := range []bool{false, true} {
			t.Run(fmt.Sprint(kind, redelivered), func(t *testing.T) {
				inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
					m.Declare("q", amqp.Table{"x-queue-type": kind})
					for range 2 { // two identical messages without ids
						m.Publish("", "q", amqp.Publishing{Headers: amqp.Table{"x-delivery-count": int64(500)}})
					}
					if redelivered {
						if d, ok, err := m.Channel().Get("q", false); err != nil || !ok || d.Nack(true, true) != nil {
							t.Fatalf("basic.get: got a message: %t, error %v, want a message that can be requeued", ok, err)
						}
					}
					c := m.open(amqpx.Config{})
					var got collector
					k := c.consume("q", got.handle)
					after(time.Minute)
					k.stop()
					m.Holds("q", 0, 0)
					if n := len(got.all()); n != 2 {
						t.Errorf("%d messages were handled and %d were dead-lettered, want 2 and 0", n, len(m.State("q.dead").Messages))
					}
				})
			})
		}
	}
}
