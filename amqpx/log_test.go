package amqpx_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"go.uber.org/zap"
	logs "go.uber.org/zap/zaptest/observer"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// A failing handler, the creation of a queue and a dead letter are logged at Info, the level used in production.
func TestFailuresAreLogged(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		broken := errors.New("it failed")
		core, seen := logs.New(zap.InfoLevel)
		c := m.open(amqpx.Config{Logger: zap.New(core)})
		k := c.consume("q", (&collector{answer: func(d *amqpx.Delivery) error {
			if d.ID == "rejected" {
				return amqpx.Reject(broken)
			}
			return broken
		}}).handle)
		c.mustSend(amqpx.Message{ID: "failed", Queue: "q"}, amqpx.Message{ID: "rejected", Queue: "q"})
		after(24 * time.Hour)
		k.stop()
		if got := seen.FilterMessage("created queue").FilterField(zap.String("queue", "q")).Len(); got != 1 {
			t.Errorf("lines about the new queue: got %d, want 1", got)
		}
		retried := seen.FilterMessage("a handler failed; its message is retried")
		if retried.FilterField(zap.String("id", "failed")).Len() == 0 {
			t.Errorf("lines about retries: got %v, want at least one with the id failed", retried.All())
		}
		for _, id := range []string{"failed", "rejected"} {
			lines := seen.FilterMessage("dead-lettering a message").FilterField(zap.String("id", id)).All()
			if len(lines) != 1 || lines[0].Level != zap.WarnLevel {
				t.Errorf("dead letter %s: got the lines %v, want one warning", id, lines)
			}
		}
	})
}

// renamed is a connection to a server that calls itself LavinMQ.
type renamed struct{ net.Conn }

func (c renamed) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	copy(p, bytes.ReplaceAll(p[:n], []byte("RabbitMQ"), []byte("LavinMQ2")))
	return n, err
}

// A broker that is not RabbitMQ is named in a warning.
func TestForeignBrokerIsLogged(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		core, seen := logs.New(zap.WarnLevel)
		c, err := amqpx.Open(t.Context(), amqpx.Config{
			URL: m.URL(), Logger: zap.New(core),
			Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := m.Server.Dial(ctx, network, address)
				return renamed{conn}, err
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		lines := seen.FilterMessageSnippet("the broker is not RabbitMQ").All()
		if len(lines) != 1 {
			t.Errorf("lines about the broker: got %v, want one line", seen.All())
		}
	})
}

// While the broker blocks publishers, the log reports that once, and reports no individual queues as stuck.
func TestBlockedIsNotStuck(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c, o := m.watched(amqpx.Config{})
		c.mustSend(amqpx.Message{Queue: "q"})
		undo := m.Block("low on disk")
		sent := make(chan error, 1)
		go func() { sent <- c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: time.Second}) }()
		after(20 * time.Second)
		undo()
		if err := <-sent; err != nil {
			t.Error(err)
		}
		if o.log.FilterMessage("the broker blocks publishers").Len() != 1 || o.log.FilterMessageSnippet("stopped confirming").Len() != 0 {
			t.Errorf("the log has %v, want one line about the blocked publishers and none about missing confirms", o.log.All())
		}
	})
}
