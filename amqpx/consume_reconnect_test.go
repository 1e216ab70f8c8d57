package amqpx_test

import (
	"slices"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// A consumer that has run before keeps trying to restart, and logs its failures about once a minute.
func TestRefusedAgain(t *testing.T) {
	for name, refuse := range map[string]func(m *memory) (undo func()){
		"connection": func(m *memory) func() {
			undo := m.RefuseLogins()
			m.CutConnections()
			return undo
		},
		"queue": func(m *memory) func() {
			undo := m.Deny("", amqptest.PermissionRead, "^q$")
			m.Delete("q")
			return undo
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				c, o := m.watched(amqpx.Config{})
				k := c.consume("q", nothing)
				undo := refuse(m)
				before := o.log.Len()
				after(20 * time.Minute)
				if n := o.log.Len() - before; n < 16 || n > 68 { // two connections log their attempts
					t.Errorf("the client wrote %d log lines in 20 minutes, want 16 to 68", n)
				}
				undo()
				after(time.Minute)
				m.hasConsumers("q", 1)
				k.stop()
			})
		})
	}
}

// If the queue of a consumer is deleted, the consumer declares it again and continues. If a message is not acknowledged
// within the consumer timeout, the broker delivers it again.
func TestConsumerContinues(t *testing.T) {
	inMemoryOf(t, amqptest.Options{ConsumerTimeout: time.Hour}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		slow := true
		got := collector{answer: func(d *amqpx.Delivery) error {
			if d.ID == "slow" && slow {
				slow = false
				<-time.After(3 * time.Hour)
			}
			return nil
		}}
		k := c.consume("q", got.handle, amqpx.WithConcurrency(1))
		m.Delete("q")
		after(time.Minute)
		c.mustSend(amqpx.Message{ID: "one", Queue: "q"}, amqpx.Message{ID: "slow", Queue: "q"})
		after(6 * time.Hour)
		k.stop()
		if ids := got.ids(); !slices.Equal(ids, []string{"one", "slow", "slow"}) {
			t.Errorf(`the messages %q were handled, want ["one" "slow" "slow"]`, ids)
		}
		m.Holds("q", 0, 0)
	})
}
