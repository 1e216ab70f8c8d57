package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// BulkAction is the change that Bulk makes to each task that a filter chooses.
type BulkAction struct {
	verb string        // as in StatusError.Action
	want []string      // statuses
	at   time.Time     // of move, fire and revive
	by   time.Duration // instead of at, of move
}

// BulkCancel cancels pending tasks, so that they have no effect.
func BulkCancel() BulkAction { return BulkAction{verb: "cancel", want: []string{rows.Pending}} }

// BulkMoveTo moves pending tasks to a due time. Tasks that already have that due time are not changed or
// counted.
func BulkMoveTo(at time.Time) BulkAction {
	return BulkAction{verb: "reschedule", want: []string{rows.Pending}, at: at}
}

// BulkMoveBy moves pending tasks later by a duration, or earlier if it is negative. Running it twice moves
// the tasks twice, so use BulkOptions.After to continue after an interruption.
func BulkMoveBy(d time.Duration) BulkAction {
	return BulkAction{verb: "reschedule", want: []string{rows.Pending}, by: d}
}

// BulkFire makes pending tasks due immediately. Tasks that are due already, or with BulkOptions.Spread
// within that period, are not changed or counted.
func BulkFire() BulkAction { return BulkAction{verb: "fire", want: []string{rows.Pending}} }

// BulkRevive makes failed tasks pending again, due at the given time, or immediately if that is in the past.
// A task whose unique key has a pending task is not changed.
func BulkRevive(at time.Time) BulkAction {
	return BulkAction{verb: "revive", want: []string{rows.Failed}, at: at}
}

// BulkDelete deletes finished tasks before their retention ends. It never deletes pending tasks; cancel them
// first. Done tasks to an exchange are not deleted or counted, because the handler of a slower queue still
// needs the row for its effect. They are kept until their retention ends.
func BulkDelete() BulkAction {
	return BulkAction{verb: "delete", want: []string{rows.Done, rows.Cancelled, rows.Expired, rows.Failed}}
}

// BulkOptions has the options of Bulk. The zero value is ready to use.
type BulkOptions struct {
	// Batch is the number of tasks in one transaction. The default is 500, the maximum 5000.
	Batch int
	// Pause is the pause between two batches, for a database with other load. The default is none.
	Pause time.Duration
	// Limit ends the run after this many changed tasks. 0 means no limit.
	Limit int64
	// Spread distributes the due times of BulkMoveTo, BulkFire and BulkRevive over this period, batch
	// by batch, so that not all tasks are due at the same time.
	Spread time.Duration
	// After continues a run that was interrupted. Set it to the Place of the run's last progress.
	After BulkPlace
	// Progress is called after every batch.
	Progress func(BulkProgress)
	// Record is called at the end of every batch's transaction, tx, with the ids of the tasks that the
	// batch has changed. Use it to store exactly how far the run is. If it returns an error, the batch is
	// rolled back and the run ends.
	Record func(ctx context.Context, tx Executor, p BulkProgress, ids []any) error
}

// BulkProgress is the progress of a run.
type BulkProgress struct {
	Changed int64
	Place   BulkPlace
	// Longest is the duration of the longest transaction, and so the longest time for which a task was
	// locked.
	Longest time.Duration
}

// BulkPlace is the position of a run.
type BulkPlace struct {
	Cursor // the position of the last task that was looked at

	// Held has the ids of earlier tasks that were locked, for example by a handler, when their batch was
	// changed. At the end of the run, or when there are more than 100, Bulk waits for them.
	Held []string
}

// String returns the place as text for ParseBulkPlace: its cursor, or a JSON array of the cursor and the ids
// of Held.
func (p BulkPlace) String() string {
	if len(p.Held) == 0 {
		return p.Cursor.String()
	}
	text, _ := json.Marshal(append([]string{p.Cursor.String()}, p.Held...)) //nolint:errchkjson // strings do not fail
	return string(text)
}

