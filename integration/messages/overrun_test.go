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
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// From RabbitMQ 4.3 on, which does not count it as a delivery, a run of a handler that takes longer than the broker's
// consumer timeout is an attempt. What is only held for longer is not.
func TestOverrunsAreAttempts(t *testing.T) {
	suite.OnPrepared(t, func(t *testing.T, v *suite.Vhost) {
		if !observed.ParseVersion(v.Broker.Version()).AtLeast(4, 3, 0) {
			t.Skip("before 4.3 a channel that timed out counts as a delivery")
		}
		const timeout = 2 * time.Second
		args := amqp.Table{"x-queue-type": "quorum", "x-consumer-timeout": timeout.Milliseconds()}
		if _, err := v.Channel(t).QueueDeclare("own", true, false, false, false, args); err != nil {
			t.Fatal(err)
		}
		c := suite.OpenClient(t, amqpx.Config{URL: v.URL, Lead: 4 * timeout})
		var mu sync.Mutex
		attempts := map[string][]int{}
		var ended time.Time // the last run of the slow message
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
		suite.Eventually(t, "the slow one is a dead letter", func() (ok bool) {
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
			t.Skipf("the broker, which is busy, did not end the consumer, and took the acknowledgement of run %d", runs)
		}
		suite.Eventually(t, "the held one is handled", func() bool { mu.Lock(); defer mu.Unlock(); return len(attempts["held"]) > 0 })
		mu.Lock()
		defer mu.Unlock()
		// The held message makes the broker end the consumer every two seconds. If that comes between the retry of an
		// attempt and its acknowledgement, the attempt is delivered once more.
		slow := slices.Compact(slices.Sorted(slices.Values(attempts["slow"])))
		if !slices.Equal(slow, []int{1, 2, 3}) || len(attempts["slow"]) > 5 {
			t.Errorf("attempts of the slow message %v, want 1 to 3", attempts["slow"])
		}
		if !slices.Equal(attempts["held"], []int{1}) {
			t.Errorf("attempts of the held message %v, want 1", attempts["held"])
		}
		if text := fmt.Sprint(letter.Headers[amqpx.HeaderError]); letter.MessageId != "slow" || !strings.Contains(text, "consumer timeout") {
			t.Errorf("dead letter %q: %s", letter.MessageId, text)
		}
	})
}
