package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ConflictPolicy is what ScheduleUnique does if a task with the same unique key is pending.
type ConflictPolicy string

const (
	// KeepPending leaves the pending task as it is. This is the default.
	KeepPending ConflictPolicy = "keep"
	// ReplacePending gives the pending task the due time, destination, payload and tags of the given
	// task. The pending task keeps its id.
	ReplacePending ConflictPolicy = "replace"
	// PushBackPending reschedules the pending task to the due time of the given task if that is later, but at most to
	// Unique.MaxWait after the pending task was scheduled. The pending task keeps its payload.
	PushBackPending ConflictPolicy = "push-back"
)

// Unique contains the options for ScheduleUnique. The zero value keeps a pending task as it is.
type Unique struct {
	OnConflict ConflictPolicy
	// MaxWait is the longest time from scheduling a task until it is due, however often it is postponed. It is required
	// with PushBackPending, and must be 0 otherwise. Without it, an endless stream of calls could postpone the task
	// forever, as is possible with ReplacePending.
	MaxWait time.Duration
	// Cooldown is the time after a task with the key was done during which new tasks with the key are refused. They are
	// also refused while a task with the key is running. With the default of 0, none are refused. The maximum is
	// Config.Retention.Keep, because done tasks are deleted after that.
	Cooldown time.Duration
}

// UniqueOutcome is the outcome of ScheduleUnique.
type UniqueOutcome string

// The outcomes of ScheduleUnique.
const (
	UniqueCreated    UniqueOutcome = "created"     // there was no pending task with the key
	UniqueKept       UniqueOutcome = "kept"        // the pending task was not changed
	UniqueReplaced   UniqueOutcome = "replaced"    // the pending task has a new payload and due time
	UniquePushedBack UniqueOutcome = "pushed-back" // the pending task has a later due time
	UniqueRefused    UniqueOutcome = "refused"     // refused because of Unique.Cooldown
)

// UniqueResult is the result of ScheduleUnique.
type UniqueResult struct {
	Outcome UniqueOutcome
	// ID is the id of the pending task. After UniqueRefused it is the id of the task that is running or
	// was done.
	ID string
	// DueAt is when the pending task is due. It is zero after UniqueRefused.
	DueAt time.Time
	// Until is when the cooldown ends. It is set only after UniqueRefused, and is zero while the task is running.
	Until time.Time
}

// ScheduleUnique writes a task with a UniqueKey, like Schedule, or merges it with the pending task that has the same
// key, so that there is never more than one. If ID is empty, the task gets a UUIDv7. With NoTx it runs in one
// transaction.
//
// The pending task is locked until ex commits. The handler of the task waits for the commit, and therefore sees the
// changes of the transaction. ScheduleUnique waits for a handler that has already started, and for other transactions
// that schedule tasks with the same key. If a transaction schedules tasks with several keys, use the same order of keys
// everywhere. Otherwise two transactions may deadlock, and the database aborts one of them. If a handler calls
// ScheduleUnique with its own task's key in its transaction, the call creates the next task.
//
// Only pending tasks are merged. A call during a LeaseHandler's work creates a second task, because the first one is no
// longer pending. If the work then fails and the second task is due before the retry, the first task is cancelled in
// favour of the second one.
//
// ScheduleUnique returns *TaskError for an invalid task, key or Unique, and *ExistsError if no task with the key is
// pending but the id exists. The transaction can continue after an *ExistsError.
func (s *Store) ScheduleUnique(ctx context.Context, ex Executor, t Task, u Unique) (UniqueResult, error) {
	if t.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return UniqueResult{}, fmt.Errorf("generating an id: %w", err)
		}
		t.ID = id.String()
	}
	row := s.hooked(ctx, t)
	if problem := s.checkUnique(row, u); problem != nil {
		return UniqueResult{}, taskError(t.ID, problem)
	}
	result, tried, err := s.atOnce(ctx, ex, row, u)
	if err == nil && result.Outcome == "" {
		err = s.db.Within(ctx, s.rawConn(ex), func(c rows.Conn) (err error) {
			result, err = uniqueCall{s, c, row, u, tried}.run(ctx)
			return err
		})
	}
	if err != nil {
		if !errors.Is(err, ErrExists) {
			err = fmt.Errorf("scheduling task %s with unique key %s: %w", t.ID, t.UniqueKey, err)
		}
		return UniqueResult{}, err
	}
	if result.Outcome != UniqueKept && result.Outcome != UniqueRefused {
		s.poller.Due(s.db.DB, rows.Millis(result.DueAt))
	}
	return result, nil
}

