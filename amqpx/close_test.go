package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Close stops consumers and refuses later calls. When its context expires, its error lists the messages that were not
// confirmed.
func TestClose(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		k := c.consume("q", nothing)
		c.mustSend(amqpx.Message{Queue: "q"}, amqpx.Message{Queue: "other"})
		m.Silence("q")
		c.sending(amqpx.Message{Queue: "q"}) // written to the connection
		m.Block("for ever")
		c.sending(amqpx.Message{Queue: "other"}) // blocks the connection
		waiting := c.sending(amqpx.Message{Queue: "other"})
		for range 2 {
			err := c.Close(m.within(time.Second))
			left, ok := errors.AsType[*amqpx.CloseError](err)
			if !ok || left.Unconfirmed != 3 || len(left.Messages) != 3 || !errors.Is(err, context.DeadlineExceeded) ||
				!errors.Is(err, amqpx.ErrOutcomeUnknown) || !errors.Is(err, amqpx.ErrNotSent) {
				t.Errorf("Close returned %v, want a *CloseError with two messages that were written and one that was not", err)
			}
		}
		if err := <-k.result; err != nil {
			t.Errorf("Consume returned %v, want nil", err)
		}
		if err := <-waiting; !errors.Is(err, amqpx.ErrClosed) {
			t.Errorf("a waiting send returned %v, want amqpx.ErrClosed", err)
		}
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q"}); !errors.Is(err, amqpx.ErrClosed) {
			t.Errorf("a later send: got %v, want amqpx.ErrClosed", err)
		}
		if err := c.Consume(t.Context(), "q", nothing); !errors.Is(err, amqpx.ErrClosed) {
			t.Errorf("a later consumer: got %v, want amqpx.ErrClosed", err)
		}
	})
}

// Close stops a consumer that is starting, one that waits for a connection, and one whose handler ignores its context.
func TestCloseEndsConsumers(t *testing.T) {
	for name, begin := range map[string]func(m *memory) (bound time.Duration){
		"starting":  func(m *memory) time.Duration { m.Delay("basic.consume", "q", time.Hour); return 5 * time.Second },
		"refused":   func(m *memory) time.Duration { m.RefuseConnections(); return 0 },
		"no answer": func(m *memory) time.Duration { m.Lose("queue.declare", "q"); return 5 * time.Second },
		"deaf":      func(*memory) time.Duration { return 40 * time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				c := m.open(amqpx.Config{})
				c.mustSend(amqpx.Message{Queue: "q"})
				bound := begin(m)
				done := make(chan struct{})
				k := c.consume("q", func(context.Context, *amqpx.Delivery) error {
					<-done
					return errors.New("at last")
				})
				after(time.Second)
				began := time.Now()
				if err := c.Close(t.Context()); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took > bound {
					t.Errorf("Close took %v, want at most %v", took, bound)
				}
				err := <-k.result
				if name == "deaf" != errors.Is(err, amqpx.ErrDrainTimeout) || name != "deaf" && err != nil {
					t.Errorf("Consume returned %v, want ErrDrainTimeout if the handler ignores its context, and otherwise nil", err)
				}
				close(done)
			})
		})
	}
}

// Close does not wait for a broker that is gone, whether or not the client has noticed.
func TestCloseWithoutABroker(t *testing.T) {
	for _, gone := range []time.Duration{0, time.Minute} {
		inMemory(t, func(t *testing.T, m *memory) {
			c := m.open(amqpx.Config{})
			c.mustSend(amqpx.Message{Queue: "q"})
			m.Close()
			<-time.After(gone)
			began := time.Now()
			if err := c.Close(t.Context()); err != nil || time.Since(began) > 5*time.Second {
				t.Errorf("Close returned %v after %v, want nil within 5s", err, time.Since(began))
			}
		})
	}
}

