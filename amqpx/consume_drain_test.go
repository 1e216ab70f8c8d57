package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// When a consumer stops, deliveries that have not been passed to a handler return to the queue immediately, and running
// handlers finish.
func TestDrainReturnsUnstartedDeliveries(t *testing.T) {
	inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		finish := make(chan struct{})
		k := c.consume("q", func(context.Context, *amqpx.Delivery) error {
			<-finish
			return nil
		}, amqpx.WithConcurrency(6), amqpx.WithPrefetch(38), amqpx.WithDrainTimeout(time.Hour))
		for i := range 40 {
			c.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: "q"})
		}
		after(0)
		m.Holds("q", 2, 38)
		result := make(chan error, 1)
		go func() { result <- k.end() }()
		after(0)
		m.Holds("q", 34, 6) // 6 deliveries are with the handlers
		m.hasConsumers("q", 0)
		after(10 * time.Minute)
		if len(result) > 0 {
			t.Error("Consume returned while its handlers were running, want it to wait for them")
		}
		close(finish)
		if err := <-result; err != nil {
			t.Error(err)
		}
		after(0)
		m.Holds("q", 34, 0)
	})
}

// When the drain timeout expires, the contexts of running handlers are cancelled and their messages return to the
// queue. If a handler still does not return, Consume returns ErrDrainTimeout.
func TestDrainTimeout(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.mustSend(amqpx.Message{ID: "1", Queue: "q"}, amqpx.Message{ID: "2", Queue: "q"})
		var ends []error
		k := c.consume("q", func(ctx context.Context, _ *amqpx.Delivery) error {
			<-ctx.Done()
			ends = append(ends, ctx.Err())
			return ctx.Err()
		}, amqpx.WithConcurrency(1), amqpx.WithDrainTimeout(time.Minute))
		began := time.Now()
		if err := k.end(); err != nil || len(ends) != 1 || time.Since(began) < time.Minute {
			t.Errorf("Consume returned %v after %v, with the handlers' errors %v, want no error after at least 1m, and one handler error", err, time.Since(began), ends)
		}
		release := make(chan struct{})
		k = c.consume("q", func(context.Context, *amqpx.Delivery) error { <-release; return nil }, amqpx.WithConcurrency(1), amqpx.WithDrainTimeout(time.Second))
		if err := k.end(); !errors.Is(err, amqpx.ErrDrainTimeout) {
			t.Errorf("a handler that does not return: got %v, want ErrDrainTimeout", err)
		}
		close(release)
		after(time.Minute)
		m.Holds("q", 2, 0) // neither message was settled
	})
}

// A stopping consumer does not wait until the broker accepts the retry of a failed message. The message returns to the
// queue.
func TestDrainDoesNotWaitForARefusedRetry(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		k := c.consume("q", func(context.Context, *amqpx.Delivery) error {
			return amqpx.RetryIn(24*time.Hour, errors.New("no"))
		}, amqpx.WithDrainTimeout(time.Hour))
		m.refuseDelays()
		c.mustSend(amqpx.Message{ID: "m", Queue: "q"})
		after(time.Minute)
		began := time.Now()
		if err := k.end(); err != nil || time.Since(began) > 15*time.Second {
			t.Errorf("Consume returned %v after %v, want no error within 15s", err, time.Since(began))
		}
		m.Holds("q", 1, 0)
	})
}
