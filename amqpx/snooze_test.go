package amqpx_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// A snoozed message is delivered again as many times as the handler wants, with the same number of attempts, and the
// record of earlier failures is kept.
func TestSnooze(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c, o := m.watched(amqpx.Config{})
		type seen struct{ attempt, snoozes int }
		var all []seen
		began := time.Now()
		k := c.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
			all = append(all, seen{d.Attempt, d.Snoozes})
			switch {
			case len(all) == 2:
				return errors.New("no")
			case len(all) < 8:
				return amqpx.Snooze(time.Hour)
			}
			return amqpx.Reject(errors.New("enough"))
		}, amqpx.WithConcurrency(1), amqpx.WithRetry(topology.Retry{MaxAttempts: 2, Backoff: time.Minute, Jitter: topology.NoJitter}))
		c.mustSend(amqpx.Message{ID: "a", Queue: "q", Headers: map[string]any{"tenant": "blue"}})
		after(7 * time.Hour)
		k.stop()
		want := []seen{{1, 0}, {1, 1}, {2, 1}, {2, 2}, {2, 3}, {2, 4}, {2, 5}, {2, 6}}
		if !slices.Equal(all, want) {
			t.Fatalf("the handler: got the attempts and snoozes %v, want %v", all, want)
		}
		if took := time.Since(began); took < 6*time.Hour {
			t.Errorf("the deliveries took %v, want at least 6h", took)
		}
		dead := m.State("q.dead").Messages
		if len(dead) != 1 {
			t.Fatalf("queue q.dead has %d messages, want 1", len(dead))
		}
		h := dead[0].Headers
		if list, _ := h[amqpx.HeaderAttempts].([]any); len(list) != 2 || h[header.Snoozes] != int64(6) || h["tenant"] != "blue" {
			t.Errorf("the dead letter has the headers %v, want 2 attempts, 6 snoozes and the tenant", h)
		}
		var snoozed int
		for _, outcome := range o.saw().outcomes {
			if outcome == amqpx.OutcomeSnoozed {
				snoozed++
			}
		}
		if snoozed != 6 {
			t.Errorf("%d deliveries have the outcome snoozed, want 6", snoozed)
		}
	})
}

// RetryDelay returns the delay that the retried message actually gets.
func TestRetryDelay(t *testing.T) {
	no := errors.New("no")
	backoff := amqpx.WithBackoff(func(d *amqpx.Delivery, err error) time.Duration {
		return time.Duration(d.Attempt)*7*time.Minute + time.Duration(time.Now().UnixNano()%1000)*time.Millisecond
	})
	for name, test := range map[string]struct {
		err  error
		opts []amqpx.ConsumeOption
		ok   bool
		from time.Duration
		to   time.Duration
	}{
		"policy":            {no, nil, true, 48 * time.Second, time.Minute},
		"back-off":          {no, []amqpx.ConsumeOption{backoff}, true, 7 * time.Minute, 8 * time.Minute},
		"retry in":          {amqpx.RetryIn(time.Hour, no), []amqpx.ConsumeOption{backoff}, true, time.Hour, time.Hour},
		"snooze":            {amqpx.Snooze(2 * time.Hour), []amqpx.ConsumeOption{backoff}, true, 2 * time.Hour, 2 * time.Hour},
		"retry immediately": {amqpx.RetryIn(-time.Hour, no), nil, true, time.Second, time.Second},
		"snooze zero":       {amqpx.Snooze(0), nil, true, time.Second, time.Second},
		"no unit":           {amqpx.Snooze(30), nil, true, time.Second, time.Second},
		"back-off zero":     {no, []amqpx.ConsumeOption{amqpx.WithBackoff(func(*amqpx.Delivery, error) time.Duration { return 0 })}, true, time.Second, time.Second},
		"short":             {amqpx.Snooze(10 * time.Millisecond), nil, true, 10 * time.Millisecond, 10 * time.Millisecond},
		"reject":            {amqpx.Reject(no), nil, false, 0, 0},
		"last attempt":      {no, []amqpx.ConsumeOption{amqpx.WithRetry(topology.Retry{MaxAttempts: 1})}, false, 0, 0},
		"last, snoozed":     {amqpx.Snooze(time.Hour), []amqpx.ConsumeOption{amqpx.WithRetry(topology.Retry{MaxAttempts: 1})}, true, time.Hour, time.Hour},
		"success":           {nil, nil, false, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				c := m.open(amqpx.Config{})
				var first, second time.Time
				var delay time.Duration
				var ok bool
				opts := append([]amqpx.ConsumeOption{amqpx.WithRetry(topology.Retry{Backoff: time.Minute})}, test.opts...)
				k := c.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
					if !first.IsZero() {
						second = time.Now()
						return nil
					}
					first = time.Now()
					<-time.After(time.Second) // so that the next delivery is at a different time
					if delay, ok = d.RetryDelay(test.err); ok {
						if again, _ := d.RetryDelay(test.err); again != delay {
							t.Errorf("RetryDelay returned %v, then %v, want the same delay", delay, again)
						}
					}
					return test.err
				}, opts...)
				c.mustSend(amqpx.Message{Queue: "q"})
				after(3 * time.Hour)
				k.stop()
				if ok != test.ok || delay < test.from || delay > test.to {
					t.Fatalf("RetryDelay returned %v, %t, want %v to %v, %t", delay, ok, test.from, test.to, test.ok)
				}
				if second.IsZero() == ok {
					t.Fatalf("the message was delivered again: %v, want %v", !second.IsZero(), ok)
				}
				if waited := second.Sub(first) - time.Second; ok && (waited < delay || waited > delay+time.Second) {
					t.Errorf("the next delivery arrived after %v, want %v, as returned by RetryDelay, or up to 1s more", waited, delay)
				}
			})
		})
	}
	if _, ok := (&amqpx.Delivery{MaxAttempts: 5, Attempt: 1}).RetryDelay(no); ok {
		t.Error("RetryDelay of a Delivery that was not received: got true, want false")
	}
}

