package schedule

import (
	"testing"
	"time"
)

// A list and a bulk change find matching tasks behind any number of tasks with other errors.
func TestFilterByRareError(t *testing.T) {
	s, db := closedStore(t)
	base := time.Now().Truncate(time.Second).Add(time.Hour)
	const n = 1300 // more than two pages of a list, and of a bulk change with a small batch
	many(t, s, base, n)
	_, err := db.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET status = 'failed', last_error = 'order ' || id || ' is broken', finished_at = due_at")
	check(t, err)
	_, err = db.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET last_error = 'ORDER 1 is broken' WHERE id IN ('t0003', 't1299')")
	check(t, err)
	f := Filter{ErrorLike: "ORDER # is broken", Limit: 10, Sort: SortEndedLast}
	if got := len(dues(t, s, f)); got != 2 {
		t.Errorf("%d tasks were listed, want 2", got)
	}
	f.Limit, f.Sort = 0, SortDue
	p, err := s.Bulk(t.Context(), f, BulkDelete(), BulkOptions{Batch: 2})
	check(t, err)
	if p.Changed != 2 {
		t.Errorf("%d tasks were deleted, want 2", p.Changed)
	}
}

// If a task's last error changes during a bulk change that selects by error, so that the filter no longer matches, the
// task is left out.
func TestErrorChangesDuringBulk(t *testing.T) {
	s, db := closedStore(t)
	many(t, s, time.Now().Add(time.Hour), 6)
	_, err := db.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET attempts = 1, last_error = 'timeout'")
	check(t, err)
	o := BulkOptions{Batch: 1, Progress: func(p BulkProgress) {
		_, err := db.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET last_error = 'no such user' WHERE id = 't0003'")
		check(t, err)
	}}
	p, err := s.Bulk(t.Context(), Filter{ErrorLike: "timeout"}, BulkCancel(), o)
	check(t, err)
	if p.Changed != 5 {
		t.Errorf("%d tasks were changed, want 5", p.Changed)
	}
	task, err := s.Get(t.Context(), NoTx, "t0003")
	check(t, err)
	if task.Status != StatusPending {
		t.Errorf("the task whose error changed has status %s, want pending", task.Status)
	}
}
