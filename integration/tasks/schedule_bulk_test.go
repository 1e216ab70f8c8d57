package tasks_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// Many tasks are rescheduled while a handler works on one of them. The others do not wait for it, and it is done
// instead of being rescheduled. Then the other tasks are cancelled by their tag and deleted.
func TestBulkDuringAHandler(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		const n = 2_500
		due := time.Now().Truncate(time.Millisecond)
		tasks := make([]schedule.Task, n)
		for i := range tasks {
			tasks[i] = schedule.Task{
				ID: fmt.Sprintf("t%04d", i), Queue: "q", DeliverAt: due.Add(time.Duration(i) * time.Millisecond),
				Headers: map[string]string{"tenant": "blue"},
			}
			if i%2 == 0 {
				tasks[i].Tags = []string{"even"}
			}
		}
		suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, tasks))

		working, finish, handled := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		if db.dialect == idempotency.SQLite { // SQLite has one writer at a time
			close(working)
		}
		handler := db.taskHandler(func(context.Context, schedule.Executor, *amqpx.Delivery) error {
			if db.dialect != idempotency.SQLite {
				close(working)
				<-finish
			}
			return nil
		})
		handle := func() {
			handled <- handler(t.Context(), &amqpx.Delivery{ID: "t0100", Queue: "q", Version: 1, Attempt: 1, MaxAttempts: 5, DueAt: tasks[100].DeliverAt})
		}
		go handle()
		<-working
		if db.dialect == idempotency.SQLite {
			suite.MustSucceed(t, <-handled)
			handled <- nil
		}

		var finishing bool
		got, err := s.Bulk(t.Context(), schedule.Filter{
			Queue: "q", Header: "tenant", HeaderValue: "blue",
		}, schedule.BulkRescheduleBy(time.Hour), schedule.BulkOptions{
			Batch: 400,
			Progress: func(p schedule.BulkProgress) {
				if p.Changed == n-1 && !finishing { // all others have been rescheduled
					finishing = true
					close(finish)
				}
			},
		})
		suite.MustSucceed(t, err)
		suite.MustSucceed(t, <-handled)
		if got.Changed != n-1 || got.Place != "" {
			t.Errorf("rescheduled %d tasks and stopped at %q, want %d and an empty Place", got.Changed, got.Place, n-1)
		}
		if one := taskOf(t, s, "t0100"); one.Status != schedule.StatusDone || !one.DeliverAt.Equal(tasks[100].DeliverAt) {
			t.Errorf("the task that was being handled is %s, due at %v, want done at its original time %v", one.Status, one.DeliverAt, tasks[100].DeliverAt)
		}
		if one := taskOf(t, s, "t0101"); one.Version != 2 || !one.DeliverAt.Equal(tasks[101].DeliverAt.Add(time.Hour)) {
			t.Errorf("a rescheduled task: got %+v, want Version = 2 and DeliverAt = %v", one, tasks[101].DeliverAt.Add(time.Hour))
		}

		count, err := s.BulkCount(t.Context(), schedule.Filter{Tag: "even"}, schedule.BulkCancel(), schedule.BulkOptions{})
		suite.MustSucceed(t, err)
		cancelled, err := s.Bulk(t.Context(), schedule.Filter{Tag: "even"}, schedule.BulkCancel(), schedule.BulkOptions{})
		suite.MustSucceed(t, err)
		if count != n/2-1 || cancelled.Changed != count {
			t.Errorf("counted %d tasks and cancelled %d, want %d of both", count, cancelled.Changed, n/2-1)
		}
		deleted, err := s.Bulk(t.Context(), schedule.Filter{}, schedule.BulkDelete(), schedule.BulkOptions{})
		suite.MustSucceed(t, err)
		if tags := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_task_tags"); deleted.Changed != n/2 || tags != 0 {
			t.Errorf("deleted %d tasks, and %d tags are left, want %d and 0", deleted.Changed, tags, n/2)
		}
		if left := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks"); left != n/2 {
			t.Errorf("%d tasks are left, want %d", left, n/2)
		}
	})
}

// Failed tasks are grouped by error on every database, regardless of their number, and a change of the tasks with one
// error changes only these.
func TestTasksByError(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		const n, kinds = 6_000, 5
		tasks := make([]schedule.Task, n)
		for i := range tasks {
			tasks[i] = schedule.Task{ID: fmt.Sprintf("t%05d", i), Queue: "q", DeliverAt: time.Now()}
		}
		for batch := range slices.Chunk(tasks, 1000) {
			suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, batch))
		}
		for kind := range kinds {
			// The errors differ by one letter. If LIKE treated the percent sign and the underscore in 100%_a as wildcards,
			// it would match all of them.
			text := fmt.Sprintf("100%%_%c of %q failed:\n\t503", 'a'+kind, "order")
			_, err := db.ExecContext(t.Context(), fmt.Sprintf("UPDATE rabbitdelay_tasks "+
				"SET status = 'failed', finished_at = due_at, last_error = '%s' WHERE id LIKE '%%%d' OR id LIKE '%%%d'",
				text, kind, kind+kinds))
			suite.MustSucceed(t, err)
		}
		groups, err := db.view(t).ErrorGroups(t.Context(), schedule.Filter{Queue: "q"}, taskview.ErrorGroupOptions{Order: taskview.GroupsMost})
		suite.MustSucceed(t, err)
		if len(groups.Groups) != kinds || groups.Sampled != n || groups.More {
			t.Fatalf("got %+v, want %v groups, Sampled = %v and More = false", groups, kinds, n)
		}
		for _, g := range groups.Groups {
			if g.Tasks != n/kinds {
				t.Errorf("the group of the error %q has %d tasks, want %d", g.ErrorLike, g.Tasks, n/kinds)
			}
		}
		f := schedule.Filter{Status: schedule.StatusFailed, Queue: "q", ErrorLike: groups.Groups[0].ErrorLike}
		count, err := s.BulkCount(t.Context(), f, schedule.BulkDelete(), schedule.BulkOptions{})
		suite.MustSucceed(t, err)
		if count != n/kinds {
			t.Errorf("%d tasks counted, want %d", count, n/kinds)
		}
		p, err := s.Bulk(t.Context(), f, schedule.BulkDelete(), schedule.BulkOptions{Batch: 100})
		suite.MustSucceed(t, err)
		if p.Changed != n/kinds {
			t.Errorf("%d tasks deleted, want %d", p.Changed, n/kinds)
		}
		groups, err = db.view(t).ErrorGroups(t.Context(), schedule.Filter{}, taskview.ErrorGroupOptions{Sample: 100})
		suite.MustSucceed(t, err)
		if len(groups.Groups) != kinds-1 || groups.Sampled != 100 || !groups.More {
			t.Errorf("after the change: got %+v, want %v groups, Sampled = 100 and More = true", groups, kinds-1)
		}
	})
}
