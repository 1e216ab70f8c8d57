package schedule

import (
	"context"
	"fmt"
	"slices"
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
		if r.total, err = s.BulkCount(ctx, f, a, o); err != nil {
			return r.done, err
		}
	}
	r.done.Place = r.opts.After
	for _, status := range r.action.statuses(r.filter) {
		if err := r.all(ctx, status); err != nil {
			return r.done, fmt.Errorf("bulk %s: after %d tasks: %w", a.verb, r.done.Changed, sqldb.Explain(err))
		}
		r.done.Place = BulkPlace{}
	}
	if r.done.Changed > 0 && a.verb != "cancel" && a.verb != "delete" {
		s.wakeFor(0)
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

// place is a task as a page found it.
type place struct {
	Cursor

	version int64
}

// pageBatches is how many batches are read at once: a database that has no
// statistics yet may read all that the filter chooses for each page.
const pageBatches = 20

// maxHeld is how many held tasks wait until the end of a run.
const maxHeld = 100

// all changes the tasks of one status.
func (r *bulkRun) all(ctx context.Context, status Status) error {
	for last := false; !last && !r.full(); {
		page, err := r.page(ctx, status)
		if err != nil {
			return err
		}
		last = len(page) < pageBatches*r.opts.Batch
		for batch := range slices.Chunk(page, r.opts.Batch) {
			if r.done.Place.ID != "" {
				if err := pauseFor(ctx, r.opts.Pause); err != nil {
					return err
				}
			}
			if batch = r.within(batch); len(batch) == 0 {
				break
			}
			if err := r.change(ctx, status, batch); err != nil {
				return err
			}
			if err := r.changeHeld(ctx, status, maxHeld); err != nil {
				return err
			}
		}
	}
	return r.changeHeld(ctx, status, 0)
}

// within is as much of the batch as the limit leaves.
func (r *bulkRun) within(batch []place) []place {
	if r.opts.Limit == 0 {
		return batch
	}
	return batch[:min(int64(len(batch)), r.opts.Limit-r.done.Changed)]
}

func (r *bulkRun) full() bool { return r.opts.Limit > 0 && r.done.Changed >= r.opts.Limit }

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
func (r *bulkRun) page(ctx context.Context, status Status) ([]place, error) {
	where, args, err := r.action.where(r.filter, status, r.opts, r.began)
	if err != nil {
		return nil, err
	}
	order, beyond := "due_at, id", ">"
	if r.backwards() {
		order, beyond = "due_at DESC, id DESC", "<"
	}
	if c := r.done.Place; c.ID != "" {
		at := stored(c.DeliverAt)
		where += fmt.Sprintf(" AND due_at %s= ? AND (due_at %s ? OR id %s ?)", beyond, beyond, beyond)
		args = append(args, at, at, c.ID)
	}
	rows, err := r.s.db.QueryContext(ctx, r.dialect.Bind(fmt.Sprintf("SELECT id, due_at, version FROM rabbitdelay_tasks%s ORDER BY %s LIMIT %d", where, order, pageBatches*r.opts.Batch)), args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var page []place
	for rows.Next() {
		var p place
		var due int64
		if err := rows.Scan(&p.ID, cell{"due_at", &due, &rowError{}}, &p.version); err != nil {
			return nil, err
		}
		p.DeliverAt = time.UnixMilli(due)
		page = append(page, p)
	}
	return page, rows.Err()
}

// change changes those of the batch that nobody holds and that are as the page found
// them; the others are held from then on.
//
// It goes by their ids alone. With the filter beside them a database whose
// statistics are behind reads all that the filter chooses, with the rows locked.
func (r *bulkRun) change(ctx context.Context, status Status, batch []place) error {
	ids := make([]any, len(batch))
	for i, p := range batch {
		ids[i] = p.ID
	}
	return r.transact(ctx, func(tx sqldb.Tx, p *BulkProgress) error {
		locked, err := r.lock(ctx, tx, ids, "FOR UPDATE SKIP LOCKED")
		if err != nil {
			return err
		}
		p.Place = BulkPlace{Cursor: batch[len(batch)-1].Cursor, Held: slices.Clone(p.Place.Held)}
		var free []any
		for _, found := range batch {
			switch s, ok := locked[found.ID]; {
			case s == lockedRow{found.version, status}:
				free = append(free, found.ID)
			case !ok || s.status == status: // locked and deleted look alike
				p.Place.Held = append(p.Place.Held, found.ID)
			}
		}
		return r.update(ctx, tx, free, p)
	})
}

// changeHeld changes those of the held tasks that the filter still chooses, until so
// many are left: in one batch those that are free by now, then each of the others as
// soon as it is.
func (r *bulkRun) changeHeld(ctx context.Context, status Status, left int) error {
	lock := "FOR UPDATE SKIP LOCKED"
	for n := len(r.done.Place.Held) - left; n > 0 && !r.full(); n = min(1, len(r.done.Place.Held)-left) {
		if r.opts.Limit > 0 {
			n = int(min(int64(n), r.opts.Limit-r.done.Changed))
		}
		held := r.done.Place.Held
		ids := make([]any, n)
		for i := range ids {
			ids[i] = held[i]
		}
		err := r.transact(ctx, func(tx sqldb.Tx, p *BulkProgress) error {
			locked, err := r.lock(ctx, tx, ids, lock)
			if err != nil {
				return err
			}
			if lock == "FOR UPDATE" {
				p.Place.Held = held[n:]
			} else {
				p.Place.Held = slices.DeleteFunc(slices.Clone(held), func(id string) bool { _, ok := locked[id]; return ok })
			}
			free, err := r.chosen(ctx, tx, status, locked)
			if err != nil {
				return err
			}
			return r.update(ctx, tx, free, p)
		})
		if err != nil {
			return err
		}
		lock = "FOR UPDATE"
	}
	return nil
}

// transact does a step of the run, and goes on from there when it is committed.
func (r *bulkRun) transact(ctx context.Context, step func(tx sqldb.Tx, p *BulkProgress) error) error {
	var p BulkProgress
	began := time.Now()
	err := sqldb.Transact(ctx, r.s.db, readCommitted(r.dialect), func(tx sqldb.Tx) error {
		p = r.done
		return step(tx, &p)
	})
	if err != nil {
		return err
	}
	p.Longest = max(p.Longest, time.Since(began))
	r.done = p
	if r.opts.Progress != nil {
		r.opts.Progress(p)
	}
	return nil
}

// lockedRow is what of a task may have changed since it was read.
type lockedRow struct {
	version int64
	status  Status
}

// lock locks tasks, and returns those that there are and that it may have.
func (r *bulkRun) lock(ctx context.Context, tx sqldb.Tx, ids []any, mode string) (map[string]lockedRow, error) {
	query := "SELECT id, version, status FROM rabbitdelay_tasks WHERE id IN (" + marks(len(ids)) + ")"
	if r.dialect != SQLite { // which has one writer
		query += " " + mode
	}
	rows, err := tx.QueryContext(ctx, r.dialect.Bind(query), ids...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	locked := make(map[string]lockedRow, len(ids))
	for rows.Next() {
		var id string
		var s lockedRow
		if err := rows.Scan(&id, &s.version, &s.status); err != nil {
			return nil, err
		}
		locked[id] = s
	}
	return locked, rows.Err()
}

// chosen are those of the locked tasks that the filter chooses.
func (r *bulkRun) chosen(ctx context.Context, tx sqldb.Tx, status Status, locked map[string]lockedRow) (ids []any, err error) {
	if len(locked) == 0 {
		return nil, nil
	}
	where, args, err := r.action.where(r.filter, status, r.opts, r.began)
	if err != nil {
		return nil, err
	}
	for id := range locked {
		args = append(args, id)
	}
	rows, err := tx.QueryContext(ctx, r.dialect.Bind("SELECT id FROM rabbitdelay_tasks"+where+" AND id IN ("+marks(len(locked))+")"), args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// update changes tasks that are locked, and records the progress.
func (r *bulkRun) update(ctx context.Context, tx sqldb.Tx, ids []any, p *BulkProgress) error {
	if len(ids) > 0 {
		set, values := r.action.set(r.s.now(), r.offset())
		res, err := tx.ExecContext(ctx, r.dialect.Bind(set+" WHERE id IN ("+marks(len(ids))+")"), append(values, ids...)...)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if err != nil {
			return err
		}
		p.Changed += n
	}
	if r.opts.Record == nil {
		return nil
	}
	return r.opts.Record(ctx, tx, *p, ids)
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
		return update + "due_at = " + dueBy(a.by) + renew, []any{now.UnixMilli()}
	}
	return update + "due_at = ?" + renew, []any{millis(a.at.Add(offset)), now.UnixMilli()}
}
