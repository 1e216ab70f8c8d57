package schedule

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// rivals runs a bulk change of 100 tasks in batches of one, so that it reads several pages. After the given number of
// changes, it executes a statement, as another operator could.
func rivals(t *testing.T, a BulkAction, status Status, after int64, base time.Time, statement string, args ...any) (p BulkProgress, ids map[string]int, s *Store) {
	t.Helper()
	s, db := closedStore(t)
	many(t, s, base, 100)
	_, err := db.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET status = ?, finished_at = ?", status, base.UnixMilli())
	check(t, err)
	ids = map[string]int{}
	p, err = s.Bulk(t.Context(), Filter{}, a, BulkOptions{
		Batch: 1,
		Progress: func(p BulkProgress) {
			if p.Changed == after {
				_, err := db.ExecContext(t.Context(), statement, args...)
				check(t, err)
			}
		},
		Record: func(_ context.Context, _ Executor, _ BulkProgress, changed []any) error {
			for _, id := range changed {
				ids[fmt.Sprint(id)]++
			}
			return nil
		},
	})
	check(t, err)
	return p, ids, s
}

// If tasks that a bulk change has already changed are rescheduled by another operator, or fail again, the bulk change
// does not change or count them a second time.
func TestBulkChangesEachTaskOnce(t *testing.T) {
	base := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	later := base.Add(100 * time.Hour).UnixMilli()
	move := "UPDATE rabbitdelay_tasks SET due_at = ?, version = version + 1"
	for name, c := range map[string]struct {
		action    BulkAction
		status    Status
		statement string
		args      []any
	}{
		"reschedule":      {BulkReschedule(base.Add(24 * time.Hour)), StatusPending, move, []any{later}},
		"by, earlier":     {BulkRescheduleBy(-time.Minute), StatusPending, move, []any{later}},
		"by, later":       {BulkRescheduleBy(time.Minute), StatusPending, move, []any{base.Add(-time.Minute).UnixMilli()}},
		"run":             {BulkRunNow(), StatusPending, move, []any{later}},
		"revive":          {BulkRevive(base.Add(24 * time.Hour)), StatusFailed, "UPDATE rabbitdelay_tasks SET status = 'failed', finished_at = ?", []any{later}},
		"run, some tasks": {BulkRunNow(), StatusPending, "UPDATE rabbitdelay_tasks SET due_at = ?, version = version + 1 WHERE id LIKE '%5'", []any{later}},
	} {
		t.Run(name, func(t *testing.T) {
			p, ids, _ := rivals(t, c.action, c.status, 50, base, c.statement, c.args...)
			if p.Changed != 100 || len(ids) != 100 {
				t.Errorf("Bulk with a rival: got %d changes of %d different tasks, want 100 changes of 100", p.Changed, len(ids))
			}
		})
	}
}

// If another operator reschedules tasks to a time that a bulk change has already passed, the run returns to them.
func TestBulkFindsTasksMovedBehindIt(t *testing.T) {
	base := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	move := "UPDATE rabbitdelay_tasks SET due_at = ?, version = version + 1 WHERE status = 'pending' AND version = 1"
	for name, c := range map[string]struct {
		action BulkAction
		to     time.Time
	}{
		"cancel":      {BulkCancel(), base.Add(-time.Minute)},
		"reschedule":  {BulkReschedule(base.Add(24 * time.Hour)), base.Add(-time.Minute)},
		"by, earlier": {BulkRescheduleBy(-time.Minute), base.Add(-time.Hour)},
		"by, later":   {BulkRescheduleBy(time.Minute), base.Add(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			p, ids, s := rivals(t, c.action, StatusPending, 5, base, move, c.to.UnixMilli())
			if p.Changed != 100 || len(ids) != 100 {
				t.Errorf("Bulk with tasks moved behind it: got %d changes of %d different tasks, want 100 changes of 100", p.Changed, len(ids))
			}
			left := 0
			for _, due := range dues(t, s, Filter{Status: StatusPending}) {
				if due.Equal(c.to) {
					left++
				}
			}
			if left > 0 {
				t.Errorf("%d tasks are still due at %v, as the other operator set them, want 0", left, c.to)
			}
		})
	}
}

// A task that another operator has made due since a bulk change started is not counted by the bulk change.
func TestBulkRunsOnlyWhatIsNotDue(t *testing.T) {
	base := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	p, _, _ := rivals(t, BulkRunNow(), StatusPending, 5, base,
		"UPDATE rabbitdelay_tasks SET due_at = CAST(unixepoch('subsec') * 1000 AS integer), version = version + 1 WHERE version = 1")
	if p.Changed != 5 {
		t.Errorf("the bulk change made %d tasks due, want 5, because the other operator made the remaining ones due", p.Changed)
	}
}

// Record gets the ids of the tasks that were revived, but not of those whose unique key belongs to another pending
// task.
func TestBulkRecordsOnlyRevivedTasks(t *testing.T) {
	s, db := closedStore(t)
	many(t, s, time.Now().Add(time.Hour), 3)
	_, err := db.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET unique_key = 'k', status = 'failed', finished_at = 1 WHERE id <> 't0002'")
	check(t, err)
	var ids []any
	p, err := s.Bulk(t.Context(), Filter{}, BulkRevive(time.Now()), BulkOptions{
		Record: func(_ context.Context, _ Executor, _ BulkProgress, changed []any) error {
			ids = append(ids, changed...)
			return nil
		},
	})
	check(t, err)
	if p.Changed != 1 || len(ids) != 1 || ids[0] != "t0000" {
		t.Errorf("%d tasks were revived and %v were recorded, want 1 and [t0000]", p.Changed, ids)
	}
}