// The first middleware is the outermost. A middleware receives the message and the handler's error, and may return a
// different error. A panic passes through it as a panic.
func TestMiddleware(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		var log []string
		say := func(name string) amqpx.Middleware {
			return func(next amqpx.Handler) amqpx.Handler {
				return func(ctx context.Context, d *amqpx.Delivery) error {
					log = append(log, name+" "+d.ID)
					defer func() { log = append(log, "left "+name) }()
					return next(ctx, d)
				}
			}
		}
		permanent := errors.New("card expired")
		rejecting := func(next amqpx.Handler) amqpx.Handler {
			return func(ctx context.Context, d *amqpx.Delivery) error {
				err := next(ctx, d)
				if errors.Is(err, permanent) {
					return amqpx.Reject(err)
				}
				return err
			}
		}
		k := c.consume("q", func(_ context.Context, d *amqpx.Delivery) error {
			log = append(log, "handler")
			if d.Attempt == 1 {
				panic("oh")
			}
			return permanent
		}, amqpx.WithConcurrency(1), amqpx.WithMiddleware(say("a"), rejecting), amqpx.WithMiddleware(say("b")), amqpx.WithRetry(topology.Retry{Backoff: time.Minute}))
		c.mustSend(amqpx.Message{ID: "x", Queue: "q"})
		after(time.Hour)
		k.stop()
		once := []string{"a x", "b x", "handler", "left b", "left a"}
		if want := append(slices.Clone(once), once...); !slices.Equal(log, want) {
			t.Errorf("the handlers and the middleware were called as %q, want %q", log, want)
		}
		if n := m.State("q.dead").Ready; n != 1 {
			t.Errorf("queue q.dead has %d messages, want 1", n)
		}
	})
}

// A handler that exceeds its time limit has failed only if it returns an error. The cause of its context is
// ErrHandlerTimeout.
func TestHandlerTimeout(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		var causes []error
		k := c.consume("q", func(ctx context.Context, d *amqpx.Delivery) error {
			select {
			case <-ctx.Done():
				causes = append(causes, context.Cause(ctx))
			case <-time.After(time.Hour):
			}
			if d.Attempt == 1 {
				return ctx.Err()
			}
			return nil // finished in spite of the timeout
		}, amqpx.WithMiddleware(amqpx.Timeout(time.Minute), amqpx.Timeout(0)))
		c.mustSend(amqpx.Message{Queue: "q"})
		after(2 * time.Hour)
		k.stop()
		if len(causes) != 2 || !errors.Is(causes[0], amqpx.ErrHandlerTimeout) {
			t.Errorf("the contexts of the handlers have the causes %v, want two, the first one %v", causes, amqpx.ErrHandlerTimeout)
		}
		if n := m.State("q.dead").Ready + m.State("q").Ready; n != 0 {
			t.Errorf("%d messages are left, want 0", n)
		}
	})
}
