package amqpx_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// replies declares a queue, and returns the name that the broker gave it.
func (m *memory) replies(exclusive bool) string {
	m.Helper()
	q, err := m.Channel().QueueDeclare("", !exclusive, false, exclusive, false, nil)
	if err != nil {
		m.Fatal(err)
	}
	return q.Name
}

// A reply can be delayed. If its queue is deleted before it is due, it is parked.
func TestDelayedReply(t *testing.T) {
	inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
		for _, d := range []amqpx.Declaration{amqpx.DeclareMissing, amqpx.DeclareListed, amqpx.DeclareNothing} {
			c := m.open(amqpx.Config{Declare: d})
			q, gone := m.replies(false), m.replies(false)
			c.mustSend(amqpx.Message{Queue: q}, amqpx.Message{Queue: q, Delay: time.Minute}, amqpx.Message{Queue: gone, Delay: time.Minute})
			m.Holds(q, 1, 0)
			m.Delete(gone)
			parked, _ := m.Queue("delay.parked")
			after(2 * time.Minute)
			m.Holds(q, 2, 0)
			m.Holds("delay.parked", parked.Ready+1, 0)
			switch err := m.open(amqpx.Config{Declare: d}).Send(t.Context(), amqpx.Message{Queue: gone, Delay: time.Minute}); {
			case !errors.Is(err, topology.ErrDestination):
				t.Errorf("Send to a deleted queue: got %v, want %v", err, topology.ErrDestination)
			case !strings.Contains(err.Error(), "no longer exists"):
				t.Errorf(`Send to a deleted queue: got %v, want an error with "no longer exists"`, err)
			}
		}
		for _, name := range m.Queues() {
			if strings.HasSuffix(name, ".dead") {
				t.Errorf("the dead-letter queue %s was declared, want none", name)
			}
		}
	})
}

// No other connection can bind a queue that is exclusive to a connection, but every connection may publish to it.
func TestReplyToAnExclusiveQueue(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		q := m.replies(true)
		c.mustSend(amqpx.Message{Queue: q})
		m.Holds(q, 1, 0)
		switch err := c.Send(t.Context(), amqpx.Message{Queue: q, Delay: time.Minute}); {
		case !errors.Is(err, topology.ErrDestination):
			t.Errorf("Send with a delay: got %v, want %v", err, topology.ErrDestination)
		case !strings.Contains(err.Error(), "exclusive to another connection"):
			t.Errorf(`Send with a delay: got %v, want an error with "exclusive to another connection"`, err)
		}
	})
}
