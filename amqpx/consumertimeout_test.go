package amqpx_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// If a consumer holds messages until they are due, or if messages wait for a free handler, for longer than the consumer
// timeout, the consumer loses its channel repeatedly. No message is lost or handled early, and no attempt is counted.
// The same applies to a classic queue, whose messages do not show how many times they were returned.
func TestConsumerTimeoutOfMessagesThatWait(t *testing.T) {
	inEachVersion(t, amqptest.Options{ConsumerTimeout: 3 * time.Second}, func(t *testing.T, m *memory) {
		m.Declare("classic", nil)
		m.declareOwn("quorum", nil)
		for _, queue := range []string{"classic", "quorum"} {
			held := everyMessage(m, queue, amqpx.Config{Lead: time.Minute}, 62*time.Second, 0)
			waited := everyMessage(m, queue, amqpx.Config{}, time.Second, 400*time.Millisecond, amqpx.WithConcurrency(1), amqpx.WithPrefetch(64))
			if held > 10*time.Second || waited > 10*time.Minute {
				t.Errorf("%s: held messages were up to %v late and waiting ones %v, want at most 10s and 10m", queue, held, waited)
			}
			m.Holds(queue, 0, 0)
			m.Holds(queue+".dead", 0, 0)
		}
	})
}

// everyMessage sends messages, handles them, and checks that each was handled in its first attempt and never early. It
// returns the greatest lateness.
func everyMessage(m *memory, queue string, cfg amqpx.Config, delay, takes time.Duration, opts ...amqpx.ConsumeOption) (late time.Duration) {
	m.Helper()
	const messages = 100
	c := m.open(cfg)
	var mu sync.Mutex
	runs := map[string]int{}
	k := c.consume(queue, func(_ context.Context, d *amqpx.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if by := time.Until(d.DueAt); by > 0 || d.Attempt != 1 {
			m.Errorf("%s: message %s was handled in attempt %d and %v early, want attempt 1 and not early", queue, d.ID, d.Attempt, by)
		}
		if runs[d.ID]++; runs[d.ID] == 1 {
			late = max(late, time.Since(d.DueAt))
		}
		mu.Unlock()
		<-time.After(takes)
		mu.Lock()
		return nil
	}, opts...)
	for i := range messages {
		c.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: queue, Delay: delay + time.Duration(i)*10*time.Millisecond})
	}
	after(30 * time.Minute)
	mu.Lock()
	if len(runs) != messages {
		m.Errorf("%s: handled %d messages, want %d", queue, len(runs), messages)
	}
	mu.Unlock()
	k.stop()
	return late
}