// Close waits for the confirms of messages that are being sent, and accepts no new ones.
func TestCloseWaitsForConfirms(t *testing.T) {
	for name, send := range map[string]func(c *client) error{
		"one": func(c *client) error { return c.Send(c.m.Context(), amqpx.Message{ID: "late", Queue: "q"}) },
		"batch": func(c *client) error {
			return c.SendBatch(c.m.Context(), []amqpx.Message{{ID: "late", Queue: "q"}, {ID: "later", Queue: "other"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				c := m.open(amqpx.Config{})
				c.mustSend(amqpx.Message{Queue: "q"}, amqpx.Message{Queue: "other"})
				undo := m.Silence("q")
				sent, closed := make(chan error, 1), make(chan error, 1)
				go func() { sent <- send(c) }()
				synctest.Wait()
				go func() { closed <- c.Close(m.within(time.Minute)) }()
				after(time.Second)
				if err := c.Send(t.Context(), amqpx.Message{Queue: "other"}); !errors.Is(err, amqpx.ErrClosed) || !errors.Is(err, amqpx.ErrNotSent) {
					t.Errorf("a send while the client closes: got %v, want ErrClosed and ErrNotSent", err)
				}
				err := c.SendBatch(t.Context(), []amqpx.Message{{Queue: "other"}, {Queue: "q"}})
				if failed, ok := errors.AsType[*amqpx.BatchError](err); !ok || len(failed.Failed) != 2 || !errors.Is(err, amqpx.ErrClosed) {
					t.Errorf("a batch while the client closes: got %v, want two failures with ErrClosed", err)
				}
				select {
				case err := <-closed:
					t.Fatalf("Close returned %v before the broker confirmed the message, want it to wait", err)
				default:
				}
				undo()
				if err := errors.Join(<-sent, <-closed); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// If a send fails because of its own deadline while the client closes, only its caller gets an error.
func TestCloseWaitsForDeadlines(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{SendTimeout: 5 * time.Second})
		m.Block("for ever")
		c.sending(amqpx.Message{Queue: "q"}) // blocks the connection
		sent := c.sending(amqpx.Message{Queue: "q"})
		if err := c.Close(t.Context()); err != nil {
			t.Errorf("Close returned %v, want nil", err)
		}
		if err := <-sent; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Send whose deadline passes during Close: got %v, want context.DeadlineExceeded", err)
		}
	})
}

// Handlers can send until they return. The error from Close counts the handlers that outlast its context.
func TestCloseWithHandlers(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		release := make(chan struct{})
		c.consume("in", func(ctx context.Context, _ *amqpx.Delivery) error {
			<-release
			return c.Send(ctx, amqpx.Message{ID: "out", Queue: "out"})
		})
		c.mustSend(amqpx.Message{Queue: "in"})
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- c.Close(t.Context()) }()
		after(time.Second)
		close(release)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		m.Holds("out", 1, 0)
		m.Holds("in", 0, 0)
	})
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		release := make(chan struct{})
		k := c.consume("in", func(context.Context, *amqpx.Delivery) error { <-release; return nil })
		c.mustSend(amqpx.Message{Queue: "in"}, amqpx.Message{Queue: "in"})
		synctest.Wait()
		left, ok := errors.AsType[*amqpx.CloseError](c.Close(m.within(time.Second)))
		if !ok || left.Handlers != 2 || left.Unconfirmed != 0 {
			t.Errorf("Close returned %v, want a *CloseError with 2 handlers and no unconfirmed messages", left)
		}
		const beyond = "2 handlers of queue in were still running after the end of Close's context; "
		switch err := <-k.result; {
		case !errors.Is(err, amqpx.ErrDrainTimeout):
			t.Errorf("Consume returned %v, want %v", err, amqpx.ErrDrainTimeout)
		case !strings.Contains(err.Error(), beyond):
			t.Errorf("Consume returned %v, want an error with %q", err, beyond)
		}
		close(release)
	})
}