// atOnce does what needs only one statement, without a transaction of its own: it pushes back the pending task, or
// inserts the task. It returns the zero result if the call needs more than that, and whether it has tried to insert the
// task.
func (s *Store) atOnce(ctx context.Context, ex Executor, t *rows.Task, u Unique) (result UniqueResult, tried bool, err error) {
	c, err := s.conn(ctx, ex)
	if err != nil || u.Cooldown != 0 || !c.UniqueAtOnce() {
		return UniqueResult{}, false, err
	}
	x := uniqueCall{s: s, c: c, t: t, u: u}
	result, err = x.pushBack(ctx)
	if err == nil && result.Outcome == "" && ex == NoTx && len(t.Tags) == 0 { // tags need further statements
		var inserted bool
		if inserted, err = c.InsertUnique(ctx, t, x.now(ctx)); inserted {
			result, err = x.created(ctx)
		}
		tried = err == nil
	}
	if ex == NoTx && sqldb.Transient(err) {
		return UniqueResult{}, false, nil // unlike a single statement, the transaction that follows is tried again
	}
	return result, tried, err
}

// checkUnique returns what is wrong with a task or Unique, or nil if both are valid.
func (s *Store) checkUnique(t *rows.Task, u Unique) *rows.FieldError {
	bad := func(field, format string, args ...any) *rows.FieldError {
		return &rows.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
	}
	pushes := u.OnConflict == PushBackPending
	switch keep := s.cfg.Retention.Keep; {
	case t.UniqueKey == "":
		return bad("UniqueKey", "not set; expected a name for the task's work, such as reindex-42")
	case t.Replace:
		return bad("Replace", "applies to the id and cannot be combined with a unique key; use Unique.OnConflict for pending tasks with the same key")
	case u.OnConflict != "" && u.OnConflict != KeepPending && u.OnConflict != ReplacePending && !pushes:
		return bad("OnConflict", "%q, expected %q, %q or %q", u.OnConflict, KeepPending, ReplacePending, PushBackPending)
	case pushes && u.MaxWait <= 0:
		return bad("MaxWait", "%s, expected more than 0: the longest time from scheduling a task until it is due, however often it is pushed back", topology.FormatDuration(u.MaxWait))
	case !pushes && u.MaxWait != 0:
		return bad("MaxWait", "%s, expected 0 unless a pending task is pushed back", topology.FormatDuration(u.MaxWait))
	case units.Duration(u.MaxWait) != "":
		return bad("MaxWait", "%s", units.Duration(u.MaxWait))
	case units.Duration(u.Cooldown) != "":
		return bad("Cooldown", "%s", units.Duration(u.Cooldown))
	case u.Cooldown < 0 || u.Cooldown > keep:
		return bad("Cooldown", "%s, expected 0 to %s, for which done tasks are kept", topology.FormatDuration(u.Cooldown), topology.FormatDuration(keep))
	}
	return s.check(t)
}

// uniqueCall is one call to ScheduleUnique.
type uniqueCall struct {
	s *Store
	c rows.Conn
	t *rows.Task
	u Unique

	tried bool // whether the task could not be inserted just now
}

// uniqueTries is the number of times that a call starts over because the pending task with the key has ended, or
// another one has appeared, between two of its statements. Each time, another transaction has made progress.
const uniqueTries = 100

func (x uniqueCall) run(ctx context.Context) (UniqueResult, error) {
	if refused, err := x.cooling(ctx); err != nil || refused.Outcome != "" {
		return refused, err
	}
	if x.u.Cooldown == 0 {
		return x.write(ctx)
	}
	// A refused task must not leave a row, so that its id can be used after the cooldown.
	var result UniqueResult
	undone, err := x.c.Undoable(ctx, func() (undo bool, err error) {
		result, err = x.write(ctx)
		return result.Outcome == UniqueRefused, err
	})
	if err == nil && !undone && result.Outcome == UniqueRefused { // without a transaction the row cannot be rolled back, so cancel the task
		_, err = x.c.ChangeHolder(ctx, rows.Holder{ID: x.t.ID, Version: 1}, rows.GiveWay("refused by the cooldown of its unique key: task "+result.ID+" is running or was done", x.now(ctx)))
	}
	return result, err
}

// write inserts the task or merges it with the pending one.
func (x uniqueCall) write(ctx context.Context) (UniqueResult, error) {
	for try := range uniqueTries {
		if try > 0 || !x.tried {
			inserted, err := x.c.InsertUnique(ctx, x.t, x.now(ctx))
			if err != nil {
				return UniqueResult{}, err
			}
			if inserted {
				return x.created(ctx)
			}
		}
		h, found, err := x.c.Holder(ctx, x.t.UniqueKey, x.now(ctx))
		if err != nil {
			return UniqueResult{}, err
		}
		result := UniqueResult{}
		if found {
			result, err = x.merge(ctx, h)
		} else {
			err = x.exists(ctx)
		}
		if err != nil || result.Outcome != "" {
			return result, err
		}
	}
	return UniqueResult{}, fmt.Errorf("other writers changed the tasks with this unique key during each of %d tries; try again later", uniqueTries)
}

