package messages_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// quickRetry is a retry policy for tests.
var quickRetry = topology.Retry{MaxAttempts: 3, Backoff: 100 * time.Millisecond, MaxBackoff: 200 * time.Millisecond}

// When a consumer stops, running handlers finish and acknowledge their messages. Messages without a running handler
// stay in the queue.
func TestDrain(t *testing.T) {
	t.Parallel()
	c := suite.OpenClient(t, amqpx.Config{})
	q := suite.NewQueue(t)
	var handled atomic.Int64
	begun := make(chan struct{}, 100)
	finish := make(chan struct{})
	stop := suite.Consume(t, c, q, func(ctx context.Context, d *amqpx.Delivery) error {
		begun <- struct{}{}
		<-finish
		handled.Add(1)
		return ctx.Err()
	}, amqpx.WithConcurrency(4), amqpx.WithPrefetch(20))
	const total = 30
	for i := range total {
		suite.Send(t, c, amqpx.Message{ID: fmt.Sprint(i), Queue: q})
	}
	for range 4 {
		<-begun
	}
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	select {
	case err := <-stopped:
		t.Fatalf("Consume returned (error %v) while handlers were running, want it to wait for them", err)
	case <-time.After(100 * time.Millisecond): // Consume must not return, and there is no event to wait for
	}
	close(finish)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	col := newCollector()
	suite.Consume(t, c, q, col.handle)
	col.await(t, "the remaining messages", func(got []*amqpx.Delivery) bool { return int64(len(got))+handled.Load() >= total })
	if n := handled.Load() + int64(len(col.ids())); n != total {
		t.Errorf("the first consumer handled %d messages and the second %d, want %d in total, each once", handled.Load(), len(col.ids()), total)
	}
}

func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	c := suite.OpenClient(t, amqpx.Config{})
	q := suite.NewQueue(t)
	begun, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	stop := suite.Consume(t, c, q, func(ctx context.Context, d *amqpx.Delivery) error {
		close(begun)
		<-release // ignores its context
		return nil
	}, amqpx.WithDrainTimeout(50*time.Millisecond))
	suite.Send(t, c, amqpx.Message{ID: "slow", Queue: q})
	<-begun
	if err := stop(); !errors.Is(err, amqpx.ErrDrainTimeout) {
		t.Fatalf("got %v, want amqpx.ErrDrainTimeout", err)
	}
	col := newCollector()
	suite.Consume(t, c, q, col.handle)
	col.await(t, "the message again", func(got []*amqpx.Delivery) bool { return len(got) == 1 && got[0].ID == "slow" })
}

// A failing handler is retried with a growing delay. Then the message is dead-lettered, with a record of every attempt.
func TestRetriesThenDeadLetter(t *testing.T) {
	t.Parallel()
	c := suite.OpenClient(t, amqpx.Config{})
	q := suite.NewQueue(t)
	col := newCollector()
	suite.Consume(t, c, q, func(ctx context.Context, d *amqpx.Delivery) error {
		_ = col.handle(ctx, d)
		switch d.Attempt {
		case 1:
			return errors.New("no luck")
		case 2:
			panic("out of luck")
		}
		return fmt.Errorf("attempt %d of %d failed", d.Attempt, d.MaxAttempts)
	}, amqpx.WithRetry(quickRetry))
	suite.Send(t, c, amqpx.Message{ID: "m", Queue: q, Body: []byte("body"), ContentType: "text/plain", Headers: amqp.Table{"mine": "kept"}, Version: 7})
	dead := suite.RawGet(t, q+".dead")

	if len(col.got) != 3 || col.early != 0 {
		t.Fatalf("%d deliveries, %d early, want 3 and 0", len(col.got), col.early)
	}
	for i, d := range col.got {
		if d.Attempt != i+1 || d.ID != "m" || d.Version != 7 || d.Headers["mine"] != "kept" {
			t.Errorf(`delivery %d: got %+v, want Attempt = %v, ID = "m", Version = 7 and Headers["mine"] = "kept"`, i, d, i+1)
		}
		if i > 0 && !d.DueAt.After(col.got[i-1].DueAt) {
			t.Errorf("delivery %d is due at %v, want it due after the previous delivery", i, d.DueAt)
		}
	}
	if string(dead.Body) != "body" || dead.MessageId != "m" || dead.ContentType != "text/plain" || dead.Headers["mine"] != "kept" {
		t.Errorf(`dead letter: got %+v, want Body = "body", MessageId = "m", ContentType = "text/plain" and Headers["mine"] = "kept"`, dead)
	}
	if dead.Headers[amqpx.HeaderReason] != inspect.ReasonAttempts || dead.Headers[amqpx.HeaderError] != "attempt 3 of 3 failed" {
		t.Errorf(`dead letter: got the reason %v and the error %v, want inspect.ReasonAttempts and "attempt 3 of 3 failed"`,
			dead.Headers[amqpx.HeaderReason], dead.Headers[amqpx.HeaderError])
	}
	list, _ := dead.Headers[amqpx.HeaderAttempts].([]any)
	if len(list) != 3 || !strings.HasSuffix(list[0].(string), " no luck") || !strings.HasSuffix(list[1].(string), "panicked: out of luck") {
		t.Errorf(`recorded attempts: got %v, want 3, the first ending with " no luck" and the second with "panicked: out of luck"`, list)
	}
}

