package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// evil is an error that panics in the method whose name is in the field in. A nil pointer panics in every method.
type evil struct{ in string }

func (e *evil) panics(method string) {
	if e.in == method {
		panic("evil " + method)
	}
}

func (e *evil) Error() string { e.panics("Error"); return "evil" }
func (e *evil) Is(error) bool { e.panics("Is"); return false }
func (e *evil) As(any) bool   { e.panics("As"); return false }
func (e *evil) Unwrap() error { e.panics("Unwrap"); return nil }

// fickle is an error whose text can be read only once.
type fickle struct{ asked *bool }

func (e fickle) Error() string {
	if *e.asked {
		panic("asked again")
	}
	*e.asked = true
	return "fickle"
}

// A panic in a handler, or later while its error is processed, becomes the error of the attempt, and affects no other
// message.
func TestPanicsAffectOneMessage(t *testing.T) {
	asked := false
	for name, c := range map[string]struct {
		err    error
		panics any
		opts   []amqpx.ConsumeOption
		says   string // part of the dead letter's error
	}{
		"the handler":          {panics: "oh no", says: "handler panicked: oh no"},
		"with an evil error":   {panics: &evil{"Error"}, says: "handler panicked: "},
		"a typed nil":          {err: (*evil)(nil), says: "error of the handler panicked: runtime error"},
		"Error":                {err: &evil{"Error"}, says: "evil Error"},
		"As":                   {err: &evil{"As"}, says: "evil As"},
		"Unwrap":               {err: &evil{"Unwrap"}, says: "evil Unwrap"},
		"a wrapped typed nil":  {err: amqpx.RetryIn(time.Second, (*evil)(nil)), says: "panicked"},
		"a rejected typed nil": {err: amqpx.Reject((*evil)(nil)), says: "panicked"},
		"only later":           {err: fickle{&asked}, says: "fickle"},
		"the back-off": {err: errors.New("no"), says: "no", opts: []amqpx.ConsumeOption{
			amqpx.WithBackoff(func(*amqpx.Delivery, error) time.Duration { panic("back-off") }),
		}},
		"a middleware": {says: "late", opts: []amqpx.ConsumeOption{
			amqpx.WithMiddleware(func(next amqpx.Handler) amqpx.Handler {
				return func(ctx context.Context, d *amqpx.Delivery) error {
					if d.ID == "bad" {
						defer func() { panic("late") }()
					}
					return next(ctx, d)
				}
			}),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				cl := m.open(amqpx.Config{})
				got := collector{answer: func(d *amqpx.Delivery) error {
					if d.ID != "bad" {
						return nil
					}
					asked = false
					if c.panics != nil {
						panic(c.panics)
					}
					return c.err
				}}
				opts := append([]amqpx.ConsumeOption{}, c.opts...)
				opts = append(opts, amqpx.WithConcurrency(1), amqpx.WithRetry(topology.Retry{MaxAttempts: 2}))
				k := cl.consume("q", got.handle, opts...)
				cl.mustSend(amqpx.Message{ID: "bad", Queue: "q"}, amqpx.Message{ID: "good", Queue: "q"})
				after(time.Minute)
				dead := m.State("q.dead").Messages
				if len(dead) != 1 || !strings.Contains(fmt.Sprint(dead[0].Headers[amqpx.HeaderError]), c.says) {
					t.Errorf("queue q.dead: got %v, want one dead letter whose error contains %q", dead, c.says)
				}
				if attempts := got.attempts(); len(attempts) != 3 && !amqpx.IsRejected(c.err) {
					t.Errorf("the messages were handled in the attempts %v, want two of the bad message and one of the good one", attempts)
				}
				m.Holds("q", 0, 0)
				k.stop()
			})
		})
	}
}

// panicking returns a hook whose functions panic, except HandleStart, which returns a nil context.
func panicking() amqpx.Hook {
	return amqpx.Hook{
		SendStart:       func(context.Context, amqpx.Message, amqp.Table) context.Context { panic("SendStart") },
		SendEnd:         func(context.Context, amqpx.SendEnd) { panic("SendEnd") },
		HandleStart:     func(context.Context, *amqpx.Delivery) context.Context { return nil }, // worse than a panic, because the handler would get the nil context
		HandleEnd:       func(context.Context, amqpx.HandleEnd) { panic("HandleEnd") },
		ConnectionState: func(amqpx.StateEvent) { panic("ConnectionState") },
	}
}

// A panic in a hook has no effect. A panic in the callback of SendEach does not stop the batch, but SendEach returns it
// as an error.
func TestPanicsOfHooks(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Hooks: []amqpx.Hook{panicking()}})
		got := collector{}
		k := c.consume("q", got.handle)
		c.mustSend(amqpx.Message{Queue: "q"})
		err := c.SendEach(t.Context(), make([]amqpx.Message, 0), nil)
		if !errors.Is(err, amqpx.ErrConfig) {
			t.Errorf("SendEach without a callback: got %v, want ErrConfig", err)
		}
		err = c.SendEach(t.Context(), []amqpx.Message{{Queue: "q"}, {Queue: "r"}}, func(int, error) { panic("callback") })
		if err == nil || !strings.Contains(err.Error(), "panicked: callback") {
			t.Errorf(`a callback that panics: got %v, want an error with "panicked: callback"`, err)
		}
		after(time.Second)
		if n := len(got.all()); n != 2 {
			t.Errorf("%d messages were handled, want 2", n)
		}
		m.Holds("r", 1, 0)
		k.stop()
		if err := c.Close(m.within(time.Minute)); err != nil {
			t.Errorf("Close returned %v, want nil", err)
		}
	})
}

