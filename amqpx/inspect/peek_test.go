package inspect_test

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
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/internal/inmemory"
)

// Since RabbitMQ 4.3, peeking at messages does not count towards the delivery limit and leaves every message in its
// place.
func TestPeekUsesNothing(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.3.0"}, func(t *testing.T, m *memory) {
		m.Declare("q", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(20)})
		for i := range 5 {
			m.Publish("", "q", amqp.Publishing{MessageId: fmt.Sprint(i), Body: []byte("x")})
		}
		inmemory.After(time.Second)
		conn := m.dialed(t)
		for look := range 100 {
			got, err := inspect.Peek(t.Context(), conn, "q", inspect.PeekOptions{Limit: 3})
			if err != nil || got.More != 2 || ids(got) != "0 1 2" {
				t.Fatalf("peek %d: got %s and %d more, error %v, want 0 1 2, 2 more and no error", look, ids(got), got.More, err)
			}
		}
		if got, err := inspect.Peek(t.Context(), conn, "q", inspect.PeekOptions{}); err != nil || got.More != 0 || ids(got) != "0 1 2 3 4" {
			t.Errorf(`after all peeks: got %s and %d more, error %v, want 0 1 2 3 4, 0 more and no error`, ids(got), got.More, err)
		}
	})
}

func ids(p inspect.Peeked) string {
	var list []string
	for _, m := range p.Messages {
		list = append(list, m.ID)
	}
	return strings.Join(list, " ")
}

func TestPeekRefuses(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.3.0"}, func(t *testing.T, m *memory) {
		conn := m.dialed(t)
		for _, queue := range []string{"delay.bucket.1m", "delay.route.x:y"} {
			if _, err := inspect.Peek(t.Context(), conn, queue, inspect.PeekOptions{}); !errors.Is(err, inspect.ErrPeek) {
				t.Errorf("Peek of the queue %s: got %v, want ErrPeek", queue, err)
			}
		}
		if _, err := inspect.Peek(t.Context(), conn, "q", inspect.PeekOptions{Limit: inspect.MaxPeek + 1}); err == nil {
			t.Error("Peek with a limit above MaxPeek: got no error, want one")
		}
		m.Declare("mine", nil)
		m.Cleanup(m.Deny("", amqptest.PermissionRead, "^mine$"))
		for queue, code := range map[string]int{"missing": amqp.NotFound, "mine": amqp.AccessRefused} {
			_, err := inspect.Peek(t.Context(), conn, queue, inspect.PeekOptions{})
			if ae, ok := errors.AsType[*amqp.Error](err); !ok || ae.Code != code {
				t.Errorf("Peek of the queue %s: got %v, want an *amqp.Error with code %d", queue, err, code)
			}
		}
		m.Declare("slow", nil)
		defer m.Lose("basic.get", "slow")()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := inspect.Peek(ctx, conn, "slow", inspect.PeekOptions{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Peek without an answer from the broker: got %v, want context.DeadlineExceeded", err)
		}
	})
}

// Before RabbitMQ 4.3, peeking at a message counts as a delivery. Peek therefore refuses a queue whose delivery limit
// it does not know. AMQP does not report the limit, so Peek needs the management API.
func TestPeekNeedsTheLimitBefore43(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
		m.Declare("q", amqp.Table{"x-queue-type": "quorum"})
		m.Publish("", "q", amqp.Publishing{Body: []byte("x")})
		inmemory.After(time.Second)
		if _, err := inspect.Peek(t.Context(), m.dialed(t), "q", inspect.PeekOptions{}); !errors.Is(err, inspect.ErrPeek) {
			t.Errorf("Peek without a delivery limit on RabbitMQ 4.0.5: got %v, want ErrPeek", err)
		}
		if n := m.Calls("basic.get"); n != 0 {
			t.Errorf("%d messages were read, want 0", n)
		}
	})
}

// Peek and Walk return ErrUnavailable for a queue that does not answer, instead of reporting it as empty. They wait
// only for as long as a working queue may need, because the broker itself may not respond for minutes.
func TestPeekAtAQueueThatDoesNotAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		messages int
		refuse   func(m *memory) (undo func())
		within   time.Duration
	}{
		"its process is gone":       {0, func(m *memory) func() { return m.RefuseMethod("basic.get", "q", 541, "noproc") }, 5 * time.Second},
		"it has no leader":          {0, func(m *memory) func() { return m.Lose("basic.get", "q") }, 5 * time.Second},
		"it is not counted":         {1, func(m *memory) func() { return m.Lose("queue.declare", "q") }, 10 * time.Second},
		"it had a leader until now": {1, func(m *memory) func() { return m.Lose("basic.get", "q") }, 10 * time.Second},
	} {
		for what, look := range map[string]func(ctx context.Context, conn *amqp.Connection) error{
			"peek": func(ctx context.Context, conn *amqp.Connection) error {
				_, err := inspect.Peek(ctx, conn, "q", inspect.PeekOptions{})
				return err
			},
			"walk": func(ctx context.Context, conn *amqp.Connection) error {
				_, err := inspect.Walk(ctx, conn, "q", inspect.PeekOptions{}, func(inspect.DeadLetter, int) {})
				return err
			},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				inMemoryOf(t, amqptest.Options{Version: "4.3.0"}, func(t *testing.T, m *memory) {
					m.Declare("q", amqp.Table{"x-queue-type": "quorum"})
					for range c.messages {
						m.Publish("", "q", amqp.Publishing{Body: []byte("x")})
					}
					conn := m.dialed(t)
					inmemory.After(time.Second)
					if name == "it had a leader until now" && what == "walk" { // Walk also consumes, and the broker does not answer that either
						defer m.Lose("basic.consume", "q")()
						c.within = 32 * time.Second
					}
					c.refuse(m)
					began := time.Now()
					err := look(t.Context(), conn)
					if !errors.Is(err, amqpx.ErrUnavailable) || time.Since(began) > c.within {
						t.Errorf("a queue that does not answer: got %v after %v, want amqpx.ErrUnavailable within %v", err, time.Since(began), c.within)
					}
				})
			})
		}
	}
}