func (x uniqueCall) now(ctx context.Context) int64 { return x.s.nowOn(ctx, x.c).UnixMilli() }

// pushBack pushes back the pending task with one statement. It returns the zero result with another policy, and if
// there is no pending task that can be pushed back.
func (x uniqueCall) pushBack(ctx context.Context) (UniqueResult, error) {
	if x.u.OnConflict != PushBackPending {
		return UniqueResult{}, nil
	}
	push := rows.Push{Key: x.t.UniqueKey, Due: min(rows.Millis(x.t.DeliverAt), rows.MaxDue), Wait: x.u.MaxWait.Milliseconds()}
	if w, _ := ctx.Value(workKey{}).(*work); w != nil {
		push.Except = w.id // a handler that pushes back its own task creates the next one
	}
	id, due, err := x.c.PushBack(ctx, push, x.now(ctx))
	if err != nil || id == "" {
		return UniqueResult{}, err
	}
	return UniqueResult{Outcome: UniquePushedBack, ID: id, DueAt: time.UnixMilli(due)}, nil
}

// cooling returns the result for a refused task if the cooldown has not ended or a task with the key is running, and
// the zero result otherwise.
func (x uniqueCall) cooling(ctx context.Context) (UniqueResult, error) {
	if x.u.Cooldown == 0 {
		return UniqueResult{}, nil
	}
	r, found, err := x.c.RecentOf(ctx, x.t.UniqueKey, x.now(ctx)-x.u.Cooldown.Milliseconds())
	if err != nil || !found {
		return UniqueResult{}, err
	}
	result := UniqueResult{Outcome: UniqueRefused, ID: r.ID}
	if r.Done > 0 {
		result.Until = time.UnixMilli(r.Done).Add(x.u.Cooldown)
	}
	return result, nil
}

// created returns the result for an inserted task. It checks the cooldown again, because the insertion may have waited
// for a pending task that is now done. This check is final, because from now on no other task with the key can become
// pending.
func (x uniqueCall) created(ctx context.Context) (UniqueResult, error) {
	refused, err := x.cooling(ctx)
	if err != nil {
		return UniqueResult{}, err
	}
	if refused.Outcome != "" {
		return refused, nil // run then rolls back the insertion
	}
	return UniqueResult{Outcome: UniqueCreated, ID: x.t.ID, DueAt: time.UnixMilli(rows.Millis(x.t.DeliverAt))}, x.c.WriteTags(ctx, x.t)
}

// merge merges the task with the pending task that has the same key. It returns the zero result if the pending task has
// ended, so that the caller can insert the task.
func (x uniqueCall) merge(ctx context.Context, h rows.Holder) (UniqueResult, error) {
	if w, _ := ctx.Value(workKey{}).(*work); w != nil && w.id == h.ID {
		return UniqueResult{}, w.finishOnce(ctx, x.c) // the pending task is the one that the calling handler works on; keep its effect, and insert the new task
	}
	if h.Over {
		return UniqueResult{}, x.c.Expire(ctx, rows.Fence{ID: h.ID, Version: h.Version}, x.now(ctx))
	}
	result := UniqueResult{ID: h.ID}
	var a rows.Assignment
	due := h.Due
	switch {
	case x.u.OnConflict == ReplacePending:
		result.Outcome, due, a = UniqueReplaced, rows.Millis(x.t.DeliverAt), x.t.ReplaceBy(h, x.now(ctx))
	case x.pushedTo(h) > h.Due:
		due = x.pushedTo(h)
		result.Outcome, a = UniquePushedBack, rows.DueAt(due, x.now(ctx))
	default:
		result.Outcome, a = UniqueKept, rows.Touch(x.now(ctx))
	}
	result.DueAt = time.UnixMilli(due)
	changed, err := x.c.ChangeHolder(ctx, h, a)
	if err != nil || !changed {
		return UniqueResult{}, err
	}
	if result.Outcome == UniqueReplaced {
		err = x.c.RewriteTags(ctx, h, x.t)
	}
	return result, err
}

// pushedTo returns the time to which PushBackPending may postpone the pending task. The task stays unchanged if it is
// already due at that time or later. pushedTo returns 0 with the other policies.
func (x uniqueCall) pushedTo(h rows.Holder) int64 {
	if x.u.OnConflict != PushBackPending {
		return 0
	}
	return min(rows.Millis(x.t.DeliverAt), h.Created+x.u.MaxWait.Milliseconds(), rows.MaxDue)
}

// exists returns an *ExistsError if a task has the id.
func (x uniqueCall) exists(ctx context.Context) error {
	found, err := x.c.HasID(ctx, x.t.ID)
	if err == nil && found {
		err = &ExistsError{IDs: []string{x.t.ID}}
	}
	return err
}
