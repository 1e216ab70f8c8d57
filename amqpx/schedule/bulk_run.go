package schedule

import (
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Bulk changes all tasks that the filter selects, with one transaction per batch, in the order of their due times (in
// reverse order for BulkRescheduleBy with a positive duration). An action that applies to several statuses, such as
// BulkDelete, processes one status after the other. Tasks that are added in the meantime may or may not be changed. A
// task that a handler is working on does not delay the others, because Bulk returns to it at the end. Several runs may
// process the same tasks at the same time. Each run changes and counts a task at most once, and also finds tasks that
// another run has rescheduled in the meantime.
//
// If ctx ends or an error occurs, the batches that have been committed stay changed. A second run then changes the
// remaining tasks. It needs BulkOptions.After only for BulkRescheduleBy. Bulk returns ErrConfig for invalid arguments.
func (s *Store) Bulk(ctx context.Context, f Filter, a BulkAction, o BulkOptions) (BulkProgress, error) {
	r := bulkRun{s: s, action: a, opts: o, seed: maphash.MakeSeed(), changed: map[uint64]struct{}{}}
	var err error
	if r.began, err = s.nowIn(ctx, NoTx); err != nil {
		return BulkProgress{}, fmt.Errorf("bulk %s: %w", a.verb, err)
	}
	if err := r.action.validate(&f, &r.opts, r.began); err != nil {
		return BulkProgress{}, err
	}
	if r.filter, err = f.rowFilter(); err != nil {
		return BulkProgress{}, err
	}
	if r.opts.Spread > 0 {
		if r.total, err = s.BulkCount(ctx, f, a, o); err != nil {
			return BulkProgress{}, err
		}
	}
	if r.done.place, err = rows.ParseBulkPlace(string(r.opts.After)); err != nil {
		return BulkProgress{}, err
	}
	for _, r.status = range r.action.statuses(f) {
		if err := r.changeStatus(ctx); err != nil {
			return r.done.progress(), fmt.Errorf("bulk %s: after %s: %w", a.verb, shown.Count(r.done.changed, "task", "tasks"), err)
		}
		r.done.place = rows.BulkPlace{}
	}
	if r.done.changed > 0 && a.verb != "cancel" && a.verb != "delete" {
		s.Wake()
	}
	return r.done.progress(), nil
}

type bulkRun struct {
	s      *Store
	filter rows.Filter
	action BulkAction
	opts   BulkOptions
	began  time.Time
	total  int64  // the number of tasks to change; set only with Spread
	status string // the status whose tasks are being changed
	done   bulkDone

	// changed contains hashes of the ids of changed tasks that the run may find again, because another operator
	// rescheduled them or they failed again. They are not changed twice.
	changed map[uint64]struct{}
	seed    maphash.Seed
}

// bulkDone is the progress of a run. A step changes a copy of it, which the run adopts after the commit.
type bulkDone struct {
	changed int64
	place   rows.BulkPlace
	longest time.Duration
	latest  []string // the tasks that the latest step has changed
}

func (d bulkDone) progress() BulkProgress {
	return BulkProgress{Changed: d.changed, Place: Cursor(d.place.String()), Longest: d.longest}
}

// pageBatches is the number of batches that are read as one page. A page is larger than a batch, because a database
// without statistics may read everything that the filter selects for each page.
const pageBatches = 20

// maxHeld is the maximum number of locked tasks that are left for the end of a run.
const maxHeld = 100

// maxPasses is the maximum number of times that a run goes through the pending tasks.
const maxPasses = 3

// changeStatus changes the tasks with one status. While it runs, another operator may reschedule pending tasks to a
// time that this run has already passed, so it makes further passes, at most maxPasses in all, until a pass changes
// nothing.
func (r *bulkRun) changeStatus(ctx context.Context) error {
	if err := r.pass(ctx, r.done.place.Place, true); err != nil {
		return err
	}
	if r.status != rows.Pending || r.continues() {
		return nil
	}
	for before, n := int64(-1), 1; before < r.done.changed && n < maxPasses && !r.full(); n++ {
		before = r.done.changed
		if err := r.pass(ctx, rows.Place{}, false); err != nil {
			return err
		}
	}
	return nil
}

// continues reports whether an earlier run has already rescheduled some of the tasks by the same duration. Those tasks
// cannot be distinguished from tasks that another operator has rescheduled.
func (r *bulkRun) continues() bool { return r.action.by != 0 && r.opts.After != "" }

// pass processes the tasks after a position. Only the first pass advances the run's place. Later passes leave it at the
// end, because otherwise a continued run would change tasks again.
func (r *bulkRun) pass(ctx context.Context, after rows.Place, first bool) error {
	for last := false; !last && !r.full(); {
		page, err := r.page(ctx, after)
		if err != nil {
			return err
		}
		last = len(page) < pageBatches*r.opts.Batch
		if len(page) > 0 {
			after = page[len(page)-1].Place
		}
		if !first {
			page = slices.DeleteFunc(page, r.settled)
		}
		for batch := range slices.Chunk(page, r.opts.Batch) {
			if r.done.place.ID != "" {
				if err := polling.Sleep(ctx, r.opts.Pause); err != nil {
					return err
				}
			}
			batch = batch[:r.allowed(len(batch))]
			if len(batch) == 0 {
				break
			}
			if err := r.changeBatch(ctx, batch, first); err != nil {
				return err
			}
			if err := r.changeHeld(ctx, maxHeld); err != nil {
				return err
			}
		}
	}
	return r.changeHeld(ctx, 0)
}

// settled reports whether a later pass can ignore a task: this run has changed it, or it was added in the meantime.
func (r *bulkRun) settled(seen rows.Seen) bool { return seen.Version == 1 || r.hasChanged(seen.ID) }

func (r *bulkRun) hasChanged(id string) bool {
	_, ok := r.changed[maphash.String(r.seed, id)]
	return ok
}

// remember records the tasks that a step has changed, unless they cannot be found again.
func (r *bulkRun) remember(ids []string) {
	if r.action.verb == "cancel" || r.action.verb == "delete" {
		return
	}
	for _, id := range ids {
		r.changed[maphash.String(r.seed, id)] = struct{}{}
	}
}

// allowed returns n, or the number of tasks that the limit still allows if that is smaller.
func (r *bulkRun) allowed(n int) int {
	if r.opts.Limit == 0 {
		return n
	}
	return int(min(int64(n), r.opts.Limit-r.done.changed))
}

func (r *bulkRun) full() bool { return r.opts.Limit > 0 && r.done.changed >= r.opts.Limit }

// chosen returns a filter that selects the tasks that still have to be changed. For BulkRunNow without a spread, it
// also leaves out tasks that have become due since the run began.
func (r *bulkRun) chosen() rows.Filter {
	now := r.began
	if r.opts.Spread == 0 {
		now = r.s.poller.Now()
	}
	return r.action.narrow(r.filter, r.status, r.opts.Spread, now)
}

// page reads the positions of the tasks after a position. Tasks that are postponed are read in reverse order, so that a
// postponed task is not found again.
func (r *bulkRun) page(ctx context.Context, after rows.Place) ([]rows.Seen, error) {
	c, err := r.s.conn(ctx, NoTx)
	if err != nil {
		return nil, err
	}
	order := rows.Forwards
	if r.action.by > 0 {
		order = rows.Backwards
	}
	return c.Page(ctx, r.chosen(), after, order, pageBatches*r.opts.Batch)
}

// changeBatch changes the tasks of a batch that are not locked and have not changed since the page was read. The ids of
// the others are added to the place's Held, so that changeHeld changes them later. If moves is true, the run's place
// advances to the end of the batch.
func (r *bulkRun) changeBatch(ctx context.Context, batch []rows.Seen, moves bool) error {
	ids := make([]string, len(batch))
	for i, p := range batch {
		ids[i] = p.ID
	}
	return r.transact(ctx, func(c rows.Conn, p *bulkDone) error {
		locked, err := c.LockTasks(ctx, ids, rows.SkipLocked)
		if err != nil {
			return err
		}
		p.place.Held = slices.Clone(p.place.Held)
		if moves {
			p.place.Place = batch[len(batch)-1].Place
		}
		var free []string
		for _, seen := range batch {
			switch x, ok := locked[seen.ID]; {
			case r.hasChanged(seen.ID):
			case x == rows.Locked{Version: seen.Version, Status: r.status}:
				free = append(free, seen.ID)
			case !ok || x.Status == r.status: // without a row, the task is locked or deleted; look at it again later
				p.place.Held = append(p.place.Held, seen.ID)
			}
		}
		// Check the errors again, because an attempt that failed in the meantime does not change the version.
		if r.filter.ByError() {
			if free, err = c.Chosen(ctx, r.chosen(), free); err != nil {
				return err
			}
		}
		return r.update(ctx, c, free, p)
	})
}

// changeHeld changes the held tasks that the filter still selects, until at most left remain. It first changes all
// unlocked tasks in one batch, and then waits for each of the others.
func (r *bulkRun) changeHeld(ctx context.Context, left int) error {
	lock := rows.SkipLocked
	for n := len(r.done.place.Held) - left; n > 0 && !r.full(); n = min(1, len(r.done.place.Held)-left) {
		held := r.done.place.Held
		ids := held[:r.allowed(n)]
		err := r.transact(ctx, func(c rows.Conn, p *bulkDone) error {
			locked, err := c.LockTasks(ctx, ids, lock)
			if err != nil {
				return err
			}
			if lock == rows.Exclusive {
				p.place.Held = held[len(ids):]
			} else {
				p.place.Held = slices.DeleteFunc(slices.Clone(held), func(id string) bool { _, ok := locked[id]; return ok })
			}
			free, err := c.Chosen(ctx, r.chosen(), slices.Collect(maps.Keys(locked)))
			if err != nil {
				return err
			}
			free = slices.DeleteFunc(free, r.hasChanged)
			return r.update(ctx, c, free, p)
		})
		if err != nil {
			return err
		}
		lock = rows.Exclusive
	}
	return nil
}

// bulkTries is the number of times that a batch is tried if other transactions keep scheduling tasks with the same
// unique key.
const bulkTries = 20

// transact runs one step of the run in a transaction, and adopts the step's progress after the commit.
func (r *bulkRun) transact(ctx context.Context, step func(c rows.Conn, p *bulkDone) error) error {
	var p bulkDone
	began := time.Now()
	once := func(c rows.Conn) error {
		p = r.done
		return step(c, &p)
	}
	err := r.s.db.Transact(ctx, once)
	// Another transaction scheduled a task with the same unique key at the same time. The next try finds that task,
	// unless further transactions keep scheduling and ending tasks with the key.
	for try := 1; sqldb.Duplicate(err) && try < bulkTries; try++ {
		if err = polling.Sleep(ctx, polling.Backoff(time.Millisecond, try-1, 100*time.Millisecond)); err == nil {
			err = r.s.db.Transact(ctx, once)
		}
	}
	if sqldb.Duplicate(err) {
		return fmt.Errorf("%w: other tasks with the same unique keys were scheduled in %d consecutive attempts; run the command again: %w", ErrUnique, bulkTries, err)
	}
	if err != nil {
		return err
	}
	p.longest = max(p.longest, time.Since(began))
	r.done = p
	r.remember(p.latest)
	if r.opts.Progress != nil {
		r.opts.Progress(p.progress())
	}
	return nil
}

// update changes tasks that the transaction has locked, and calls BulkOptions.Record. It leaves out tasks that cannot
// be revived because another task with their unique key is pending.
func (r *bulkRun) update(ctx context.Context, c rows.Conn, ids []string, p *bulkDone) (err error) {
	if r.action.verb == "revive" && len(ids) > 0 {
		if ids, err = c.KeysFree(ctx, ids); err != nil {
			return err
		}
	}
	if p.latest = ids; len(ids) > 0 {
		n, err := r.apply(ctx, c, ids)
		if err != nil {
			return err
		}
		p.changed += n
	}
	if r.opts.Record == nil {
		return nil
	}
	tx, _ := c.Conn.(sqldb.Tx) // the transaction that transact opened
	return r.opts.Record(ctx, sqldb.Executes(tx), p.progress(), anys(ids))
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

// offset returns the batch's position within the period of Spread.
func (r *bulkRun) offset() time.Duration {
	if r.total == 0 {
		return 0
	}
	share := min(float64(r.done.changed)/float64(r.total), 1)
	return time.Duration(share * float64(r.opts.Spread))
}
