package amqpx

import (
	"context"
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"
)

type ctxKey struct{}

// SendEnd is called even for a message that is refused before it is published, and gets the error.
func TestSendHookSeesRefusedMessages(t *testing.T) {
	var ends []SendEnd
	var values []any
	c := offline(t, nil)
	c.hooks = newHooks([]Hook{{}, {
		SendStart: func(ctx context.Context, _ Message, _ amqp.Table) context.Context {
			return context.WithValue(ctx, ctxKey{}, "send")
		},
		SendEnd: func(ctx context.Context, e SendEnd) {
			ends, values = append(ends, e), append(values, ctx.Value(ctxKey{}))
		},
	}}, zap.NewNop())
	for name, send := range map[string]func() error{
		"Send":      func() error { return c.Send(t.Context(), Message{ID: "x"}) },
		"SendBatch": func() error { return c.SendBatch(t.Context(), []Message{{ID: "ok", Queue: "q"}, {ID: "x"}}) },
	} {
		ends = nil
		if err := send(); !errors.Is(err, ErrMessage) {
			t.Fatalf("%s: got the error %v, want ErrMessage", name, err)
		}
		for _, e := range ends {
			if e.Err == nil || e.ID == "" {
				t.Errorf("%s: SendEnd was called with the id %q and the error %v, want both to be set", name, e.ID, e.Err)
			}
		}
		if n := len(ends); n != map[string]int{"Send": 1, "SendBatch": 2}[name] {
			t.Errorf("%s: SendEnd was called for %d messages, want 1 for Send and 2 for SendBatch", name, n)
		}
	}
	if values[0] != "send" {
		t.Errorf(`the context of SendEnd has the value %v, want "send" from SendStart`, values[0])
	}
}

// A header that a hook adds replaces the message's header with the same name. The message's own table is unchanged,
// because many messages may share it.
func TestHooksAddHeaders(t *testing.T) {
	c := offline(t, nil)
	own := amqp.Table{"tenant": "a", "traceparent": "stale"}
	_, m := newHooks([]Hook{{SendStart: func(_ context.Context, m Message, headers amqp.Table) context.Context {
		headers["traceparent"], headers[HeaderDue] = m.ID, "not for users"
		return nil
	}}}, zap.NewNop()).sendStart(t.Context(), Message{ID: "one", Queue: "q", Headers: own})
	p, err := c.prepare(&m, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if h := p.headers(nil); h["tenant"] != "a" || h["traceparent"] != "one" || h[HeaderDue] != p.due || own["traceparent"] != "stale" {
		t.Errorf(`prepare with a hook: got the headers %v and the caller's own headers %v, want tenant = "a", traceparent = "one", HeaderDue = %v, and own headers with traceparent = "stale"`,
			h, own, p.due)
	}
}
