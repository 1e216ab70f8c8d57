package messages_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// From RabbitMQ 4.3 on, the broker does not count a delivery whose handler exceeds the consumer timeout, so the
// consumer counts it as an attempt. A message that is only held for longer than the timeout does not use up an attempt.
func TestOverrunsAreAttempts(t *testing.T) {
	suite.OnPrepared(t, func(t *testing.T, v *suite.Vhost) {
		if !plan.ParseVersion(v.Broker.Version()).AtLeast(4, 3, 0) {
			t.Skip("skipped: before 4.3, the broker counts a delivery on a channel that timed out")
		}
		const timeout = 2 * time.Second
		args := amqp.Table{"x-queue-type": "quorum", "x-consumer-timeout": timeout.Milliseconds()}
		if _, err := v.Channel(t).QueueDeclare("own", true, false, false, false, args); err != nil {
			t.Fatal(err)
		}
		c := suite.OpenClient(t, amqpx.Config{URL: v.URL, Lead: 4 * timeout})
		var mu sync.Mutex
		attempts := map[string][]int{}
		var ended time.Time // when the last run of the slow message ended
		suite.Consume(t, c, "own", func(_ context.Context, d *amqpx.Delivery) error {
			mu.Lock()
			attempts[d.ID] = append(attempts[d.ID], d.Attempt)
			if d.ID == "slow" {
				ended = time.Time{}
			}
			mu.Unlock()
			if d.ID == "slow" {
				<-time.After(4 * timeout)
				mu.Lock()
				ended = time.Now()
				mu.Unlock()
			}
			return nil
		}, amqpx.WithRetry(topology.Retry{MaxAttempts: 3, Backoff: 100 * time.Millisecond}))
		suite.Send(t, c, amqpx.Message{ID: "slow", Queue: "own"}, amqpx.Message{ID: "held", Queue: "own", Delay: 4*timeout - time.Second})
		dead := v.Channel(t)
		var letter amqp.Delivery
		acknowledged, runs := false, 0
		suite.Eventually(t, "the slow message is a dead letter", func() (ok bool) {
			var err error
			letter, ok, err = dead.Get("own.dead", false)
			suite.MustSucceed(t, err)
			mu.Lock()
			defer mu.Unlock()
			acknowledged = !ok && !ended.IsZero() && time.Since(ended) > 10*timeout
			runs = len(attempts["slow"])
			return ok || acknowledged
		})
		if acknowledged {
			t.Skipf("skipped: the busy broker did not cancel the consumer in time and accepted the acknowledgement of run %d", runs)
		}
		suite.Eventually(t, "the held message is handled", func() bool { mu.Lock(); defer mu.Unlock(); return len(attempts["held"]) > 0 })
		mu.Lock()
		defer mu.Unlock()
		// The held message makes the broker cancel the consumer every two seconds, and so do the other deliveries of the slow
		// message. If that happens between the retry of an attempt and its acknowledgement, the attempt is delivered once
		// more. How often that happens depends on how busy the machine is.
		if slow := slices.Compact(slices.Sorted(slices.Values(attempts["slow"]))); !slices.Equal(slow, []int{1, 2, 3}) {
			t.Errorf("attempts of the slow message: got %v, want 1, 2 and 3, each once or more", attempts["slow"])
		}
		if !slices.Equal(slices.Compact(attempts["held"]), []int{1}) { // the held message may be delivered once more too
			t.Errorf("attempts of the held message: got %v, want only 1", attempts["held"])
		}
		if text := fmt.Sprint(letter.Headers[amqpx.HeaderError]); letter.MessageId != "slow" || !strings.Contains(text, "consumer timeout") {
			t.Errorf(`dead letter: got the id %q and the error %s, want "slow" and an error containing "consumer timeout"`, letter.MessageId, text)
		}
	})
}

// If several handlers exceed the timeout, each run uses up one of their messages' attempts. Other messages that are
// being handled may be redelivered, but do not use up an attempt.
func TestOverrunsTogether(t *testing.T) {
	suite.OnPrepared(t, func(t *testing.T, v *suite.Vhost) {
		if !plan.ParseVersion(v.Broker.Version()).AtLeast(4, 3, 0) {
			t.Skip("skipped: before 4.3, the broker counts a delivery on a channel that timed out")
		}
		const timeout, n = 4 * time.Second, 6
		args := amqp.Table{"x-queue-type": "quorum", "x-consumer-timeout": timeout.Milliseconds()}
		if _, err := v.Channel(t).QueueDeclare("own", true, false, false, false, args); err != nil {
			t.Fatal(err)
		}
		c := suite.OpenClient(t, amqpx.Config{URL: v.URL})
		var mu sync.Mutex
		attempts := map[string][]int{}
		var last time.Time // when a handler last started
		suite.Consume(t, c, "own", func(_ context.Context, d *amqpx.Delivery) error {
			mu.Lock()
			attempts[d.ID] = append(attempts[d.ID], d.Attempt)
			last = time.Now()
			mu.Unlock()
			if d.ID == "quick" {
				<-time.After(timeout / 4)
				return nil
			}
			<-time.After(timeout * 3 / 2) // long enough to exceed the timeout, but too short for the next delivery, which waits for this handler
			return nil
		}, amqpx.WithConcurrency(2*n), amqpx.WithRetry(topology.Retry{MaxAttempts: 3, Backoff: 100 * time.Millisecond}))
		for i := range n {
			suite.Send(t, c, amqpx.Message{ID: fmt.Sprint(i), Queue: "own"})
			<-time.After(50 * time.Millisecond) // so that they do not exceed the timeout at the same time
		}
		<-time.After(timeout - 500*time.Millisecond) // so that it is being handled when the others exceed the timeout
		suite.Send(t, c, amqpx.Message{ID: "quick", Queue: "own"})
		suite.Eventually(t, "no handler has started for a while", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return time.Since(last) > 6*timeout
		})
		mu.Lock()
		defer mu.Unlock()
		overran := false
		for id, have := range attempts {
			// A busy broker may check the timeout too late, and accept the acknowledgement of a handler that took too
			// long. It may also cancel the consumer between the retry of an attempt and its acknowledgement, and then
			// delivers the attempt once more.
			seen := slices.Compact(slices.Sorted(slices.Values(have)))
			want := []int{1, 2, 3}[:min(len(seen), 3)]
			if id == "quick" {
				want = want[:1]
			}
			if !slices.Equal(seen, want) {
				t.Errorf("attempts of %s: got %v, want %v, each once or more", id, have, want)
			}
			overran = overran || len(seen) > 1
		}
		if !overran {
			t.Skip("skipped: the busy broker did not cancel the consumer in time")
		}
	})
}
