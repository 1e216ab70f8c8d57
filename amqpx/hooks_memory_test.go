package amqpx_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// ways records the destination of each sent message and, if its context comes from a handler, the id of the message
// that was handled.
type ways struct {
	header string // value of a header that is added to each message

	mu    sync.Mutex
	went  []string
	tries int // number of tries of the last send
}

type handlerOf struct{}

func (w *ways) hook() amqpx.Hook {
	return amqpx.Hook{
		SendStart: func(ctx context.Context, _ amqpx.Message, added amqp.Table) context.Context {
			added["added"] = w.header
			return ctx
		},
		SendEnd: w.sendEnd,
		HandleStart: func(ctx context.Context, d *amqpx.Delivery) context.Context {
			return context.WithValue(ctx, handlerOf{}, d.ID)
		},
	}
}

func (w *ways) sendEnd(ctx context.Context, e amqpx.SendEnd) {
	went := e.Destination.Queue
	if went == "" {
		went = e.Destination.Exchange + ":" + e.Destination.RoutingKey
	}
	if id, ok := ctx.Value(handlerOf{}).(string); ok {
		went += " for " + id
	}
	if e.Err != nil {
		went += " failed"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.went, w.tries = append(w.went, went), e.Tries
}

func (w *ways) lastTries() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tries
}

// SendEnd gets the destination of each message. For a retry or a dead letter, its context comes from the failed
// handler.
func TestHooksSeeWhereMessagesGo(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		w := &ways{}
		c := m.open(amqpx.Config{Hooks: []amqpx.Hook{w.hook()}})
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			_ = c.Consume(ctx, "orders", func(_ context.Context, d *amqpx.Delivery) error {
				if d.Attempt == 1 {
					return errors.New("again")
				}
				return amqpx.Reject(errors.New("never"))
			})
		}()
		c.mustSend(amqpx.Message{ID: "a", Queue: "orders", Delay: time.Second})
		after(time.Minute)
		_ = c.Send(ctx, amqpx.Message{Exchange: "events", RoutingKey: "paid", Delay: -1})
		_ = c.SendBatch(ctx, []amqpx.Message{{Queue: "other"}, {Queue: "invalid", Delay: -1}})
		stop()
		after(time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		want := []string{"orders", "orders for a", "orders.dead for a", "events:paid failed", "other failed", "invalid failed"}
		if !slices.Equal(w.went, want) {
			t.Errorf("messages were sent to %q, want %q", w.went, want)
		}
	})
}

// Headers that a hook adds never make the client refuse a message.
func TestHooksMakeNoMessageTooLarge(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		w := &ways{header: string(make([]byte, 200<<10))}
		c := m.open(amqpx.Config{Hooks: []amqpx.Hook{w.hook()}})
		msg := amqpx.Message{Queue: "orders", Headers: amqp.Table{"own": "kept"}}
		c.mustSend(msg)
		if err := c.SendBatch(t.Context(), []amqpx.Message{msg}); err != nil {
			t.Fatal(err)
		}
		for _, got := range m.State("orders").Messages {
			if _, added := got.Headers["added"]; added || got.Headers["own"] != "kept" {
				t.Errorf("the delivery: got the headers %v, want only the message's own header", got.Headers)
			}
		}
		m.Holds("orders", 2, 0)
	})
}

// If a hook adds a header of a type that AMQP does not support, or one that is too large, only that header is dropped.
func TestHooksDropOnlyUnsendableHeaders(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		w := &ways{header: string(make([]byte, 200<<10))}
		impossible := amqpx.Hook{SendStart: func(ctx context.Context, _ amqpx.Message, added amqp.Table) context.Context {
			added["trace"], added["impossible"] = "kept", struct{}{}
			return ctx
		}}
		c := m.open(amqpx.Config{Hooks: []amqpx.Hook{w.hook(), impossible}})
		c.mustSend(amqpx.Message{Queue: "orders", Headers: amqp.Table{"own": "kept"}})
		got := m.State("orders").Messages[0].Headers
		_, large := got["added"]
		_, bad := got["impossible"]
		if large || bad || got["own"] != "kept" || got["trace"] != "kept" {
			t.Errorf("the delivery: got the headers %v, want only own and trace", got)
		}
	})
}

func TestSendEndCountsTries(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		w := &ways{}
		c := m.open(amqpx.Config{Hooks: []amqpx.Hook{w.hook()}})
		c.mustSend(amqpx.Message{Queue: "orders", Delay: time.Second})
		if n := w.lastTries(); n != 1 {
			t.Errorf("a message that was confirmed immediately had %d tries, want 1", n)
		}
		accept := m.refuseDelays()
		sent := c.sending(amqpx.Message{Queue: "orders", Delay: time.Second})
		accept()
		if err := <-sent; err != nil || w.lastTries() < 2 {
			t.Errorf("a message that was refused first had %d tries, error %v, want at least 2 and no error", w.lastTries(), err)
		}
	})
}
