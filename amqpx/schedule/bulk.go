package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// BulkAction is what Bulk does to each task that a filter chooses.
type BulkAction struct {
	verb string // as in StatusError.Action
	want []Status
	at   time.Time     // of move, fire and revive
	by   time.Duration // instead of at, of move
}

// BulkCancel ends pending tasks without their effect.
func BulkCancel() BulkAction { return BulkAction{verb: "cancel", want: []Status{StatusPending}} }

// BulkMoveTo moves pending tasks to an instant. Those that are there already are
// not counted and stay as they are.
func BulkMoveTo(at time.Time) BulkAction {
	return BulkAction{verb: "reschedule", want: []Status{StatusPending}, at: at}
}

// BulkMoveBy moves pending tasks by a duration, later or, when it is negative,
// earlier. To do it twice moves them twice: go on with BulkOptions.After after an
// interruption.
func BulkMoveBy(d time.Duration) BulkAction {
	return BulkAction{verb: "reschedule", want: []Status{StatusPending}, by: d}
}

// BulkFire makes pending tasks due at once. Those that are due already, or with
// BulkOptions.Spread within that period, are not counted and stay as they are.
func BulkFire() BulkAction { return BulkAction{verb: "fire", want: []Status{StatusPending}} }

// BulkRevive makes failed tasks pending again, due at the instant; one in the past
// means at once.
func BulkRevive(at time.Time) BulkAction {
	return BulkAction{verb: "revive", want: []Status{StatusFailed}, at: at}
}

// BulkDelete deletes finished tasks before their retention ends. Pending ones are
// never deleted: cancel them first. Done ones to an exchange stay until their
// retention ends, and are not counted: a queue that is slower than the first needs the
// row for its effect.
func BulkDelete() BulkAction {
	return BulkAction{verb: "delete", want: []Status{StatusDone, StatusCancelled, StatusExpired, StatusFailed}}
}

// BulkOptions tune Bulk. The zero value is ready to use.
type BulkOptions struct {
	// Batch is the number of tasks of one transaction; default 500, at most 5000.
	Batch int
	// Pause between two batches, for a database that has other things to do.
	Pause time.Duration
	// Limit ends the run after so many changed tasks; 0 for no limit.
	Limit int64
	// Spread distributes the due instants of BulkMoveTo, BulkFire and BulkRevive
	// over this period, batch by batch, so that not all are due at once.
	Spread time.Duration
	// After goes on where a run was interrupted: the Place of its last progress.
	After BulkPlace
	// Progress is called after every batch.
	Progress func(BulkProgress)
	// Record, for the packages of this module, is called at the end of every batch's
	// transaction, so that what it writes there says exactly how far the run is, and
	// the ids of the tasks that the batch changed. The batch is undone, and the run
	// ends, when it returns an error.
	Record func(ctx context.Context, tx sqldb.Tx, p BulkProgress, ids []any) error
}

// BulkProgress is how far a run has got.
type BulkProgress struct {
	Changed int64
	Place   BulkPlace
	// Longest is the duration of the longest transaction, which is how long a task
	// was locked at most.
	Longest time.Duration
}

// BulkPlace is how far a run has looked.
type BulkPlace struct {
	Cursor // of the last task that was looked at

	// Held are the ids of tasks before it that a handler was working on when their
	// batch was changed. At the end of the run, or when there are more than 100, Bulk
	// waits for them.
	Held []string
}

// String is the place as text, which ParseBulkPlace reads: its cursor, or a JSON array
// of that and the ids of Held.
func (p BulkPlace) String() string {
	if len(p.Held) == 0 {
		return p.Cursor.String()
	}
	text, _ := json.Marshal(append([]string{p.Cursor.String()}, p.Held...)) //nolint:errchkjson // strings do not fail
	return string(text)
}

// ParseBulkPlace reads a place that String wrote.
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

