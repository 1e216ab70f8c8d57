package amqpx_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// A producer whose clock is ahead delays neither its own messages nor those of other producers.
func TestMessagesFromAFastClock(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.consume("q", nothing).stop() // declares the queue
		began := time.Now()
		publish := func(id string, sent time.Time, due time.Duration) {
			m.Publish("", "q", amqp.Publishing{MessageId: id, Timestamp: sent, Headers: amqp.Table{amqpx.HeaderDue: began.Add(due).UnixMilli()}})
		}
		for i := range 200 {
			publish(fmt.Sprint("fast", i), began.Add(time.Hour), time.Hour)
		}
		soon := []time.Duration{15 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 0}
		for _, due := range soon {
			publish(due.String(), time.Time{}, due)
		}
		after(0)
		var got collector
		k := c.consume("q", got.handle, amqpx.WithConcurrency(4), amqpx.WithPrefetch(1000))
		after(time.Minute)
		at := got.since(began)
		if len(at) != 204 {
			t.Errorf("%d messages were handled, want 204", len(at))
		}
		for id, times := range at {
			if len(times) != 1 || times[0] > 20*time.Millisecond {
				t.Errorf("message %s was handled after %v, want once within 20ms", id, times)
			}
		}
		for _, due := range soon {
			if times := at[due.String()]; len(times) != 1 || times[0] != due {
				t.Errorf("the message that was due after %v was handled after %v, want once and on time", due, times)
			}
		}
		k.stop()
	})
}

// Several consumers of one queue share its messages, at low and at high concurrency.
func TestConsumersOfOneQueue(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		type key struct{}
		c := m.open(amqpx.Config{})
		c.mustSend(amqpx.Message{ID: "first", Queue: "q"})
		var got collector
		handle := func(ctx context.Context, d *amqpx.Delivery) error {
			if ctx.Value(key{}) != "mine" {
				t.Errorf(`the handler's context has the value %v, want "mine"`, ctx.Value(key{}))
			}
			return got.handle(ctx, d)
		}
		var consumers []*consumer
		for _, opts := range [][]amqpx.ConsumeOption{
			{amqpx.WithConcurrency(1), amqpx.WithPrefetch(1)},
			{amqpx.WithConcurrency(65535), amqpx.WithPrefetch(65535)},
			{amqpx.WithConcurrency(65535), amqpx.WithPrefetch(1)},
			{amqpx.WithConcurrency(1), amqpx.WithPrefetch(65535)},
		} {
			consumers = append(consumers, c.consumeIn(context.WithValue(t.Context(), key{}, "mine"), "q", handle, opts...))
		}
		for i := range 200 {
			c.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: "q"})
		}
		after(time.Second)
		for _, k := range consumers {
			k.stop()
		}
		handled := map[string]int{}
		for _, id := range got.ids() {
			handled[id]++
		}
		if len(handled) != 201 || len(got.ids()) != 201 {
			t.Errorf("%d different messages were handled in %d calls, want 201 in 201", len(handled), len(got.ids()))
		}
	})
}

// A handler that runs past the broker's consumer timeout occupies one of the consumer's concurrent slots, however many
// times the broker redelivers its message in the meantime.
func TestSlowHandlerKeepsOneSlot(t *testing.T) {
	inEachVersion(t, amqptest.Options{ConsumerTimeout: time.Minute}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		var mu sync.Mutex
		var atOnce, most, good int
		k := c.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			if d.ID != "slow" {
				good++
				return nil
			}
			atOnce++
			most = max(most, atOnce)
			mu.Unlock()
			<-time.After(20 * time.Minute)
			mu.Lock()
			atOnce--
			return nil
		}, amqpx.WithConcurrency(4))
		c.mustSend(amqpx.Message{ID: "slow", Queue: "q"})
		after(10 * time.Minute)
		for i := range 50 {
			c.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: "q"})
		}
		after(5 * time.Minute)
		mu.Lock()
		if most != 1 || good != 50 {
			t.Errorf("the slow handler ran %d times concurrently, and %d other messages were handled, want 1 and 50", most, good)
		}
		mu.Unlock()
		_ = k.end() // ignore the error: the slow handler may outlast the drain timeout
		after(time.Hour)
	})
}