// If a hook or another user function ends its goroutine, as t.FailNow does in a user's test, nothing else is affected.
// If the callback of SendEach does so, SendEach returns an error.
func TestFunctionsThatEndTheirGoroutine(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		var dials atomic.Int64 // each role dials in a goroutine of its own
		c := m.open(amqpx.Config{
			Hooks: []amqpx.Hook{{
				SendStart:       func(ctx context.Context, _ amqpx.Message, _ amqp.Table) context.Context { runtime.Goexit(); return ctx },
				SendEnd:         func(context.Context, amqpx.SendEnd) { runtime.Goexit() },
				HandleStart:     func(ctx context.Context, _ *amqpx.Delivery) context.Context { runtime.Goexit(); return ctx },
				HandleEnd:       func(context.Context, amqpx.HandleEnd) { runtime.Goexit() },
				ConnectionState: func(amqpx.StateEvent) { runtime.Goexit() },
			}},
			Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
				if dials.Add(1) == 1 {
					runtime.Goexit()
				}
				return m.Dial(ctx, network, addr)
			},
		})
		got := collector{answer: func(d *amqpx.Delivery) error {
			if d.Attempt == 1 {
				return errors.New("no")
			}
			return nil
		}}
		k := c.consume("q", got.handle, amqpx.WithConcurrency(1), amqpx.WithRetry(topology.Retry{MaxAttempts: 3}),
			amqpx.WithErrorPolicy(func(*amqpx.Delivery, error) error { runtime.Goexit(); return nil }),
			amqpx.WithBackoff(func(*amqpx.Delivery, error) time.Duration { runtime.Goexit(); return 0 }))
		for _, msgs := range [][]amqpx.Message{{{Queue: "q"}, {Queue: "q"}}, {{Queue: "q"}, {Queue: "r"}, {Queue: "r"}}} {
			var outcomes atomic.Int64 // groups of messages have their outcomes at the same time
			err := c.SendEach(t.Context(), msgs, func(int, error) { outcomes.Add(1); runtime.Goexit() })
			if err == nil || !strings.Contains(err.Error(), "every message was tried, but the outcome callback of SendEach ended its goroutine") {
				t.Errorf(`SendEach returned %v, want an error with "every message was tried, but the outcome callback of SendEach ended its goroutine"`, err)
			}
			if n := outcomes.Load(); n != int64(len(msgs)) {
				t.Errorf("SendEach: got %d outcomes, want %d, one for each message", n, len(msgs))
			}
		}
		c.mustSend(amqpx.Message{Queue: "q"})
		after(time.Minute)
		if n := len(got.all()); n != 2*4 {
			t.Errorf("handlers ran %d times, want 8: two attempts for each of 4 messages", n)
		}
		m.Holds("q", 0, 0)
		m.Holds("r", 2, 0)
		k.stop()
		if err := c.Close(m.within(time.Minute)); err != nil {
			t.Errorf("Close returned %v, want nil", err)
		}
	})
}

// If the configured Dial or Login function panics, the attempt to connect fails with an error.
func TestPanicsOfDialling(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		n := 0
		c, err := amqpx.Open(t.Context(), amqpx.Config{URL: m.URL(), Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if n++; n == 1 {
				panic("dial")
			}
			return m.Dial(ctx, network, addr)
		}})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		_, err = inspect.Dial(t.Context(), amqpx.Config{URL: m.URL(), Dial: m.Dial, Login: func(context.Context) (string, string, error) { panic("login") }})
		if err == nil || !strings.Contains(err.Error(), "panicked: login") {
			t.Errorf(`inspect.Dial: got %v, want an error with "panicked: login"`, err)
		}
	})
}

// A nil middleware, and a Timeout without a unit, are refused before anything is consumed.
func TestNilMiddleware(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		for _, mw := range []amqpx.Middleware{nil, func(amqpx.Handler) amqpx.Handler { return nil }} {
			if err := c.Consume(t.Context(), "q", nothing, amqpx.WithMiddleware(mw)); !errors.Is(err, amqpx.ErrConfig) {
				t.Errorf("Consume with a nil middleware: got %v, want ErrConfig", err)
			}
		}
		for _, err := range []error{
			c.Consume(t.Context(), "q", nothing, amqpx.WithMiddleware(amqpx.Timeout(30))), c.Consume(t.Context(), "q", amqpx.Timeout(30)(nothing)),
		} {
			if !errors.Is(err, amqpx.ErrConfig) || !strings.Contains(err.Error(), "Timeout") || !strings.Contains(err.Error(), "30*time.Second instead of 30") {
				t.Errorf("Consume with Timeout(30): got %v, want ErrConfig with the unit", err)
			}
		}
	})
}
