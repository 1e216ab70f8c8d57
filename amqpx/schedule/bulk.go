package schedule

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// BulkAction is the change that Bulk makes to each task that a filter selects.
type BulkAction struct {
	verb string        // the action's name in errors, as in StatusError.Action
	want []string      // the statuses of the tasks that it can change
	at   time.Time     // the due time, for BulkReschedule, BulkRunNow and BulkRevive
	by   time.Duration // by how much to reschedule each task, for BulkRescheduleBy
}

// BulkCancel cancels pending tasks, so that they have no effect.
func BulkCancel() BulkAction { return BulkAction{verb: "cancel", want: []string{rows.Pending}} }

// BulkReschedule reschedules pending tasks to a due time. Tasks that already have that due time (or, with
// BulkOptions.Spread, are due within the period that begins then) are not changed or counted.
func BulkReschedule(at time.Time) BulkAction {
	return BulkAction{verb: "reschedule", want: []string{rows.Pending}, at: at}
}

// BulkRescheduleBy postpones pending tasks by a duration, or makes them due earlier if the duration is negative.
// Running it twice reschedules the tasks twice, so use BulkOptions.After to continue after an interruption.
func BulkRescheduleBy(d time.Duration) BulkAction {
	return BulkAction{verb: "reschedule", want: []string{rows.Pending}, by: d}
}

// BulkRunNow makes pending tasks due immediately. Tasks that are already due (or, with BulkOptions.Spread, due within
// that period) are not changed or counted.
func BulkRunNow() BulkAction { return BulkAction{verb: "run", want: []string{rows.Pending}} }

// BulkRevive makes failed tasks pending again, due at the given time, or immediately if that is in the past. A task is
// not changed if another task with its unique key is pending.
func BulkRevive(at time.Time) BulkAction {
	return BulkAction{verb: "revive", want: []string{rows.Failed}, at: at}
}

// BulkDelete deletes finished tasks before their retention ends. It never deletes pending tasks; cancel them first.
// Done tasks that were sent to an exchange are not deleted or counted, because the handler of a slower queue still
// needs the row for its effect. They are kept until their retention ends.
func BulkDelete() BulkAction {
	return BulkAction{verb: "delete", want: []string{rows.Done, rows.Cancelled, rows.Expired, rows.Failed}}
}

// BulkOptions contains the options for Bulk. The zero value is ready to use.
type BulkOptions struct {
	// Batch is the number of tasks in one transaction. The default is 500, the maximum 5000.
	Batch int
	// Pause is how long the run waits between two batches, which leaves the database time for other work. By default it
	// does not wait.
	Pause time.Duration
	// Limit stops the run after it has changed this many tasks. 0 means no limit.
	Limit int64
	// Spread distributes the due times of BulkReschedule, BulkRunNow and BulkRevive over this period, batch
	// by batch, so that not all tasks are due at the same time.
	Spread time.Duration
	// After continues a run that was interrupted. Set it to the Place of its last BulkProgress.
	After Cursor
	// Progress is called after every batch.
	Progress func(BulkProgress)
	// Record is called at the end of every batch's transaction, tx, with the ids of the tasks that the batch has
	// changed. Use it to store the run's exact progress. If it returns an error, the batch is rolled back and the run
	// stops.
	Record func(ctx context.Context, tx Executor, p BulkProgress, ids []any) error
}

// BulkProgress is the progress of a run.
type BulkProgress struct {
	Changed int64  // number of tasks changed so far
	Place   Cursor // the position of the run, for BulkOptions.After
	// Longest is the duration of the longest transaction, which is also the longest time for which a task was locked.
	Longest time.Duration
}