// validate checks the action, the filter and the options together, and fills in
// what is not set.
func (a *BulkAction) validate(f *Filter, o *BulkOptions, now time.Time) error {
	bad := func(field, format string, args ...any) error {
		return fmt.Errorf("%w: bulk %s: %s: %s", ErrConfig, a.verb, field, fmt.Sprintf(format, args...))
	}
	setDefault(&o.Batch, 500)
	switch {
	case len(a.want) == 0:
		return fmt.Errorf("%w: bulk: no action; expected one that a function such as BulkCancel makes", ErrConfig)
	case f.Status != "" && !slices.Contains(a.want, f.Status):
		return bad("Status", "%q; expected %q or none", f.Status, a.want)
	case f.Limit != 0 || f.After != (Cursor{}):
		return bad("Filter", "Limit and After belong to List; use BulkOptions")
	case o.Batch < 1 || o.Batch > 5000:
		return bad("Batch", "%d; expected 1 to 5000", o.Batch)
	case o.Pause < 0 || o.Spread < 0 || o.Limit < 0:
		return bad("Pause, Spread, Limit", "%v, %v, %d; expected 0 or more", o.Pause, o.Spread, o.Limit)
	case o.Spread > 0 && (a.verb == "cancel" || a.verb == "delete" || a.by != 0):
		return bad("Spread", "%v; only tasks that get a new due instant can be spread", o.Spread)
	}
	switch {
	case a.verb == "fire":
		a.at = now
	case a.verb == "reschedule" && a.by != 0, a.verb == "cancel", a.verb == "delete":
		return nil
	case a.verb == "reschedule" && a.at.IsZero():
		return bad("DeliverAt", "neither an instant nor a duration; expected one of them")
	}
	if a.at.IsZero() || millis(a.at.Add(o.Spread)) > maxDue {
		return bad("DeliverAt", "%v; expected an instant up to the year 9999", a.at)
	}
	return nil
}

// CheckBulk tells whether Bulk would refuse this as it is. Errors: ErrConfig.
func (s *Store) CheckBulk(f Filter, a BulkAction, o BulkOptions) error {
	return a.validate(&f, &o, s.now())
}

// BulkCount is the number of tasks that Bulk would change now. BulkOptions.After is
// not looked at. Errors: ErrConfig.
func (s *Store) BulkCount(ctx context.Context, f Filter, a BulkAction, o BulkOptions) (int64, error) {
	now := s.now()
	if err := a.validate(&f, &o, now); err != nil {
		return 0, err
	}
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return 0, err
	}
	var total int64
	for _, status := range a.statuses(f) {
		where, args, err := a.where(f, status, o, now)
		if err != nil {
			return 0, err
		}
		var n int64
		if err := s.db.QueryRowContext(ctx, d.Bind("SELECT COUNT(*) FROM rabbitdelay_tasks"+where), args...).Scan(&n); err != nil {
			return 0, fmt.Errorf("counting tasks: %w", sqldb.Explain(err))
		}
		total += n
	}
	if o.Limit > 0 {
		total = min(total, o.Limit)
	}
	return total, nil
}

// statuses are those of the tasks that the filter and the action choose.
func (a *BulkAction) statuses(f Filter) []Status {
	if f.Status != "" {
		return []Status{f.Status}
	}
	return a.want
}

// where chooses what is still to be changed of one status, so that a task is not
// changed twice, in one run or in two.
func (a *BulkAction) where(f Filter, status Status, o BulkOptions, now time.Time) (string, []any, error) {
	f.Status = status
	where, args, err := f.where()
	if err != nil {
		return "", nil, err
	}
	switch {
	case a.verb == "delete" && status == StatusDone:
		where += " AND exchange = ''"
	case a.verb == "fire":
		where += " AND due_at > ?"
		args = append(args, now.Add(o.Spread).UnixMilli())
	case a.verb == "reschedule" && a.by == 0:
		where += " AND (due_at < ? OR due_at > ?)"
		args = append(args, millis(a.at), millis(a.at.Add(o.Spread)))
	}
	return where, args, nil
}
