package schedule

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// A message that is handled after its task has expired has no effect, whether it is handled alone or in a group.
// Rescheduling the task also moves its expiry.
func TestTasksExpire(t *testing.T) {
	for name, opts := range map[string][]HandlerOption{"alone": nil, "in groups": {WithGroup(10)}} {
		t.Run(name, func(t *testing.T) {
			s, db := closedStore(t)
			due := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
			for id, after := range map[string]time.Duration{
				"late":    30 * time.Second,
				"early":   time.Hour,
				"never":   0,
				"moved":   30 * time.Second,
				"rounded": time.Minute + time.Hour + 1,
			} {
				check(t, s.Schedule(t.Context(), NoTx, Task{ID: id, Queue: "q", DeliverAt: due, ExpiresAfter: after}))
			}
			check(t, s.Schedule(t.Context(), NoTx, Task{ID: "to exchange", Exchange: "x", DeliverAt: due, ExpiresAfter: time.Second}))
			check(t, s.Reschedule(t.Context(), NoTx, "moved", due.Add(50*time.Second)))
			var effects []string
			skipped := map[string]SkipReason{}
			h := Handler(db, func(_ context.Context, _ *sql.Tx, d *amqpx.Delivery) error {
				effects = append(effects, d.ID)
				return nil
			}, append(opts, OnSkip(func(_ context.Context, d *amqpx.Delivery, r SkipReason) { skipped[d.ID] = r }))...)
			for range 2 { // the second is a duplicate
				for _, id := range []string{"late", "early", "never", "moved", "rounded", "to exchange"} {
					task, err := s.Get(t.Context(), NoTx, id)
					check(t, err)
					check(t, h(t.Context(), &amqpx.Delivery{
						ID: id, Queue: "q", Exchange: task.Exchange, Version: task.Version, DueAt: task.DeliverAt,
						Attempt: 1, MaxAttempts: 5,
					}))
				}
			}
			if got, want := fmt.Sprint(effects), "[early never moved rounded]"; got != want {
				t.Errorf("the effects are those of the tasks %s, want %s", got, want)
			}
			for id, want := range map[string]Status{"late": StatusExpired, "to exchange": StatusExpired, "early": StatusDone, "moved": StatusDone} {
				task, err := s.Get(t.Context(), NoTx, id)
				check(t, err)
				if task.Status != want || task.FinishedAt.IsZero() {
					t.Errorf("task %s is %s and finished at %v, want %s and a finish time", id, task.Status, task.FinishedAt, want)
				}
			}
			if skipped["late"] != SkipExpired || skipped["to exchange"] != SkipExpired {
				t.Errorf(`OnSkip got %v, want SkipExpired for "late" and "to exchange"`, skipped)
			}
			rounded, err := s.Get(t.Context(), NoTx, "rounded")
			check(t, err)
			if want := time.Hour + time.Minute + time.Millisecond; rounded.ExpiresAfter != want {
				t.Errorf("the task rounded has the expiry %v, want %v", rounded.ExpiresAfter, want)
			}
		})
	}
}

// The relay does not send expired tasks. They are purged like other finished tasks.
func TestExpiredTasksAreNotSent(t *testing.T) {
	sender := &recorder{}
	bubble(t, sender, Config{}, func(t *testing.T, s *Store, _ *sql.DB) {
		late := near("late")
		late.DeliverAt, late.ExpiresAfter = time.Now().Add(-time.Hour), time.Minute
		check(t, s.ScheduleBatch(t.Context(), NoTx, []Task{late, near("good")}))
		<-time.After(2 * time.Second)
		if got := sender.receipts(); len(got) != 1 || got[0].m.ID != "good" {
			t.Errorf(`the relay sent %v, want only "good"`, got)
		}
		task, err := s.Get(t.Context(), NoTx, "late")
		check(t, err)
		if task.Status != StatusExpired {
			t.Errorf("the late task is %s, want %s", task.Status, StatusExpired)
		}
		_, err = s.Purge(t.Context(), Retention{Keep: time.Second})
		check(t, err)
		if _, err := s.Get(t.Context(), NoTx, "late"); err == nil {
			t.Error("Get of the expired task after Purge: got no error, want one")
		}
	})
}

// A task does not expire early because its due time is 0, or because its expiry is so long that adding it to a time
// would overflow. Other programs may write such tasks with SQL.
func TestExpiresAfterBounds(t *testing.T) {
	onSite(t, Config{PollInterval: time.Second}, func(_ *testing.T, s *site) {
		defer s.consume("q", Handler(s.db, s.noted(nil)))()
		now := time.Now().UnixMilli()
		for id, c := range map[string]struct{ due, after int64 }{
			"at once": {0, 3_600_000}, "for ever": {now, math.MaxInt64}, "for ever at once": {0, math.MaxInt64}, "later": {now + 60_000, math.MaxInt64 - 1},
		} {
			_, err := s.db.ExecContext(s.Context(),
				"INSERT INTO rabbitdelay_tasks (id, queue, due_at, expires_after, created_at, updated_at) VALUES (?, 'q', ?, ?, ?, ?)",
				id, c.due, c.after, now, now)
			check(s.T, err)
		}
		s.schedule(Task{ID: "longest", Queue: "q", DeliverAt: time.Now(), ExpiresAfter: math.MaxInt64})
		after(10 * time.Minute)
		for _, id := range []string{"at once", "for ever", "for ever at once", "later", "longest"} {
			s.wantTask(id, StatusDone, 0)
		}
	})
}
