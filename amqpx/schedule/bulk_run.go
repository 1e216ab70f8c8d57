package schedule

import (
	"context"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Bulk changes all tasks that the filter chooses, in transactions of a batch each,
// in the order of their due instants (BulkMoveBy with a positive duration: from the
// last). Tasks that appear meanwhile may be changed or not. A task that a handler
// works on does not hold up the others; Bulk comes back to it at the end.
//
// When ctx ends, or after an error, the batches before stay changed. A second run
// goes on where the first ended, with all actions but BulkMoveBy also without
// BulkOptions.After. Errors: ErrConfig.
func (s *Store) Bulk(ctx context.Context, f Filter, a BulkAction, o BulkOptions) (BulkProgress, error) {
	r := bulkRun{s: s, filter: f, action: a, opts: o, began: s.now()}
	if err := r.action.validate(&r.filter, &r.opts, r.began); err != nil {
		return r.done, err
	}
	var err error
	if r.dialect, err = s.dialect.Resolve(ctx, s.db); err != nil {
		return r.done, err
	}
	if r.opts.Spread > 0 {
		if r.total, err = s.BulkCount(ctx, f, a); err != nil {
			return r.done, err
		}
	}
	r.done.Cursor = r.opts.After
	for _, status := range r.action.statuses(r.filter) {
		if err := r.all(ctx, status); err != nil {
			return r.done, fmt.Errorf("bulk %s: after %d tasks: %w", a.verb, r.done.Changed, sqldb.Explain(err))
		}
		r.done.Cursor = Cursor{}
	}
	if r.done.Changed > 0 && a.verb != "cancel" && a.verb != "delete" {
		s.Wake()
	}
	return r.done, nil
}

type bulkRun struct {
	s       *Store
	dialect Dialect
	filter  Filter
	action  BulkAction
	opts    BulkOptions
	began   time.Time
	total   int64 // only with Spread
	done    BulkProgress
}

// all changes the tasks of one status.
func (r *bulkRun) all(ctx context.Context, status Status) error {
	var held []Cursor
	for {
		page, err := r.page(ctx, status)
		if err != nil {
			return err
		}
		if len(page) > 0 {
			missed, err := r.change(ctx, status, page, true)
			if err != nil {
				return err
			}
			held = append(held, missed...)
			r.done.Held = int64(len(held))
			r.done.Cursor = page[len(page)-1]
			r.report()
		}
		if len(page) < r.opts.Batch || r.full() {
			break
		}
		if err := pauseFor(ctx, r.opts.Pause); err != nil {
			return err
		}
	}
	for len(held) > 0 && !r.full() {
		if _, err := r.change(ctx, status, held[:1], false); err != nil {
			return err
		}
		held = held[1:]
		r.done.Held = int64(len(held))
		r.report()
	}
	return nil
}

func (r *bulkRun) full() bool { return r.opts.Limit > 0 && r.done.Changed >= r.opts.Limit }

func (r *bulkRun) report() {
	if r.opts.Progress != nil {
		r.opts.Progress(r.done)
	}
}

func pauseFor(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// backwards is the order of tasks that move later: what has moved is not met
// again.
func (r *bulkRun) backwards() bool { return r.action.by > 0 }

// page reads the places of the next tasks, without locking them.
func (r *bulkRun) page(ctx context.Context, status Status) ([]Cursor, error) {
	where, args, err := r.action.where(r.filter, status, r.opts, r.began)
	if err != nil {
		return nil, err
	}
	order, beyond := "due_at, id", ">"
	if r.backwards() {
		order, beyond = "due_at DESC, id DESC", "<"
	}
	if c := r.done.Cursor; c.ID != "" {
		at := stored(c.DeliverAt)
		where += fmt.Sprintf(" AND due_at %s= ? AND (due_at %s ? OR id %s ?)", beyond, beyond, beyond)
		args = append(args, at, at, c.ID)
	}
	n := int64(r.opts.Batch)
	if r.opts.Limit > 0 {
		n = min(n, r.opts.Limit-r.done.Changed)
	}
	rows, err := r.s.db.QueryContext(ctx, r.dialect.Bind(fmt.Sprintf("SELECT id, due_at FROM rabbitdelay_tasks%s ORDER BY %s LIMIT %d", where, order, n)), args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var page []Cursor
	for rows.Next() {
		var c Cursor
		var due int64
		if err := rows.Scan(&c.ID, cell{"due_at", &due, &rowError{}}); err != nil {
			return nil, err
		}
		c.DeliverAt = time.UnixMilli(due)
		page = append(page, c)
	}
	return page, rows.Err()
}

// change changes those of the page that nobody holds, and returns the others; or,
// without skip, waits for them. A task that has changed meanwhile must still be
// what the filter chooses.
func (r *bulkRun) change(ctx context.Context, status Status, page []Cursor, skip bool) (held []Cursor, err error) {
	where, args, err := r.action.where(r.filter, status, r.opts, r.began)
	if err != nil {
		return nil, err
	}
	set, values := r.action.set(r.s.now(), r.offset())
	var n int64
	err = sqldb.Transact(ctx, r.s.db, readCommitted(r.dialect), func(tx sqldb.Tx) error {
		held = nil
		free := make([]any, len(page))
		for i, c := range page {
			free[i] = c.ID
		}
		if skip && r.dialect != SQLite {
			var missed []any
			free, missed, err = unlocked(ctx, tx, r.dialect, free, "SELECT id FROM rabbitdelay_tasks WHERE id IN ("+marks(len(free))+") FOR UPDATE SKIP LOCKED", free)
			if err != nil {
				return err
			}
			held = among(page, missed)
		}
		if len(free) == 0 {
			n = 0
			return nil
		}
		all := append(append(append([]any{}, values...), args...), free...)
		res, err := tx.ExecContext(ctx, r.dialect.Bind(set+where+" AND id IN ("+marks(len(free))+")"), all...)
		if err != nil {
			return err
		}
		n, err = res.RowsAffected()
		return err
	})
	if err == nil {
		r.done.Changed += n
	}
	return held, err
}

// among are the members of the page with these ids. A row that was deleted looks
// like one that is held; the second look tells.
func among(page []Cursor, ids []any) []Cursor {
	missed := make(map[any]bool, len(ids))
	for _, id := range ids {
		missed[id] = true
	}
	var out []Cursor
	for _, c := range page {
		if missed[c.ID] {
			out = append(out, c)
		}
	}
	return out
}

// offset is the batch's place in the period of Spread.
func (r *bulkRun) offset() time.Duration {
	if r.total == 0 {
		return 0
	}
	share := min(float64(r.done.Changed)/float64(r.total), 1)
	return time.Duration(share * float64(r.opts.Spread))
}

// set is the statement up to its WHERE.
func (a *BulkAction) set(now time.Time, offset time.Duration) (statement string, args []any) {
	const update = "UPDATE rabbitdelay_tasks SET "
	const renew = ", updated_at = ?, version = version + 1, " + renewed
	switch {
	case a.verb == "delete":
		return "DELETE FROM rabbitdelay_tasks", nil
	case a.verb == "cancel":
		return update + "status = 'cancelled', finished_at = ?, updated_at = ?", []any{now.UnixMilli(), now.UnixMilli()}
	case a.by != 0:
		by := a.by.Milliseconds()
		due := fmt.Sprintf("CASE WHEN due_at + %d > %d THEN %d WHEN due_at + %d < %d THEN 0 ELSE due_at + %d END", by, int64(maxDue), int64(maxDue), by, int64(minDue), by)
		return update + "due_at = " + due + renew, []any{now.UnixMilli()}
	}
	return update + "due_at = ?" + renew, []any{millis(a.at.Add(offset)), now.UnixMilli()}
}
