package amqpx_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// A batch is sent completely, even if it has more messages than may be unconfirmed at a time, and the connection is
// lost. If one message cannot be sent, the other ones are, and the error names only that message.
func TestSendBatch(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{MaxInFlight: 16})
		msgs := make([]amqpx.Message, 300)
		for i := range msgs {
			msgs[i] = amqpx.Message{ID: fmt.Sprint(i), Queue: fmt.Sprint("q", i%3), Delay: time.Duration(i%7) * time.Second}
		}
		m.CutAt("basic.publish", 150)
		if err := c.SendBatch(t.Context(), msgs); err != nil {
			t.Fatal(err)
		}
		after(time.Minute)
		came := map[string]bool{}
		for i := range 3 {
			for _, id := range m.IDs(fmt.Sprint("q", i)) {
				came[id] = true
			}
		}
		if len(came) != len(msgs) {
			t.Errorf("%d messages arrived, want %d", len(came), len(msgs))
		}
		undo := m.Nack("q1")
		err := c.SendBatch(m.within(10*time.Second), []amqpx.Message{{ID: "a", Queue: "q0"}, {ID: "b", Queue: "q1"}, {ID: "c", Queue: "q2"}})
		undo()
		be, ok := errors.AsType[*amqpx.BatchError](err)
		if !ok || len(be.Failed) != 1 || be.Failed[1] == nil || !strings.Contains(be.Error(), "1") {
			t.Fatalf("a batch with one refused message: got %v, want a *BatchError for only this message", err)
		}
		for queue, want := range map[string]string{"q0": "a", "q2": "c"} {
			ids := m.IDs(queue)
			if last := ids[len(ids)-1]; last != want {
				t.Errorf("the last message in %s is %s, want %s", queue, last, want)
			}
		}
	})
}

// A queue's messages are published on a trial channel until one is confirmed, and then on a shared channel. Messages
// with the same delay keep their order when their queue moves to the shared channel.
func TestOrderAcrossChannels(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		batch := make([]amqpx.Message, 3000)
		for i := range batch {
			batch[i] = amqpx.Message{ID: fmt.Sprintf("%05d", i), Queue: "orders", Delay: time.Minute}
		}
		if err := c.SendBatch(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		after(2 * time.Minute)
		if ids := m.IDs("orders"); len(ids) != len(batch) || !slices.IsSorted(ids) {
			t.Errorf("the queue orders after SendBatch: got %d messages with the IDs %q, want %d in order", len(ids), ids, len(batch))
		}
	})
}