func TestRejectAndRetryIn(t *testing.T) {
	t.Parallel()
	c := suite.OpenClient(t, amqpx.Config{})
	q := suite.NewQueue(t)
	col := newCollector()
	suite.Consume(t, c, q, func(ctx context.Context, d *amqpx.Delivery) error {
		_ = col.handle(ctx, d)
		if d.Attempt == 1 {
			return amqpx.RetryIn(500*time.Millisecond, errors.New("later"))
		}
		return amqpx.Reject(errors.New("never"))
	})
	suite.Send(t, c, amqpx.Message{ID: "m", Queue: q})
	dead := suite.RawGet(t, q+".dead")
	if dead.Headers[amqpx.HeaderReason] != inspect.ReasonRejected || dead.Headers[amqpx.HeaderError] != "never" {
		t.Errorf(`dead letter: got %v, want Headers[amqpx.HeaderReason] = inspect.ReasonRejected and Headers[amqpx.HeaderError] = "never"`,
			dead.Headers)
	}
	if len(col.got) != 2 {
		t.Fatalf("%d deliveries, want 2", len(col.got))
	}
	if gap := col.got[1].DueAt.Sub(col.got[0].DueAt); gap < 500*time.Millisecond {
		t.Errorf("the retry was due after %v, want at least 500ms", gap)
	}
}

