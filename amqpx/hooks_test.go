package amqpx

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"
)

type ctxKey struct{}

// recorder implements all hooks.
type recorder struct {
	sendEnds   []SendEnd
	handleEnds []HandleEnd
	values     []any
}

func (r *recorder) SendStart(ctx context.Context, m *Message) context.Context {
	m.Headers = map[string]any{"traceparent": "00-1-2-01"}
	return context.WithValue(ctx, ctxKey{}, "send")
}

func (r *recorder) SendEnd(ctx context.Context, e SendEnd) {
	r.sendEnds = append(r.sendEnds, e)
	r.values = append(r.values, ctx.Value(ctxKey{}))
}

func (r *recorder) HandleStart(ctx context.Context, _ *Delivery) context.Context {
	return context.WithValue(ctx, ctxKey{}, "handle")
}

func (r *recorder) HandleEnd(ctx context.Context, e HandleEnd) {
	r.handleEnds = append(r.handleEnds, e)
	r.values = append(r.values, ctx.Value(ctxKey{}))
}

type onlyState struct{}

func (onlyState) ConnectionState(StateEvent) {}

func TestHooksAreSortedByKind(t *testing.T) {
	h := newHooks([]Hook{&recorder{}, onlyState{}}, zap.NewNop())
	if len(h.send) != 1 || len(h.handle) != 1 || len(h.state) != 1 {
		t.Fatalf("%d send, %d handle, %d state hooks; want one of each", len(h.send), len(h.handle), len(h.state))
	}
	if isHook(struct{}{}) || !isHook(onlyState{}) {
		t.Fatal("isHook does not tell a hook")
	}
}

func TestHookIsGivenOnce(t *testing.T) {
	r := &recorder{}
	cfg := Config{URL: "amqp://127.0.0.1", Hooks: []Hook{r, onlyState{}, onlyState{}, &recorder{}, r}}.WithDefaults()
	err := cfg.Validate()
	if err == nil || !strings.Contains(err.Error(), "Hooks[4]: the same *amqpx.recorder as Hooks[0]") || strings.Count(err.Error(), "Hooks[") != 2 {
		t.Errorf("%v; expected the second of the same hook to be refused, and no other", err)
	}
}

// A message that cannot be sent ends its hook too, with the error.
func TestSendHookSeesRefusedMessages(t *testing.T) {
	r := &recorder{}
	c := offline(t, nil)
	c.hooks = newHooks([]Hook{r}, zap.NewNop())
	for name, send := range map[string]func() error{
		"Send":      func() error { return c.Send(t.Context(), Message{ID: "x"}) },
		"SendBatch": func() error { return c.SendBatch(t.Context(), []Message{{ID: "ok", Queue: "q"}, {ID: "x"}}) },
	} {
		r.sendEnds = nil
		if err := send(); !errors.Is(err, ErrMessage) {
			t.Fatalf("%s: %v", name, err)
		}
		for _, e := range r.sendEnds {
			if e.Err == nil {
				t.Errorf("%s: message %s ended without an error, although nothing was sent", name, e.ID)
			}
		}
		if n := len(r.sendEnds); n != map[string]int{"Send": 1, "SendBatch": 2}[name] {
			t.Errorf("%s: %d messages ended", name, n)
		}
	}
	if r.values[0] != "send" {
		t.Error("SendEnd does not get the context of SendStart")
	}
}

// stamper writes into the headers that it gets, as tracing libraries do.
type stamper struct{}

func (stamper) SendStart(ctx context.Context, m *Message) context.Context {
	m.Headers["traceparent"] = m.ID
	return ctx
}

func (stamper) SendEnd(context.Context, SendEnd) {}

// A hook may write into a message's headers: they are a copy, also of a map that
// many messages share, and never nil.
func TestHooksWriteIntoACopyOfTheHeaders(t *testing.T) {
	c := offline(t, nil)
	c.hooks = newHooks([]Hook{stamper{}}, zap.NewNop())
	shared := amqp.Table{"tenant": "a"}
	var senders sync.WaitGroup
	for range 8 {
		senders.Go(func() { // neither goes anywhere: a message without a destination is refused
			_ = c.Send(t.Context(), Message{ID: "one", Headers: shared})
			_ = c.SendBatch(t.Context(), []Message{{ID: "two", Headers: shared}, {ID: "three"}})
		})
	}
	senders.Wait()
	if len(shared) != 1 {
		t.Errorf("the caller's headers became %v", shared)
	}
}
