package amqpx_test

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"
	logs "go.uber.org/zap/zaptest/observer"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// A failing handler, a queue that is created and a dead letter show at the level of production.
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
			t.Errorf("lines about the new queue: %d", got)
		}
		retried := seen.FilterMessage("a handler failed; its message is tried again")
		if retried.FilterField(zap.String("id", "failed")).Len() == 0 {
			t.Error("no line about the failure before the dead letter")
		}
		for _, id := range []string{"failed", "rejected"} {
			lines := seen.FilterMessage("dead-lettered").FilterField(zap.String("id", id)).All()
			if len(lines) != 1 || lines[0].Level != zap.WarnLevel {
				t.Errorf("dead letter %s: %v", id, lines)
			}
		}
	})
}
