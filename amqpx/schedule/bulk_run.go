package schedule

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/pace"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
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
	r := bulkRun{s: s, action: a, opts: o, began: s.nowIn(ctx, NoTx)}
	if err := r.action.validate(&f, &r.opts, r.began); err != nil {
		return r.done, err
	}
	var err error
	if r.filter, err = f.rowFilter(); err != nil {
		return r.done, err
	}
	if r.opts.Spread > 0 {
		if r.total, err = s.BulkCount(ctx, f, a, o); err != nil {
			return r.done, err
		}
	}
	r.done.Place = r.opts.After
	for _, r.status = range r.action.statuses(f) {
		if err := r.changeStatus(ctx); err != nil {
			return r.done, fmt.Errorf("bulk %s: after %s: %w", a.verb, shown.Count(r.done.Changed, "task", "tasks"), err)
		}
		r.done.Place = BulkPlace{}
	}
	if r.done.Changed > 0 && a.verb != "cancel" && a.verb != "delete" {
		s.Wake()
	}
	return r.done, nil
}

type bulkRun struct {
	s      *Store
	filter rows.Filter
	action BulkAction
	opts   BulkOptions
	began  time.Time
	total  int64  // only with Spread
	status string // that is being changed
	done   BulkProgress
}

// pageBatches is how many batches are read at once: a database that has no
// statistics yet may read all that the filter chooses for each page.
const pageBatches = 20

// maxHeld is how many held tasks wait until the end of a run.
const maxHeld = 100

// changeStatus changes the tasks of one status.
func (r *bulkRun) changeStatus(ctx context.Context) error {
	for last := false; !last && !r.full(); {
		page, err := r.page(ctx)
		if err != nil {
			return err
		}
		last = len(page) < pageBatches*r.opts.Batch
		for batch := range slices.Chunk(page, r.opts.Batch) {
			if r.done.Place.ID != "" {
				if err := pace.Sleep(ctx, r.opts.Pause); err != nil {
					return err
				}
			}
			batch = batch[:r.allowed(len(batch))]
			if len(batch) == 0 {
				break
			}
			if err := r.changeBatch(ctx, batch); err != nil {
				return err
			}
			if err := r.changeHeld(ctx, maxHeld); err != nil {
				return err
			}
		}
	}
	return r.changeHeld(ctx, 0)
}

// allowed is as many of n tasks as the limit leaves.
func (r *bulkRun) allowed(n int) int {
	if r.opts.Limit == 0 {
		return n
	}
	return int(min(int64(n), r.opts.Limit-r.done.Changed))
}

func (r *bulkRun) full() bool { return r.opts.Limit > 0 && r.done.Changed >= r.opts.Limit }

// chosen is what is still to be changed.
func (r *bulkRun) chosen() rows.Filter {
	return r.action.narrow(r.filter, r.status, r.opts.Spread, r.began)
}

// page reads the places of the next tasks. Tasks that move later come backwards: what has
// moved is not met again.
func (r *bulkRun) page(ctx context.Context) ([]rows.Seen, error) {
	c, err := r.s.conn(ctx, NoTx)
	if err != nil {
		return nil, err
	}
	order := rows.Forwards
	if r.action.by > 0 {
		order = rows.Backwards
	}
	return c.Page(ctx, r.chosen(), rows.Place(r.done.Place.Cursor), order, pageBatches*r.opts.Batch)
}

// changeBatch changes those of the batch that nobody holds and that are as the page found
// them; the others are held from then on.
func (r *bulkRun) changeBatch(ctx context.Context, batch []rows.Seen) error {
	ids := make([]string, len(batch))
	for i, p := range batch {
		ids[i] = p.ID
	}
	return r.transact(ctx, func(c rows.Conn, p *BulkProgress) error {
		locked, err := c.LockTasks(ctx, ids, rows.SkipLocked)
		if err != nil {
			return err
		}
		p.Place = BulkPlace{Cursor: Cursor(batch[len(batch)-1].Place), Held: slices.Clone(p.Place.Held)}
		var free []string
		for _, seen := range batch {
			switch x, ok := locked[seen.ID]; {
			case x == rows.Locked{Version: seen.Version, Status: r.status}:
				free = append(free, seen.ID)
			case !ok || x.Status == r.status: // locked and deleted look alike
				p.Place.Held = append(p.Place.Held, seen.ID)
			}
		}
		if r.filter.ByError() { // an attempt that failed since then has changed the error, and not the version
			if free, err = c.Chosen(ctx, r.chosen(), free); err != nil {
				return err
			}
		}
		return r.update(ctx, c, free, p)
	})
}

