package schedule

import (
	"context"
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The sweeper does not send a task again while it is being retried or snoozed, however long the delay is and whether
// the handler or the retry policy sets it.
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
			if got, err := s.Get(s.Context(), NoTx, id); err != nil || got.Sends != 1 {
				s.Errorf("Get(%s): got %d sends, error %v, want 1 and no error", id, got.Sends, err)
			}
		}
	})
}

// If a message arrives before its task is due by the database's clock, it is sent again to arrive at that time. This
// does not count as an attempt.
func TestTooEarlyByTheDatabase(t *testing.T) {
	onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
		due := s.began.Add(2 * time.Hour)
		for name, handler := range map[string]amqpx.Handler{
			"task":  Handler(s.db, s.noted(nil)),
			"group": Handler(s.db, s.noted(nil), WithGroup(10)),
			"lease": LeaseHandler(s.db, func(context.Context, *amqpx.Delivery, string) (Func, error) { return s.noted(nil), nil }),
		} {
			s.consume(name, handler)
			s.schedule(Task{ID: name, Queue: name, DeliverAt: due})
		}
		_, err := s.db.ExecContext(s.Context(), "UPDATE rabbitdelay_tasks SET sends = 1, sent_at = 1, resend_at = due_at")
		check(s.T, err)
		names := []string{"task", "group", "lease"}
		for _, name := range names {
			// With this timestamp, the publisher's clock seems to be ahead, so that a handler without access to the
			// table would rely on the broker's clock.
			check(s.T, s.plain.Publish("", name, false, false, amqp.Publishing{
				MessageId: name, Timestamp: due, Headers: amqp.Table{amqpx.HeaderDue: due.UnixMilli(), amqpx.HeaderVersion: int64(1)},
			}))
		}
		after(time.Hour)
		for _, name := range names {
			s.wantTask(name, StatusPending, 0)
		}
		after(2 * time.Hour)
		for _, name := range names {
			s.wantTask(name, StatusDone, 0)
			s.wantEffects(name, name+" 2h0m0s")
		}
	})
}

// If the consumer's clock is behind the clock that determined the task's due time, a retry is not mistaken for an older
// message.
func TestRetryByAClockThatIsBehind(t *testing.T) {
	onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
		fails := s.noted(func(d *amqpx.Delivery) error {
			if d.Attempt < 3 {
				return amqpx.RetryIn(10*time.Second, errors.New("not yet"))
			}
			return nil
		})
		h := newHandler(sqldb.Of(s.db), fails, nil)
		h.clock.Ask = func(context.Context) (time.Time, error) { return time.Now().Add(2 * time.Hour), nil }
		defer s.consume("q", h.handle)()
		due := time.Now().Add(2 * time.Hour) // the due time by the database's clock
		s.schedule(Task{ID: "t", Queue: "q", DeliverAt: due})
		_, err := s.db.ExecContext(s.Context(), "UPDATE rabbitdelay_tasks SET sends = 1, sent_at = 1, resend_at = ?", due.UnixMilli())
		check(s.T, err)
		after(9 * time.Second)
		check(s.T, s.plain.Publish("", "q", false, false, amqp.Publishing{
			MessageId: "t", Timestamp: time.Now().Add(2 * time.Hour), Headers: amqp.Table{amqpx.HeaderDue: due.UnixMilli(), amqpx.HeaderVersion: int64(1)},
		}))
		after(time.Minute)
		s.wantEffects("t", "q 10s", "q 20s", "q 30s")
		s.wantTask("t", StatusDone, 2)
	})
}

// With immediate retries, an attempt counts only when its last run has failed. The result that the consumer's error
// policy returns decides what is recorded in the task's row.
func TestImmediateRetriesAndPolicyOfTasks(t *testing.T) {
	errGone, errDown := errors.New("no such order"), errors.New("provider is down")
	policy := func(_ *amqpx.Delivery, err error) error {
		switch {
		case errors.Is(err, errGone):
			return amqpx.Reject(err)
		case errors.Is(err, errDown):
			return amqpx.Snooze(time.Hour)
		}
		return nil
	}
	for name, handler := range map[string]func(*site, Func) amqpx.Handler{
		"task":  func(s *site, fn Func) amqpx.Handler { return Handler(s.db, fn) },
		"group": func(s *site, fn Func) amqpx.Handler { return Handler(s.db, fn, WithGroup(4)) },
		"lease": func(s *site, fn Func) amqpx.Handler {
			return LeaseHandler(s.db, func(context.Context, *amqpx.Delivery, string) (Func, error) { return fn, nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
				runs := map[string]int{}
				fails := func(d *amqpx.Delivery) error {
					runs[d.ID]++
					switch {
					case d.ID == "gone":
						return errGone
					case d.ID == "down" && d.Snoozes == 0:
						return errDown
					case d.ID == "third" && runs[d.ID] == 3, d.ID == "down":
						return nil
					}
					return errors.New("not yet")
				}
				s.consume("q", handler(s, s.noted(fails)), amqpx.WithErrorPolicy(policy), amqpx.WithConcurrency(1),
					amqpx.WithRetry(topology.Retry{MaxAttempts: 2, ImmediateRetries: 2, Backoff: time.Minute, Jitter: topology.NoJitter}))
				for _, id := range []string{"third", "never", "gone", "down"} {
					s.schedule(Task{ID: id, Queue: "q", DeliverAt: s.began.Add(time.Hour)})
				}
				after(4 * time.Hour)
				s.wantTask("third", StatusDone, 0)
				s.wantTask("never", StatusFailed, 2)
				s.wantTask("gone", StatusFailed, 1)
				s.wantTask("down", StatusDone, 0)
				for id, want := range map[string]int{"third": 3, "never": 6, "gone": 1, "down": 2} {
					if runs[id] != want {
						s.Errorf("the handler of task %s ran %d times, want %d", id, runs[id], want)
					}
				}
			})
		})
	}
}