// Whatever another publisher sends, the consumer keeps running and the message is dead-lettered.
func TestHostileMessages(t *testing.T) {
	t.Parallel()
	c := suite.OpenClient(t, amqpx.Config{})
	q := suite.NewQueue(t)
	suite.Consume(t, c, q, func(_ context.Context, d *amqpx.Delivery) error {
		return errors.New("no")
	}, amqpx.WithRetry(topology.Retry{MaxAttempts: 2, Backoff: time.Millisecond}))
	suite.Send(t, c, amqpx.Message{ID: "declares the queues", Queue: q})
	suite.RawGet(t, q+".dead")

	ch := suite.RawChannel(t)
	for name, headers := range map[string]amqp.Table{
		"wrong types":    {amqpx.HeaderDue: "soon", amqpx.HeaderAttempt: amqp.Table{}, amqpx.HeaderVersion: []any{1}, amqpx.HeaderAttempts: "x"},
		"out of range":   {amqpx.HeaderDue: int64(1) << 62, amqpx.HeaderAttempt: int64(-5)},
		"large":          {"a": strings.Repeat("x", 110<<10)},
		"own and routes": {"x-death": "nonsense", "CC": []any{"elsewhere"}, "BCC": int64(1), "rabbitdelay-other": "x"},
		"deep":           {"a": amqp.Table{"b": amqp.Table{"c": []any{[]any{amqp.Table{"d": nil}}}}}},
	} {
		if name == "own and routes" {
			headers = amqp.Table{"x-death": "nonsense", "rabbitdelay-other": "x"} // not CC, because the broker rejects a CC that is not a list
		}
		if err := ch.PublishWithContext(t.Context(), "", q, false, false, amqp.Publishing{MessageId: name, Headers: headers, Body: []byte(name)}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if dead := suite.RawGet(t, q+".dead"); string(dead.Body) != name || dead.Headers[amqpx.HeaderReason] != inspect.ReasonAttempts {
			t.Errorf("message %s: got the dead letter %q with headers %v, want the same body and Headers[amqpx.HeaderReason] = inspect.ReasonAttempts", name, dead.Body, dead.Headers)
		}
	}
}

// If a queue is deleted while it is being consumed, the consumer declares and binds it again.
func TestConsumerOutlivesItsQueue(t *testing.T) {
	t.Parallel()
	c := suite.OpenClient(t, amqpx.Config{})
	q := suite.NewQueue(t)
	col := newCollector()
	suite.Consume(t, c, q, col.handle)
	suite.Send(t, c, amqpx.Message{ID: "1", Queue: q})
	col.await(t, "the first message", func(got []*amqpx.Delivery) bool { return len(got) == 1 })
	if err := suite.DeleteQueue(t, q); err != nil {
		t.Fatal(err)
	}
	// A message that is due while the queue does not exist is parked, not lost. The loop sends messages until the queue is
	// bound again.
	n := 1
	suite.Eventually(t, "a message arrives in the new queue", func() bool {
		n++
		suite.Send(t, c, amqpx.Message{ID: fmt.Sprint(n), Queue: q, Delay: 100 * time.Millisecond})
		select {
		case <-col.more:
			return len(col.ids()) > 1
		case <-time.After(300 * time.Millisecond):
			return false
		}
	})
}

// A consumer that was running keeps trying while the broker refuses it, because a broker may be shutting down, or an
// administrator may restore the permissions.
func TestConsumerOutlivesRefusals(t *testing.T) {
	b := broker.Shared(t, particular)
	if b.Source() == broker.Environment {
		t.Skip("skipped: the users of the broker at AMQP_URL are not ours to change")
	}
	ctl := func(args ...string) {
		t.Helper()
		if out, err := b.Ctl(t.Context(), args...); err != nil {
			t.Fatalf("rabbitmqctl %v: %v: %s", args, err, out)
		}
	}
	core, logs := observer.New(zap.WarnLevel)
	c := suite.OpenClient(t, amqpx.Config{URL: b.URL(), Logger: zap.New(core)})
	col := newCollector()
	suite.Consume(t, c, "refused", col.handle)
	suite.Send(t, c, amqpx.Message{ID: "1", Queue: "refused"})
	col.await(t, "the first message", func(got []*amqpx.Delivery) bool { return len(got) == 1 })

	ctl("set_permissions", "guest", "^$", "^$", "^$")
	defer ctl("set_permissions", "guest", ".*", ".*", ".*")
	ctl("close_all_connections", "test")
	suite.Eventually(t, "the consumer is refused", func() bool {
		return logs.FilterMessage("the consumer stopped; restarting it").Filter(func(e observer.LoggedEntry) bool {
			return strings.Contains(fmt.Sprint(e.ContextMap()["error"]), "ACCESS_REFUSED")
		}).Len() > 0
	})
	ctl("set_permissions", "guest", ".*", ".*", ".*")
	suite.Send(t, c, amqpx.Message{ID: "2", Queue: "refused"})
	col.await(t, "the second message", func(got []*amqpx.Delivery) bool { return len(got) == 2 })
}

func TestConsumeRefusesBadOptions(t *testing.T) {
	t.Parallel()
	c := suite.OpenClient(t, amqpx.Config{})
	h := func(context.Context, *amqpx.Delivery) error { return nil }
	for name, err := range map[string]error{
		"no queue":      c.Consume(t.Context(), "", h),
		"no handler":    c.Consume(t.Context(), "q", nil),
		"concurrency":   c.Consume(t.Context(), "q", h, amqpx.WithConcurrency(-1)),
		"prefetch":      c.Consume(t.Context(), "q", h, amqpx.WithPrefetch(70000)),
		"drain":         c.Consume(t.Context(), "q", h, amqpx.WithDrainTimeout(-1)),
		"retry":         c.Consume(t.Context(), "q", h, amqpx.WithRetry(topology.Retry{MaxAttempts: -1})),
		"own dead ends": c.Consume(t.Context(), "q", h, amqpx.WithDeadLetterQueue("q")),
	} {
		if !errors.Is(err, amqpx.ErrConfig) {
			t.Errorf("%s: got %v, want amqpx.ErrConfig", name, err)
		}
	}
}

// Consuming from a stream fails immediately, instead of silently skipping the existing messages.
func TestConsumeRefusesAStream(t *testing.T) {
	t.Parallel()
	suite.OnSomePrepared(t, func(t *testing.T, v *suite.Vhost) {
		if _, err := v.Channel(t).QueueDeclare("stream", true, false, false, false, amqp.Table{"x-queue-type": "stream"}); err != nil {
			t.Fatal(err)
		}
		suite.Publish(t, v, "stream", 3)
		c := suite.OpenClient(t, amqpx.Config{URL: v.URL})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := c.Consume(ctx, "stream", func(context.Context, *amqpx.Delivery) error { return nil })
		if !errors.Is(err, amqpx.ErrConfig) || !strings.Contains(err.Error(), "is a stream") {
			t.Errorf(`Consume: got error %v, want amqpx.ErrConfig containing "is a stream"`, err)
		}
		if _, err := v.Channel(t).QueueDeclarePassive("stream.dead", true, false, false, false, nil); err == nil {
			t.Error("the refused consumer has declared the queue stream.dead, want no such queue")
		}
		suite.Eventually(t, "requeue is refused", func() bool { // the broker counts the messages in a stream a few seconds later
			_, err := inspect.Requeue(ctx, c, inspect.RequeueOptions{Queue: "stream"})
			return errors.Is(err, inspect.ErrPeek)
		})
		ran := suite.RunCLI(t.Context(), "consume", "--url", v.URL, "--queue", "stream", "--timeout", "20s")
		if ran.Code != 1 || !strings.Contains(ran.Stderr, "is a stream") {
			t.Errorf(`rabbitdelay consume: got exit code %d and Stderr %s, want 1 and "is a stream"`, ran.Code, ran.Stderr)
		}
	})
}

// Messages whose handlers finish while their consumer is stopping are not redelivered, even if many finish together.
func TestConsumerEndsWithItsAcknowledgements(t *testing.T) {
	t.Parallel()
	const n, rounds = 1000, 6
	suite.OnSomePrepared(t, func(t *testing.T, v *suite.Vhost) {
		sender := suite.OpenClient(t, amqpx.Config{URL: v.URL})
		for round := range rounds {
			c := suite.OpenClient(t, amqpx.Config{URL: v.URL})
			queue := fmt.Sprintf("q%d", round)
			var begun atomic.Int64
			release := make(chan struct{})
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- c.Consume(ctx, queue, func(context.Context, *amqpx.Delivery) error {
					begun.Add(1)
					<-release
					return nil
				}, amqpx.WithConcurrency(n), amqpx.WithPrefetch(n))
			}()
			messages := make([]amqpx.Message, n)
			for i := range messages {
				messages[i] = amqpx.Message{Queue: queue}
			}
			suite.MustSucceed(t, sender.SendBatch(t.Context(), messages))
			suite.Eventually(t, "all messages are being handled", func() bool { return begun.Load() == n })
			if round%2 == 0 {
				stop()
				close(release)
			} else {
				close(release)
				suite.MustSucceed(t, c.Close(t.Context()))
			}
			suite.MustSucceed(t, <-ended)
			stop()
			if left := suite.Drains(t, v, queue); len(left) > 0 {
				t.Errorf("round %d: %d of %d messages are left in the queue, want 0", round, len(left), n)
			}
		}
	})
}
