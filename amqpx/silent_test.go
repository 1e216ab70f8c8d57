package amqpx_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
)

// silencer simulates a broker that, once it is switched on, accepts everything and answers nothing.
type silencer struct {
	on   atomic.Bool
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Dial can be used as Config.Dial.
func (s *silencer) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := s.dial(ctx, network, addr)
	return &silentConn{c, s}, err
}

type silentConn struct {
	net.Conn
	of *silencer
}

func (c *silentConn) Read(p []byte) (n int, err error) {
	for n, err = c.Conn.Read(p); err == nil && c.of.on.Load(); n, err = c.Conn.Read(p) {
	}
	return n, err
}

func (c *silentConn) Write(p []byte) (int, error) {
	if c.of.on.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// inSilence runs a test with a client whose broker can be made to hang. The test runs twice, without and with
// heartbeats from the hanging broker.
func inSilence(t *testing.T, test func(t *testing.T, m *memory, c *client, hang func())) {
	t.Helper()
	for _, name := range []string{"dead", "heartbeats only"} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				s := &silencer{dial: m.Dial}
				c, err := amqpx.Open(t.Context(), amqpx.Config{URL: m.URL(), Dial: s.Dial, SendTimeout: time.Hour})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close(m.within(0)) })
				test(t, m, &client{c, m}, func() {
					if name == "dead" {
						s.on.Store(true)
						return
					}
					m.Control(func(amqptest.Frame) amqptest.Action { return amqptest.Action{Drop: true} })
				})
			})
		})
	}
}

// If the broker does not answer, a consumer without running handlers still stops quickly.
func TestEndOnASilentBroker(t *testing.T) {
	inSilence(t, func(t *testing.T, _ *memory, c *client, hang func()) {
		c.mustSend(amqpx.Message{Queue: "q"}, amqpx.Message{Queue: "other"})
		patient, hasty := c.consume("q", nothing), c.consume("other", nothing, amqpx.WithDrainTimeout(time.Second))
		hang()
		for k, most := range map[*consumer]time.Duration{patient: 2 * time.Second, hasty: time.Second} {
			began := time.Now()
			if err := k.end(); err != nil || time.Since(began) > most {
				t.Errorf("Consume returned %v after %v, want nil within %v", err, time.Since(began), most)
			}
		}
	})
}

// If the broker does not answer, Close returns when its context expires.
func TestCloseOnASilentBroker(t *testing.T) {
	for name, begin := range map[string]func(c *client){
		"at rest": func(*client) {},
		"sending": func(c *client) { c.sending(amqpx.Message{Queue: "q"}) },
		"requeueing": func(c *client) {
			go func() {
				_, _ = inspect.Requeue(context.Background(), c.Client, inspect.RequeueOptions{Queue: "q.dead"})
			}()
		},
		"declaring": func(c *client) { c.sending(amqpx.Message{Queue: "new"}) },
	} {
		t.Run(name, func(t *testing.T) {
			inSilence(t, func(t *testing.T, m *memory, c *client, hang func()) {
				c.mustSend(amqpx.Message{Queue: "q"})
				k := c.consume("q", nothing)
				hang()
				begin(c)
				after(time.Second)
				began := time.Now()
				err := c.Close(m.within(time.Second))
				if left, ok := errors.AsType[*amqpx.CloseError](err); err != nil && (!ok || left.Unconfirmed == 0) || time.Since(began) > 1500*time.Millisecond {
					t.Errorf("Close returned %v after %v, want nil or a *CloseError with unconfirmed messages within 1.5s", err, time.Since(began))
				}
				if err := <-k.result; err != nil {
					t.Errorf("Consume returned %v, want nil", err)
				}
			})
		})
	}
}

// If the broker does not answer, Health lists the connections, the consumers and every queue with unconfirmed messages.
// If only one queue does not confirm, Health lists only that queue.
func TestHealthOfASilentBroker(t *testing.T) {
	inSilence(t, func(t *testing.T, m *memory, c *client, hang func()) {
		for _, q := range []string{"a", "b"} {
			c.mustSend(amqpx.Message{Queue: q, Delay: time.Hour})
			c.consume(q, nothing)
		}
		undo := m.Silence("delay.bucket.1m")
		c.sending(amqpx.Message{Queue: "a", Delay: time.Minute})
		after(3 * time.Second)
		c.unwell("queue delay.bucket.1m stuck")
		undo()
		after(time.Second)
		c.healthy()
		hang()
		c.sending(amqpx.Message{Queue: "a", Delay: time.Second})
		c.sending(amqpx.Message{Queue: "b", Delay: time.Hour})
		after(3 * time.Second)
		c.unwell("publish silent", "consume silent", "queue delay.bucket.1h stuck", "queue delay.bucket.1s stuck", "consumer a silent", "consumer b silent")
	})
}

// If the broker does not answer, a paused consumer without running handlers still stops quickly.
func TestEndOfAPauseOnASilentBroker(t *testing.T) {
	inSilence(t, func(t *testing.T, _ *memory, c *client, hang func()) {
		k := c.consume("q", nothing)
		c.mustSend(amqpx.Message{Queue: "q", Delay: time.Hour})
		after(time.Second)
		hang()
		c.pause(amqpx.PauseHandBack)
		after(100 * time.Millisecond)
		began := time.Now()
		if err := k.end(); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("Consume returned %v after %v, want nil within 2s", err, time.Since(began))
		}
	})
}

// If the broker does not answer, a consumer whose renewed messages are unconfirmed still stops quickly.
func TestEndWhileRenewing(t *testing.T) {
	inSilence(t, func(t *testing.T, m *memory, c *client, hang func()) {
		m.declareOwn("q", nil)
		k := c.consume("q", nothing, amqpx.WithDrainTimeout(time.Second))
		due := time.Now().Add(30 * time.Second)
		m.Publish("", "q", amqp.Publishing{MessageId: "x", Timestamp: time.Now(), Headers: amqp.Table{
			amqpx.HeaderDue: due.UnixMilli(), header.Lead: int64(30000),
		}})
		after(time.Second)
		m.Silence("")
		m.CutConnections()
		after(time.Second)
		hang()
		began := time.Now()
		if err := k.end(); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("Consume returned %v after %v, want nil within 2s", err, time.Since(began))
		}
	})
}
