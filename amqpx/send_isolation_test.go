package amqpx_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// slowest sends n messages concurrently, and returns the longest duration of a send.
func (c *client) slowest(n int, msg amqpx.Message) time.Duration {
	took := make([]time.Duration, n)
	var all sync.WaitGroup
	for i := range took {
		all.Go(func() {
			began := time.Now()
			if err := c.Send(c.m.Context(), msg); err != nil {
				c.m.Error(err)
			}
			took[i] = time.Since(began)
		})
	}
	all.Wait()
	return slices.Max(took)
}

// A delay queue that confirms nothing delays only its own messages. In a bubble, sending any other message takes no
// time.
func TestStuckQueueDelaysOnlyItsMessages(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{MaxInFlight: 64})
		c.mustSend(amqpx.Message{Queue: "orders", Delay: time.Minute})
		undo := m.Silence("delay.bucket.30m")
		var stuck sync.WaitGroup
		var unknown, notSent atomic.Int64
		for range 300 {
			stuck.Go(func() {
				err := c.Send(m.within(10*time.Second), amqpx.Message{Queue: "orders", Delay: 30 * time.Minute})
				switch {
				case errors.Is(err, amqpx.ErrOutcomeUnknown):
					unknown.Add(1)
				case errors.Is(err, amqpx.ErrNotSent) && strings.Contains(err.Error(), "delay.bucket.30m has stopped confirming"):
					notSent.Add(1)
				default:
					t.Errorf("Send to the stuck queue: got %v, want ErrOutcomeUnknown, or ErrNotSent that names the queue", err)
				}
			})
		}
		after(0)
		for range 20 {
			if d := c.slowest(100, amqpx.Message{Queue: "orders", Delay: 15 * time.Minute}); d > 0 {
				t.Errorf("while one queue is stuck, a message for another queue took %v, want 0s", d)
			}
			after(100 * time.Millisecond)
		}
		began := time.Now()
		batch := make([]amqpx.Message, 500)
		for i := range batch {
			batch[i] = amqpx.Message{Queue: "orders", Delay: time.Duration(1+i%15) * time.Minute}
		}
		if err := c.SendBatch(t.Context(), batch); err != nil || time.Since(began) > 0 {
			t.Errorf("a batch for other queues while one queue is stuck: got %v after %v, want nil after 0s", err, time.Since(began))
		}
		stuck.Wait()
		if n := unknown.Load(); n < 32 || n > 64 || n+notSent.Load() != 300 {
			t.Errorf("%d sends have an unknown outcome and %d were not sent, want 32 to 64 with an unknown outcome and 300 in total", n, notSent.Load())
		}
		undo()
		if err := c.Send(t.Context(), amqpx.Message{Queue: "orders", Delay: 30 * time.Minute}); err != nil {
			t.Errorf("Send after the queue confirms again: got %v, want no error", err)
		}
	})
}

// If some messages of a batch are for a stuck queue, the others are confirmed, and the error lists exactly the messages
// for the stuck queue.
func TestABatchWithAStuckQueue(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.Silence("delay.bucket.2m")
		batch := make([]amqpx.Message, 5000)
		for i := range batch {
			batch[i] = amqpx.Message{ID: fmt.Sprint(i), Queue: "orders", Delay: time.Duration(1+i%5) * time.Minute}
		}
		be, ok := errors.AsType[*amqpx.BatchError](c.SendBatch(m.within(20*time.Second), batch))
		if !ok || len(be.Failed) != 1000 {
			t.Fatalf("SendBatch: got %v, want a *BatchError with 1000 failed messages", be)
		}
		for i := range be.Failed {
			if i%5 != 1 {
				t.Errorf("message %d to a queue that confirms: got %v, want no error", i, be.Failed[i])
			}
		}
	})
}

// If a user has no access to some delay queues, the first send to them fails permanently within seconds with
// ErrNotSent, and later ones fail immediately. Other messages are not affected.
func TestRefusedAccess(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c, o := m.watched(amqpx.Config{})
		good, bad := amqpx.Message{Queue: "orders", Delay: 30 * time.Second}, amqpx.Message{Queue: "orders", Delay: 5 * time.Minute}
		c.mustSend(good)
		undo := m.Deny("", amqptest.PermissionWrite, `^delay\.bucket\.[0-9]+m$`)
		for i := range 3 {
			began := time.Now()
			err := c.Send(t.Context(), bad)
			ae, ok := errors.AsType[*amqp.Error](err)
			if !errors.Is(err, amqpx.ErrNotSent) || !ok || ae.Code != amqp.AccessRefused {
				t.Fatalf("Send without the permission: got %v, want ErrNotSent with reply code 403", err)
			}
			if d := time.Since(began); d > 2*time.Second || i > 0 && d > 0 {
				t.Errorf("try %d took %v, want at most 2s for the first and none for later ones", i, d)
			}
		}
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { _ = c.Send(t.Context(), bad) })
			all.Go(func() {
				if d := c.slowest(20, good); d > 0 {
					t.Errorf("while messages are refused, a valid message took %v, want 0s", d)
				}
			})
		}
		all.Wait()
		if n := o.saw().repeated; n > 0 {
			t.Errorf("while messages were refused, %d others were published twice, want 0", n)
		}
		undo()
		after(2 * time.Second)
		if err := c.Send(t.Context(), bad); err != nil {
			t.Errorf("Send after access was granted: got %v, want no error", err)
		}
	})
}

// A message that is published on a separate channel counts as sent once it is confirmed, even if the broker does not
// confirm that the channel is closed, as during an alarm.
func TestSendDoesNotWaitForAChannelToClose(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		undo := m.Deny("", amqptest.PermissionWrite, `^delay\.bucket\.5m$`)
		sent := c.sending(amqpx.Message{Queue: "orders", Delay: 5 * time.Minute})
		undo()
		m.Lose("channel.close-ok", "")
		after(5 * time.Second)
		select {
		case err := <-sent:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("Send has not returned after 5s, want it not to wait until its channel is closed")
		}
		if n := m.delayed(); n != 1 {
			t.Errorf("%d messages are in the delay queues, want 1", n)
		}
	})
}

// A message for which the broker would close the connection is refused before it is sent, so that no other message of
// its batch fails or is duplicated.
func TestOneBadMessageRepeatsNoOther(t *testing.T) {
	for name, bad := range map[string]amqp.Table{
		"empty arrays": {"a": []any{slices.Repeat([]any{[]any{}}, 8000), slices.Repeat([]any{[]any{}}, 8000)}},
		"a long text":  {"a": strings.Repeat("x", 60_000)},
	} {
		t.Run(name, func(t *testing.T) {
			inMemoryOf(t, amqptest.Options{FrameMax: 32 << 10}, func(t *testing.T, m *memory) {
				c := m.open(amqpx.Config{})
				batch := make([]amqpx.Message, 600)
				for i := range batch {
					batch[i] = amqpx.Message{ID: fmt.Sprint(i), Queue: "q"}
				}
				batch[300].Headers = bad
				err := c.SendBatch(m.within(time.Minute), batch)
				failed, ok := errors.AsType[*amqpx.BatchError](err)
				if !ok || len(failed.Failed) != 1 || !errors.Is(failed.Failed[300], amqpx.ErrNotSent) || !errors.Is(err, amqpx.ErrMessage) {
					t.Errorf("SendBatch: got %v, want a *BatchError with ErrNotSent and ErrMessage for message 300 only", err)
				}
				m.Holds("q", 599, 0)
				if n := c.Stats().Publish.Sessions; n != 1 {
					t.Errorf("the client used %d connections, want 1", n)
				}
			})
		})
	}
}
