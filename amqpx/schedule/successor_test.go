package schedule

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// A handler can replace its own task in its transaction, for a queue, for an exchange and under a lease. The task takes
// effect, and then the new one does.
func TestHandlerReplacesItsTask(t *testing.T) {
	for name, c := range map[string]struct {
		task  Task
		lease bool
	}{
		"queue":              {task: Task{Queue: "q"}},
		"exchange":           {task: Task{Exchange: "events"}},
		"lease":              {task: Task{Queue: "q"}, lease: true},
		"lease and exchange": {task: Task{Exchange: "events"}, lease: true},
	} {
		t.Run(name, func(t *testing.T) {
			onSite(t, Config{PollInterval: time.Minute}, func(_ *testing.T, s *site) {
				note := s.noted(nil)
				again := func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
					if err := note(ctx, tx, d); err != nil || len(s.saw(d.ID)) > 3 {
						return err
					}
					next := c.task
					next.ID, next.DeliverAt = d.ID, time.Now().Add(time.Hour)
					return s.Schedule(ctx, tx, replacing(next))
				}
				h := Handler(s.db, again)
				if c.lease {
					h = LeaseHandler(s.db, func(context.Context, *amqpx.Delivery, string) (Func, error) { return again, nil })
				}
				defer s.consume("q", h)()
				s.exchange("events", "q")
				first := c.task
				first.ID, first.DeliverAt = "again", time.Now().Add(time.Minute)
				s.schedule(first)
				after(10 * time.Hour)
				s.mu.Lock()
				saw := s.effects
				s.mu.Unlock()
				for i := range saw {
					if i > 0 && (saw[i].at-saw[i-1].at).Round(time.Minute) != time.Hour {
						s.Errorf("the task has the effects %+v, want them an hour apart", saw)
					}
				}
				if len(saw) != 4 {
					s.Errorf("the task has the effects %+v, want 4", saw)
				}
				s.wantTask("again", StatusDone, 0)
			})
		})
	}
}

// The message of a deleted task has no effect on another task with the same id.
func TestMessageOfADeletedTask(t *testing.T) {
	s, db := closedStore(t)
	due := time.Now().Add(-time.Second)
	var created []time.Time
	for range 2 {
		check(t, s.Schedule(t.Context(), NoTx, Task{ID: "a", Queue: "q", DeliverAt: due}))
		got, err := s.Get(t.Context(), NoTx, "a")
		check(t, err)
		created = append(created, got.CreatedAt)
		if len(created) == 1 {
			check(t, s.Cancel(t.Context(), NoTx, "a"))
			if n, err := s.Bulk(t.Context(), Filter{}, BulkDelete(), BulkOptions{}); err != nil || n.Changed != 1 {
				t.Fatalf("deleting all tasks: got %+v, error %v, want Changed = 1 and no error", n, err)
			}
			for !time.Now().After(created[0].Add(time.Millisecond)) {
				continue
			}
		}
	}
	for _, group := range []int{1, 10} {
		var skipped SkipReason
		ran := 0
		h := Handler(db, func(context.Context, *sql.Tx, *amqpx.Delivery) error { ran++; return nil }, WithGroup(group),
			OnSkip(func(_ context.Context, _ *amqpx.Delivery, r SkipReason) { skipped = r }))
		check(t, h(t.Context(), &amqpx.Delivery{ID: "a", Queue: "q", Version: 1, Created: created[0], DueAt: due.Add(time.Minute)}))
		if ran != 0 || skipped != SkipStale {
			t.Errorf("group %d: the handler ran %d times and skipped the message as %q, want 0 and %q", group, ran, skipped, SkipStale)
		}
	}
}