// ParseBulkPlace parses the text that BulkPlace.String returns.
func ParseBulkPlace(s string) (p BulkPlace, err error) {
	if !strings.HasPrefix(s, "[") {
		p.Cursor, err = ParseCursor(s)
		return p, err
	}
	var list []string
	if err := json.Unmarshal([]byte(s), &list); err != nil || len(list) == 0 {
		return p, fmt.Errorf("%.100q is no place of a bulk change; expected one that was printed before, such as 1767225600000/order-42", s)
	}
	p.Held = list[1:]
	if list[0] != "" {
		p.Cursor, err = ParseCursor(list[0])
	}
	return p, err
}

// validate checks the action, the filter and the options together, and fills in defaults.
func (a *BulkAction) validate(f *Filter, o *BulkOptions, now time.Time) error {
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("%w: bulk %s: %w", ErrConfig, a.verb, &topology.FieldError{Field: field, Value: value, Want: want})
	}
	setDefault(&o.Batch, 500)
	switch {
	case len(a.want) == 0:
		return fmt.Errorf("%w: bulk: no action; expected one that a function such as BulkCancel makes", ErrConfig)
	case f.Status != "" && !slices.Contains(a.want, string(f.Status)):
		return bad("status", string(f.Status), strings.Join(a.want, ", ")+", or none")
	case f.Limit != 0 || f.After != (Cursor{}) || f.Sort != SortDue:
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
		return fmt.Errorf("%w: bulk %s: by is %s", ErrConfig, a.verb, units.Shift(a.by))
	case units.Duration(o.Spread) != "":
		return fmt.Errorf("%w: bulk %s: spread is %s", ErrConfig, a.verb, units.Duration(o.Spread))
	case o.Spread > 0 && (a.verb == "cancel" || a.verb == "delete" || a.by != 0):
		return bad("spread", o.Spread, "0: only tasks that are fired, revived or moved to an instant can be spread")
	}
	switch {
	case a.verb == "fire":
		a.at = now
	case a.verb == "reschedule" && a.by != 0, a.verb == "cancel", a.verb == "delete":
		return nil
	case a.verb == "reschedule" && a.at.IsZero():
		return bad("to", "", "an instant, or give a duration to move by")
	}
	if reason := units.Instant(a.at); reason != "" {
		return fmt.Errorf("%w: bulk %s: to is %s", ErrConfig, a.verb, reason)
	}
	if a.at.IsZero() || rows.Millis(a.at.Add(o.Spread)) > rows.MaxDue {
		return bad("to", a.at.Format(time.RFC3339), "an instant up to the year 9999, with the spread")
	}
	return nil
}

// CheckBulk returns the ErrConfig with which Bulk would reject these arguments, or nil.
func (s *Store) CheckBulk(f Filter, a BulkAction, o BulkOptions) error {
	return a.validate(&f, &o, s.pace.Now())
}

// BulkCount returns the number of tasks that Bulk would change now. It ignores BulkOptions.After. It returns
// ErrConfig for invalid arguments.
func (s *Store) BulkCount(ctx context.Context, f Filter, a BulkAction, o BulkOptions) (int64, error) {
	now := s.nowIn(ctx, NoTx)
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

// statuses returns the statuses of the tasks that the filter and the action choose.
func (a *BulkAction) statuses(f Filter) []string {
	if f.Status != "" {
		return []string{string(f.Status)}
	}
	return a.want
}

// narrow restricts the filter to tasks of one status that still have to be changed, so that a task is not
// changed twice, in the same run or in a second one.
func (a *BulkAction) narrow(f rows.Filter, status string, spread time.Duration, now time.Time) rows.Filter {
	f.Status = status
	switch {
	case a.verb == "delete":
		f.ToQueue = status == rows.Done
	case a.verb == "fire":
		if later := time.UnixMilli(now.Add(spread).UnixMilli() + 1); later.After(f.DueFrom) {
			f.DueFrom = later
		}
	case a.verb == "reschedule" && a.by == 0:
		f.Outside = &rows.Span{From: rows.Millis(a.at), To: rows.Millis(a.at.Add(spread))}
	}
	return f
}
