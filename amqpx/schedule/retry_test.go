package schedule

import (
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The sweeper leaves a task to its retries, however long their pauses are: those
// that the handler asks for, those of the consumer's policy, and snoozes.
func TestSweeperWaitsForRetries(t *testing.T) {
	onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
		failing := s.noted(func(d *amqpx.Delivery) error {
			switch {
			case d.Attempt == 3:
				return nil
			case d.ID == "snoozes" && d.Snoozes == 2:
				return nil
			case d.ID == "snoozes":
				return amqpx.Snooze(50 * time.Minute)
			case d.ID == "asks":
				return amqpx.RetryIn(time.Hour, errors.New("not yet"))
			}
			return errors.New("not yet")
		})
		policy := topology.Retry{Backoff: 40 * time.Minute, MaxBackoff: 2 * time.Hour, Jitter: topology.NoJitter}
		defer s.consume("q", Handler(s.db, failing), amqpx.WithRetry(policy))()
		for _, id := range []string{"asks", "backs off", "snoozes"} {
			s.schedule(Task{ID: id, Queue: "q", DeliverAt: time.Now().Add(59 * time.Second)})
		}
		after(3 * time.Hour)
		s.wantEffects("asks", "q 1m0s", "q 1h1m0s", "q 2h1m0s")
		s.wantEffects("backs off", "q 1m0s", "q 41m0s", "q 2h1m0s")
		s.wantEffects("snoozes", "q 1m0s", "q 51m0s", "q 1h41m0s")
		for id, attempts := range map[string]int{"asks": 2, "backs off": 2, "snoozes": 0} {
			s.wantTask(id, StatusDone, attempts)
			if got, err := s.Get(s.Context(), nil, id); err != nil || got.Sends != 1 {
				s.Errorf("task %s was sent %d times, %v", id, got.Sends, err)
			}
		}
	})
}

// A retry by a consumer whose clock is behind that of the task's instant is no
// older message.
func TestRetryByAClockThatIsBehind(t *testing.T) {
	onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
		fails := s.noted(func(d *amqpx.Delivery) error {
			if d.Attempt < 3 {
				return amqpx.RetryIn(10*time.Second, errors.New("not yet"))
			}
			return nil
		})
		defer s.consume("q", Handler(s.db, fails, OnSkip(nil)))()
		due := time.Now().Add(2 * time.Hour) // by another clock, which is two hours ahead
		s.schedule(Task{ID: "t", Queue: "q", DeliverAt: due})
		_, err := s.db.ExecContext(s.Context(), "UPDATE rabbitdelay_tasks SET sends = 1, sent_at = 1, resend_at = ?", due.UnixMilli())
		check(s.T, err)
		after(9 * time.Second)
		check(s.T, s.plain.Publish("", "q", false, false, amqp.Publishing{
			MessageId: "t", Headers: amqp.Table{amqpx.HeaderDue: due.UnixMilli(), amqpx.HeaderVersion: int64(1)},
		}))
		after(time.Minute)
		s.wantEffects("t", "q 10s", "q 20s", "q 30s")
		s.wantTask("t", StatusDone, 2)
	})
}