// changeHeld changes those of the held tasks that the filter still chooses, until so
// many are left: in one batch those that are free by now, then each of the others as
// soon as it is.
func (r *bulkRun) changeHeld(ctx context.Context, left int) error {
	lock := rows.SkipLocked
	for n := len(r.done.Place.Held) - left; n > 0 && !r.full(); n = min(1, len(r.done.Place.Held)-left) {
		held := r.done.Place.Held
		ids := held[:r.allowed(n)]
		err := r.transact(ctx, func(c rows.Conn, p *BulkProgress) error {
			locked, err := c.LockTasks(ctx, ids, lock)
			if err != nil {
				return err
			}
			if lock == rows.Exclusive {
				p.Place.Held = held[len(ids):]
			} else {
				p.Place.Held = slices.DeleteFunc(slices.Clone(held), func(id string) bool { _, ok := locked[id]; return ok })
			}
			free, err := c.Chosen(ctx, r.chosen(), slices.Collect(maps.Keys(locked)))
			if err != nil {
				return err
			}
			return r.update(ctx, c, free, p)
		})
		if err != nil {
			return err
		}
		lock = rows.Exclusive
	}
	return nil
}

// bulkTries is how often a batch is done anew because of a unique key that others schedule.
const bulkTries = 20

// transact does a step of the run, and goes on from there when it is committed.
func (r *bulkRun) transact(ctx context.Context, step func(c rows.Conn, p *BulkProgress) error) error {
	var p BulkProgress
	began := time.Now()
	once := func(c rows.Conn) error {
		p = r.done
		return step(c, &p)
	}
	err := r.s.db.Transact(ctx, once)
	// A task of a unique key was scheduled just now, and is met the next time, unless others
	// schedule and end tasks of the key all the time.
	for try := 1; sqldb.Duplicate(err) && try < bulkTries; try++ {
		if err = pace.Sleep(ctx, pace.Backoff(time.Millisecond, try-1, 100*time.Millisecond)); err == nil {
			err = r.s.db.Transact(ctx, once)
		}
	}
	if sqldb.Duplicate(err) {
		return fmt.Errorf("%w: tasks of their unique keys were scheduled %d times meanwhile; give the same command again: %w", ErrUnique, bulkTries, err)
	}
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

// update changes tasks that are locked, and records the progress.
func (r *bulkRun) update(ctx context.Context, c rows.Conn, ids []string, p *BulkProgress) error {
	if len(ids) > 0 {
		n, err := r.apply(ctx, c, ids)
		if err != nil {
			return err
		}
		p.Changed += n
	}
	if r.opts.Record == nil {
		return nil
	}
	tx, _ := c.Conn.(sqldb.Tx) // of transact
	return r.opts.Record(ctx, sqldb.Executes(tx), *p, anys(ids))
}

func anys(ids []string) []any {
	list := make([]any, len(ids))
	for i, id := range ids {
		list[i] = id
	}
	return list
}

func (r *bulkRun) apply(ctx context.Context, c rows.Conn, ids []string) (int64, error) {
	now := r.s.nowOn(ctx, c).UnixMilli()
	if r.action.verb == "revive" {
		free, err := c.KeysFree(ctx, ids)
		if err != nil || len(free) == 0 {
			return 0, err
		}
		ids = free
	}
	switch {
	case r.action.verb == "delete":
		return c.DeleteAll(ctx, ids)
	case r.action.verb == "cancel":
		return c.ChangeAll(ctx, ids, rows.Cancel(now))
	case r.action.by != 0:
		return c.ChangeAll(ctx, ids, rows.DueBy(r.action.by, now))
	}
	return c.ChangeAll(ctx, ids, rows.DueAt(rows.Millis(r.action.at.Add(r.offset())), now))
}

// offset is the batch's place in the period of Spread.
func (r *bulkRun) offset() time.Duration {
	if r.total == 0 {
		return 0
	}
	share := min(float64(r.done.Changed)/float64(r.total), 1)
	return time.Duration(share * float64(r.opts.Spread))
}
