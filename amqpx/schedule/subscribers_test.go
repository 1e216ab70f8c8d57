package schedule

import (
	"errors"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// A task that is sent to an exchange takes effect once in each queue that receives it, however many times its message
// is delivered. A cancelled task has no effect in any queue.
func TestEachSubscriberHasTheEffect(t *testing.T) {
	for _, group := range []int{1, 50} {
		onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
			queues := []string{"mail", "audit", "search"}
			defer s.consumeAll(queues, Handler(s.db, s.noted(nil), WithGroup(group)))()
			s.exchange("events", queues...)
			at := time.Now().Add(time.Minute)
			s.schedule(Task{ID: "post", Exchange: "events", DeliverAt: at})
			s.schedule(Task{ID: "cancelled", Exchange: "events", DeliverAt: at})
			s.schedule(Task{ID: "one", Queue: "mail", DeliverAt: at})
			after(30 * time.Second)
			check(s.T, s.Cancel(s.Context(), NoTx, "cancelled"))
			// The message of the task post is delivered a second time.
			check(s.T, s.client.Send(s.Context(), amqpx.Message{ID: "post", Version: 1, Exchange: "events", DeliverAt: at.Add(time.Second)}))
			after(time.Hour)
			s.wantEffects("post", "mail 1m3s", "audit 1m3s", "search 1m3s")
			s.wantEffects("cancelled")
			s.wantEffects("one", "mail 1m3s")
			s.wantTask("post", StatusDone, 0)
			s.wantTask("cancelled", StatusCancelled, 0)
			// Records of effects are purged together with their tasks.
			records := func() (n int) {
				check(s.T, s.db.QueryRowContext(s.Context(), "SELECT COUNT(*) FROM rabbitdelay_effects").Scan(&n))
				return n
			}
			if n := records(); n != len(queues) {
				s.Errorf("table rabbitdelay_effects: got %d records, want %d", n, len(queues))
			}
			if n, err := s.Purge(s.Context(), Retention{Keep: time.Minute}); err != nil || n != 3 || records() != 0 {
				s.Errorf("Purge: got %d tasks, error %v and %d remaining records, want 3, no error and 0", n, err, records())
			}
		})
	}
}

// A handler that fails in one queue does not change the effects in the other queues, whether the failure is first or
// last.
func TestSubscribersFailApart(t *testing.T) {
	onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
		slow := s.noted(func(d *amqpx.Delivery) error {
			if d.Attempt == 1 {
				return amqpx.RetryIn(10*time.Minute, errors.New("not yet"))
			}
			return nil
		})
		rejects := s.noted(func(*amqpx.Delivery) error { return amqpx.Reject(errors.New("never")) })
		defer s.consume("slow", Handler(s.db, slow))()
		defer s.consume("rejects", Handler(s.db, rejects))()
		defer s.consume("quick", Handler(s.db, s.noted(nil)))()
		s.exchange("without", "slow", "rejects")
		s.exchange("with", "slow", "rejects", "quick")
		at := time.Now().Add(57 * time.Second)
		s.schedule(Task{ID: "failed, then done", Exchange: "without", DeliverAt: at})
		s.schedule(Task{ID: "done, then failed", Exchange: "with", DeliverAt: at})
		after(5 * time.Minute)
		s.wantTask("failed, then done", StatusFailed, 1)
		after(time.Hour)
		s.wantEffects("failed, then done", "rejects 1m0s", "slow 1m0s", "slow 11m0s")
		s.wantEffects("done, then failed", "rejects 1m0s", "slow 1m0s", "slow 11m0s", "quick 1m0s")
		s.wantTask("failed, then done", StatusDone, 1)
	})
}
