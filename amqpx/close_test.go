package amqpx_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// Close ends consumers and refuses what comes after it.
func TestClose(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		k := c.consume("q", nothing)
		m.Block("for ever")
		c.sending(amqpx.Message{Queue: "q"}) // blocks the connection
		waiting := c.sending(amqpx.Message{Queue: "q"})
		for range 2 {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := <-k.result; err != nil {
			t.Errorf("the consumer ended with %v", err)
		}
		if err := <-waiting; !errors.Is(err, amqpx.ErrClosed) {
			t.Errorf("a waiting send ended with %v", err)
		}
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q"}); !errors.Is(err, amqpx.ErrClosed) {
			t.Errorf("a later send: %v", err)
		}
		if err := c.Consume(t.Context(), "q", nothing); !errors.Is(err, amqpx.ErrClosed) {
			t.Errorf("a later consumer: %v", err)
		}
	})
}

// Close ends a consumer that is starting, one that waits for a connection, and
// one whose handler is deaf.
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
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took > bound {
					t.Errorf("closed after %v, want %v at most", took, bound)
				}
				err := <-k.result
				if name == "deaf" != errors.Is(err, amqpx.ErrDrainTimeout) || name != "deaf" && err != nil {
					t.Errorf("consume: %v", err)
				}
				close(done)
			})
		})
	}
}

// Close does not wait for a broker that is gone, whether the client knows or not.
func TestCloseWithoutABroker(t *testing.T) {
	for _, gone := range []time.Duration{0, time.Minute} {
		inMemory(t, func(t *testing.T, m *memory) {
			c := m.open(amqpx.Config{})
			c.mustSend(amqpx.Message{Queue: "q"})
			m.Close()
			<-time.After(gone)
			began := time.Now()
			if err := c.Close(); err != nil || time.Since(began) > 5*time.Second {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		})
	}
}