// validate checks the action, the filter and the options together, and fills in defaults.
func (a *BulkAction) validate(f *Filter, o *BulkOptions, now time.Time) error {
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("%w: bulk %s: %w", ErrConfig, a.verb, &topology.FieldError{Field: field, Value: value, Want: want})
	}
	setDefault(&o.Batch, 500)
	switch {
	case len(a.want) == 0:
		return fmt.Errorf("%w: bulk: no action; expected the result of a function such as BulkCancel", ErrConfig)
	case f.Status != "" && !slices.Contains(a.want, string(f.Status)):
		return bad("status", string(f.Status), strings.Join(a.want, ", ")+", or none")
	case f.Limit != 0 || f.After != "" || f.Sort != SortDue:
		return fmt.Errorf("%w: bulk %s: the filter has Limit, After or Sort, which belong to List; use BulkOptions", ErrConfig, a.verb)
	case o.Batch < 1 || o.Batch > 5000:
		return bad("batch", o.Batch, "1 to 5000")
	case o.Pause < 0:
		return bad("pause", o.Pause, "0 or more")
	case o.Limit < 0:
		return bad("limit", o.Limit, "0 or more")
	case o.Spread < 0:
		return bad("spread", o.Spread, "0 or more")
	case units.Shift(a.by) != "":
		return fmt.Errorf("%w: bulk %s: the duration (by) is %s", ErrConfig, a.verb, units.Shift(a.by))
	case units.Duration(o.Spread) != "":
		return fmt.Errorf("%w: bulk %s: the spread is %s", ErrConfig, a.verb, units.Duration(o.Spread))
	case o.Spread > 0 && (a.verb == "cancel" || a.verb == "delete" || a.by != 0):
		return bad("spread", o.Spread, "0: only tasks that are run, revived or moved to an absolute time can be spread")
	}
	if _, err := f.rowFilter(); err != nil {
		return fmt.Errorf("%w: bulk %s: filter: %w", ErrConfig, a.verb, err)
	}
	if _, err := rows.ParseBulkPlace(string(o.After)); err != nil {
		return fmt.Errorf("%w: bulk %s: after: %w", ErrConfig, a.verb, err)
	}
	switch {
	case a.verb == "run":
		a.at = now
	case a.verb == "reschedule" && a.by != 0, a.verb == "cancel", a.verb == "delete":
		return nil
	case a.verb == "reschedule" && a.at.IsZero():
		return bad("to", "", "a time; to move tasks by a duration, use BulkRescheduleBy")
	}
	if reason := units.Instant(a.at); reason != "" {
		return fmt.Errorf("%w: bulk %s: the time (to) is %s", ErrConfig, a.verb, reason)
	}
	if a.at.IsZero() || rows.Millis(a.at.Add(o.Spread)) > rows.MaxDue {
		return bad("to", a.at.Format(time.RFC3339), "a time up to the year 9999, including the spread")
	}
	return nil
}

// CheckBulk returns the ErrConfig error that Bulk would return for these arguments, or nil if they are valid.
func (s *Store) CheckBulk(f Filter, a BulkAction, o BulkOptions) error {
	return a.validate(&f, &o, s.poller.Now())
}

// BulkCount returns the number of tasks that Bulk would change now. For BulkRevive, it includes tasks that Bulk would
// not revive because another task with their unique key is pending. It ignores BulkOptions.After. It returns ErrConfig
// for invalid arguments.
func (s *Store) BulkCount(ctx context.Context, f Filter, a BulkAction, o BulkOptions) (int64, error) {
	now, err := s.nowIn(ctx, NoTx)
	if err != nil {
		return 0, fmt.Errorf("counting tasks: %w", err)
	}
	if err := a.validate(&f, &o, now); err != nil {
		return 0, err
	}
	return reading(ctx, s, NoTx, f, "counting tasks", func(c rows.Conn, chosen rows.Filter) (total int64, err error) {
		for _, status := range a.statuses(f) {
			n, err := c.Count(ctx, a.narrow(chosen, status, o.Spread, now))
			if err != nil {
				return 0, err
			}
			total += n
		}
		if o.Limit > 0 {
			total = min(total, o.Limit)
		}
		return total, nil
	})
}

// statuses returns the statuses of the tasks that the filter and the action select.
func (a *BulkAction) statuses(f Filter) []string {
	if f.Status != "" {
		return []string{string(f.Status)}
	}
	return a.want
}

// narrow restricts the filter to tasks with the given status that the action can change and that still have to be
// changed, so that a repeated run does not change a task again. It cannot tell which tasks BulkRescheduleBy has already
// changed.
func (a *BulkAction) narrow(f rows.Filter, status string, spread time.Duration, now time.Time) rows.Filter {
	f.Status = status
	switch {
	case a.verb == "delete":
		f.ToQueue = status == rows.Done
	case a.verb == "run":
		if later := time.UnixMilli(now.Add(spread).UnixMilli() + 1); later.After(f.DueFrom) {
			f.DueFrom = later
		}
	case a.verb == "reschedule" && a.by == 0:
		f.Outside = &rows.Span{From: rows.Millis(a.at), To: rows.Millis(a.at.Add(spread))}
	}
	return f
}
