package amqpx_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// A client whose connections are cut opens new ones, and continues to send and to consume.
func TestConnectionsComeBack(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.0.5"}, func(t *testing.T, m *memory) {
		c, o := m.watched(amqpx.Config{ConnectionName: "orders"})
		if got := c.BrokerVersion(); got != "RabbitMQ 4.0.5" {
			t.Errorf(`connected to %q, want "RabbitMQ 4.0.5"`, got)
		}
		var got collector
		k := c.consume("q", got.handle, amqpx.WithConcurrency(1))
		for i := range 3 {
			m.CutConnections()
			c.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: "q", Delay: time.Second})
			after(time.Minute)
		}
		k.stop()
		if ids := got.ids(); !slices.Equal(ids, []string{"0", "1", "2"}) {
			t.Errorf("the messages %v were handled, want [0 1 2]", ids)
		}
		after(2 * time.Minute) // the connection for declarations is closed when it is idle
		if names := slices.Sorted(slices.Values(m.connections(""))); !slices.Equal(names, []string{"orders consume", "orders publish"}) {
			t.Errorf(`the client has the connections %q, want ["orders consume" "orders publish"]`, names)
		}
		undo := m.RefuseConnections()
		m.CutConnections()
		after(0)
		if err := c.Send(m.within(time.Minute), amqpx.Message{Queue: "q"}); !errors.Is(err, amqpx.ErrNotSent) || c.BrokerVersion() != "" {
			t.Errorf("Send without a broker: got %v, connected to version %q, want ErrNotSent and no version", err, c.BrokerVersion())
		}
		undo()
		after(time.Minute)
		c.mustSend(amqpx.Message{Queue: "q"})
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		states := o.saw().states
		for _, want := range []string{
			"publish connecting", "publish connected", "publish disconnected", "publish closed", "consume connected",
			"consume disconnected", "consume closed",
		} {
			if !slices.Contains(states, want) {
				t.Errorf("the hook got the events %q, want %q among them", states, want)
			}
		}
	})
}

// While the broker has an alarm, it accepts no messages. Send waits until the alarm is cleared, or fails with the alarm
// as the reason. Consumers continue.
func TestBlocked(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c, o := m.watched(amqpx.Config{})
		var got collector
		k := c.consume("q", got.handle, amqpx.WithConcurrency(1))
		c.mustSend(amqpx.Message{ID: "before", Queue: "q", Delay: 10 * time.Second})
		m.Block("low on memory")
		after(0)
		if err := c.Send(m.within(5*time.Second), amqpx.Message{Queue: "q"}); !errors.Is(err, amqpx.ErrBlocked) || !strings.Contains(err.Error(), "low on memory") {
			t.Errorf(`a blocked send: got %v, want amqpx.ErrBlocked with "low on memory"`, err)
		}
		after(10 * time.Second)
		if ids := got.ids(); !slices.Equal(ids, []string{"before"}) {
			t.Errorf(`during the alarm, the messages %q were handled, want ["before"]`, ids)
		}
		time.AfterFunc(20*time.Second, m.Unblock)
		c.mustSend(amqpx.Message{ID: "waited", Queue: "q"})
		after(time.Second)
		if ids := got.ids(); !slices.Equal(ids, []string{"before", "waited"}) {
			t.Errorf(`the messages %q were handled, want ["before" "waited"]`, ids)
		}
		k.stop()
		if states := o.saw().states; !slices.Contains(states, "publish blocked") || !slices.Contains(states, "publish unblocked") {
			t.Errorf(`the hook got the events %q, want "publish blocked" and "publish unblocked"`, states)
		}
	})
}
