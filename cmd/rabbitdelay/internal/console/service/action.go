package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// operator returns the caller as an operator, whose changes are recorded. If the caller is not an operator, or there is
// no database, every change returns an error.
func (c *Core) operator(who Identity) change.Operator {
	return change.Operator{Name: who.Name, Store: c.cfg.Store, Record: func(ctx context.Context, e change.Entry, do func() error) error {
		if _, err := c.store(); err != nil {
			return err
		}
		return c.recorded(ctx, who, e, do)
	}}
}

// Change applies an action to the task with the given id, and returns the task after the change. It returns the errors
// of the corresponding method of schedule.Store.
func (c *Core) Change(ctx context.Context, who Identity, id string, a change.Action) (schedule.TaskRow, error) {
	return c.operator(who).Task(ctx, id, a)
}

// BulkCount returns how many tasks Bulk would currently change.
func (c *Core) BulkCount(ctx context.Context, f schedule.Filter, a change.Action) (int64, error) {
	return readStore(ctx, c, func(ctx context.Context, s *taskview.Store) (int64, error) {
		act, err := a.Bulk()
		if err != nil {
			return 0, err
		}
		return s.BulkCount(ctx, all(f), act, schedule.BulkOptions{Spread: a.Spread})
	})
}

// Bulk starts a job that changes at most count of the tasks that f selects. The count is the number that BulkCount
// returned and the user confirmed.
func (c *Core) Bulk(ctx context.Context, who Identity, f schedule.Filter, a change.Action, count int64) (Job, error) {
	if count < 1 {
		return Job{}, &change.FieldError{Field: "count", Reason: fmt.Sprintf("count is %d; expected the number of tasks that a dry run has counted, which must be at least 1", count)}
	}
	s, err := c.store()
	if err != nil {
		return Job{}, err
	}
	if a, err = a.Check(); err != nil {
		return Job{}, err
	}
	act, err := a.Bulk()
	if err != nil {
		return Job{}, err
	}
	f = all(f)
	if err := s.CheckBulk(f, act, schedule.BulkOptions{Spread: a.Spread, Limit: count}); err != nil {
		return Job{}, err
	}
	q := request{Bulk: &bulkRequest{f, a, count}}
	return c.start(ctx, who, change.BulkEntry(f, a, count, false), count, q)
}

// all returns f without the fields that select, order and trim a page.
func all(f schedule.Filter) schedule.Filter {
	f.Limit, f.After, f.Sort, f.WithoutBody = 0, "", schedule.SortDue, false
	return f
}

// breath is the longest pause after a batch of a job. It is slightly longer than the 100 ms for which a writer sleeps
// between two attempts to get SQLite's lock.
const breath = 110 * time.Millisecond

type bulkRequest struct {
	Filter schedule.Filter `json:"filter"`
	Action change.Action   `json:"action"`
	Count  int64           `json:"count"`
}

// bulk runs a job that Bulk started, or resumes it if it was interrupted, and returns its outcome in one line.
func (c *Core) bulk(ctx context.Context, w *working, q bulkRequest) (string, error) {
	s, err := c.store()
	if err != nil {
		return "", err
	}
	act, err := q.Action.Bulk()
	if err != nil {
		return "", err
	}
	before := w.now().Done
	o := schedule.BulkOptions{Limit: q.Count - before, Spread: q.Action.Spread}
	if o.Limit <= 0 {
		return change.BulkOutcome(before), nil
	}
	// RescheduleBy is the only action that would change a task a second time, so it has to continue after the last changed
	// task.
	if q.Action.Kind == change.RescheduleBy && w.now().place != "" {
		o.After = schedule.Cursor(w.now().place)
	}
	o.Record = func(ctx context.Context, tx schedule.Executor, p schedule.BulkProgress, ids []any) error {
		return w.progress(ctx, sqldb.On(tx), before+p.Changed, string(p.Place), ids)
	}
	began := time.Now()
	o.Progress = func(p schedule.BulkProgress) {
		w.at(before+p.Changed, string(p.Place))
		select { // for as long as the batch took, but at most breath, so that other clients get their turn
		case <-time.After(min(time.Since(began), breath)):
		case <-ctx.Done():
		}
		began = time.Now()
	}
	p, err := s.Bulk(ctx, q.Filter, act, o)
	if errors.Is(err, errNotMine) {
		err = errNotMine
	}
	return change.BulkOutcome(before + p.Changed), err
}