// If the broker restarts while Close waits for handlers, the unconfirmed messages and those that the handlers send are
// still delivered.
func TestCloseWhileTheBrokerRestarts(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.mustSend(amqpx.Message{Queue: "q"}, amqpx.Message{ID: "fails", Queue: "in"}, amqpx.Message{ID: "sends", Queue: "in"})
		release := make(chan struct{})
		k := c.consume("in", func(ctx context.Context, d *amqpx.Delivery) error {
			<-release
			if d.ID == "fails" {
				return errors.New("no")
			}
			return c.Send(ctx, amqpx.Message{ID: "out", Queue: "new"})
		})
		undo := m.Silence("q")
		inFlight := c.sending(amqpx.Message{ID: "late", Queue: "q"})
		closed := make(chan error, 1)
		go func() { closed <- c.Close(t.Context()) }()
		after(time.Second)
		up := m.RefuseConnections()
		m.CutConnections()
		after(5 * time.Second)
		up()
		undo()
		if err := <-inFlight; err != nil {
			t.Errorf("Send of the message in flight returned %v, want nil", err)
		}
		close(release)
		if err := errors.Join(<-closed, <-k.result); err != nil {
			t.Error(err)
		}
		m.Holds("new", 1, 0)
		m.Holds("in", 2, 0) // neither message could be acknowledged
		m.Holds("in.dead", 0, 0)
	})
}

// When the context of any call to Close expires, all calls stop waiting.
func TestSecondCloseEndsTheFirst(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{SendTimeout: time.Hour})
		m.Silence("q")
		c.sending(amqpx.Message{Queue: "q"})
		first := make(chan error, 1)
		go func() { first <- c.Close(t.Context()) }()
		after(time.Minute)
		second := c.Close(m.within(0))
		if err := <-first; err == nil || !errors.Is(err, second) {
			t.Errorf("the first call returned %v, want the error of the second call: %v", err, second)
		}
	})
}

// Close counts handlers that fail because its context has expired, because their messages are delivered again. It does
// not count a handler that still succeeds.
func TestCloseReportsHandlersItCutOff(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.Silence("other")
		c.mustSend(amqpx.Message{Queue: "q"}, amqpx.Message{Queue: "p"})
		c.consume("q", func(ctx context.Context, _ *amqpx.Delivery) error {
			return c.Send(ctx, amqpx.Message{Queue: "other"})
		})
		c.consume("p", func(context.Context, *amqpx.Delivery) error { // succeeds, although it takes longer than the context
			<-time.After(1500 * time.Millisecond)
			return nil
		})
		err := c.Close(m.within(time.Second))
		left, ok := errors.AsType[*amqpx.CloseError](err)
		if !ok {
			t.Fatalf("Close returned %v, want a *CloseError", err)
		}
		if left.Handlers != 1 {
			t.Errorf("%d handlers were cut off, want 1", left.Handlers)
		}
		if left.Unconfirmed != 1 {
			t.Errorf("%d messages were not confirmed, want 1", left.Unconfirmed)
		}
		for queue, want := range map[string]int{"q": 1, "p": 0} {
			if got := m.State(queue).Ready; got != want {
				t.Errorf("%s has %d messages, want %d", queue, got, want)
			}
		}
	})
}

// The methods of a client that Open has not returned return an error that says so.
func TestClientThatWasNotOpened(t *testing.T) {
	for name, c := range map[string]*amqpx.Client{"nil": nil, "zero": {}} {
		ctx := t.Context()
		_, queueErr := c.QueueInfo(ctx, "q")
		for method, err := range map[string]error{
			"Apply":          c.Apply(ctx, topology.Topology{}),
			"Check":          c.Check(amqpx.Message{Queue: "q"}),
			"Close":          c.Close(ctx),
			"Consume":        c.Consume(ctx, "q", nothing),
			"ConsumeAll":     c.ConsumeAll(ctx),
			"Forward":        c.Forward(ctx, nil, topology.Destination{Queue: "q"}, 0),
			"Health":         c.Health(),
			"Listed":         c.Listed(topology.Destination{Queue: "q"}),
			"PauseConsuming": c.PauseConsuming("q", amqpx.PauseHandBack),
			"QueueInfo":      queueErr,
			"Send":           c.Send(ctx, amqpx.Message{Queue: "q"}),
			"SendBatch":      c.SendBatch(ctx, []amqpx.Message{{Queue: "q"}}),
			"SendEach":       c.SendEach(ctx, nil, func(int, error) {}),
		} {
			if !errors.Is(err, amqpx.ErrClosed) || !strings.Contains(fmt.Sprint(err), "use the client that amqpx.Open returned") {
				t.Errorf("%s of a %s Client: got %v, want ErrClosed and what to do", method, name, err)
			}
		}
	}
}
