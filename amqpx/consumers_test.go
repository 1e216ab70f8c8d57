package amqpx_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func acked(context.Context, *amqpx.Delivery) error { return nil }

// One call consumes from several queues until its context is cancelled.
func TestConsumeAll(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		got := map[string]*atomic.Int64{"a": {}, "b": {}}
		count := func(_ context.Context, d *amqpx.Delivery) error { got[d.Queue].Add(1); return nil }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- c.ConsumeAll(ctx,
				amqpx.Consumer{Queue: "a", Handler: count, Options: []amqpx.ConsumeOption{amqpx.WithConcurrency(1)}},
				amqpx.Consumer{Queue: "b", Handler: count, Options: []amqpx.ConsumeOption{amqpx.WithConcurrency(1)}})
		}()
		synctest.Wait()
		c.mustSend(amqpx.Message{Queue: "a"}, amqpx.Message{Queue: "b", Delay: time.Hour})
		after(time.Minute)
		if a, b := got["a"].Load(), got["b"].Load(); a != 1 || b != 0 {
			t.Errorf("after a minute: a handled %d messages and b %d, want 1 and 0", a, b)
		}
		after(time.Hour)
		if b := got["b"].Load(); b != 1 {
			t.Errorf("after an hour: b handled %d messages, want 1", b)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("ConsumeAll returned %v, want nil", err)
		}
		m.hasConsumers("a", 0)
		m.hasConsumers("b", 0)
	})
}

// If the broker permanently refuses one consumer, the others stop as well, and the error names only the refused one.
func TestConsumeAllEndsWithOne(t *testing.T) {
	inMemoryOf(t, amqptest.Options{}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		m.Deny("guest", amqptest.PermissionRead, "secret")
		err := c.ConsumeAll(t.Context(), amqpx.Consumer{Queue: "open", Handler: acked}, amqpx.Consumer{Queue: "secret", Handler: acked})
		one, ok := errors.AsType[*amqpx.ConsumeError](err)
		if !ok || one.Queue != "secret" || !strings.HasPrefix(err.Error(), "consume secret: ") || strings.Contains(err.Error(), "open") {
			t.Errorf("ConsumeAll: got %v, want only the error of the consumer of queue secret", err)
		}
		m.hasConsumers("open", 0)
	})
}

// An option refuses an invalid argument, even if another option would replace its value.
func TestOptionsRefuse(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		for want, o := range map[string]amqpx.ConsumeOption{
			"WithConcurrency: 0; expected 1 to 65535":                                           amqpx.WithConcurrency(0),
			"WithPrefetch: 0; expected 1 to 65535":                                              amqpx.WithPrefetch(0),
			"WithPrefetch: 65536; expected 1 to 65535":                                          amqpx.WithPrefetch(65536),
			"WithDrainTimeout: -1ns; expected 0 or more":                                        amqpx.WithDrainTimeout(-1),
			"WithDrainTimeout: 30ns; expected a duration with its unit, such as 30*time.Second": amqpx.WithDrainTimeout(30),
			"WithBackoff: nil; expected a function, or no option":                               amqpx.WithBackoff(nil),
			"WithErrorPolicy: nil; expected a function, or no option":                           amqpx.WithErrorPolicy(nil),
		} {
			if err := c.Consume(t.Context(), "q", acked, o, amqpx.WithPrefetch(1)); !errors.Is(err, amqpx.ErrConfig) || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("Consume with an invalid option: got %v, want ErrConfig that ends in %q", err, want)
			}
		}
		if _, ok := m.Queue("q"); ok {
			t.Error("Consume with an invalid option declared the queue, want no declaration")
		}
	})
}

// ConsumeAll checks all queues before it consumes from any of them, and reports all problems together.
func TestConsumeAllChecksFirst(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		err := c.ConsumeAll(t.Context(), amqpx.Consumer{Queue: "fine", Handler: acked},
			amqpx.Consumer{Queue: "no.handler"},
			amqpx.Consumer{Queue: "retry", Handler: acked, Options: []amqpx.ConsumeOption{amqpx.WithRetry(topology.Retry{ImmediateRetries: 101})}},
			amqpx.Consumer{Queue: "no.option", Handler: acked, Options: []amqpx.ConsumeOption{amqpx.WithPrefetch(1), nil}})
		for _, want := range []string{
			"consume no.handler: ", "handler is nil", "consume retry: ",
			"ImmediateRetries is 101; it must be 0 to 100", "consume no.option: ", "option 2 of 2 is nil",
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("ConsumeAll: got %v, want an error with %q", err, want)
			}
		}
		if _, ok := m.Queue("fine"); ok || !errors.Is(err, amqpx.ErrConfig) {
			t.Errorf("after ConsumeAll: queue fine was declared: %t, error: %v; want false and amqpx.ErrConfig", ok, err)
		}
		if err := c.ConsumeAll(t.Context()); !errors.Is(err, amqpx.ErrConfig) {
			t.Errorf("ConsumeAll without consumers: got %v, want ErrConfig", err)
		}
	})
}
