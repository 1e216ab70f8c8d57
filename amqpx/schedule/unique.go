package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// OnPending is what ScheduleUnique does while a task of the same unique key is pending.
type OnPending string

const (
	// KeepPending leaves the pending task as it is. This is the default.
	KeepPending OnPending = "keep"
	// ReplacePending gives the pending task the due time, destination, payload and tags of the given
	// task. The pending task keeps its id.
	ReplacePending OnPending = "replace"
	// PushBackPending moves the pending task to the due time of the given task if that is later, but
	// at most to Unique.MaxWait after the pending task was scheduled. The pending task keeps its
	// payload.
	PushBackPending OnPending = "push-back"
)

// Unique has the options of ScheduleUnique. The zero value keeps a pending task as it is.
type Unique struct {
	OnPending OnPending
	// MaxWait is how long after it was scheduled a task is due at the latest, however often it is
	// pushed back. It is required with PushBackPending, and must be 0 otherwise. Without it an
	// endless stream of calls would postpone the task forever, as it can with ReplacePending.
	MaxWait time.Duration
	// Cooldown is how long after a task of the key was done a new task is refused. While a task of the
	// key is running, a new task is refused too. The default 0 refuses none. The maximum is
	// Config.Retention.Keep, because done tasks are deleted after that.
	Cooldown time.Duration
}

// UniqueOutcome is the outcome of ScheduleUnique.
type UniqueOutcome string

// The outcomes of ScheduleUnique.
const (
	UniqueCreated    UniqueOutcome = "created"     // there was no pending task of the key
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
	// DeliverAt is when the pending task is due. It is zero after UniqueRefused.
	DeliverAt time.Time
	// Until is when the cooldown ends. It is set after UniqueRefused only, and is zero while the task
	// is running.
	Until time.Time
}

// ScheduleUnique writes a task with a UniqueKey with ex, like Schedule, or merges it with the pending
// task of the same key, so that there is never more than one. If ID is empty, the task gets a UUIDv7.
// With NoTx it is one transaction.
//
// The pending task is locked until ex commits. Its handler waits for the commit, and so sees what ex
// has changed. ScheduleUnique waits for a handler that has begun, and for other transactions that
// schedule the same key. Transactions that schedule several keys should do so in the same order
// everywhere, because otherwise the database may end one of them as a deadlock. A handler that
// schedules its own key in its transaction schedules the next task.
//
// Only pending tasks are merged. While a LeaseHandler works on a task, a second task is created. If
// that work fails and would be retried while the second task is pending and due first, its task is
// cancelled in favor of the second one.
//
// ScheduleUnique returns *TaskError for an invalid task, key or Unique, and *ExistsError if no task of
// the key is pending but the id exists. The transaction can continue after an *ExistsError.
func (s *Store) ScheduleUnique(ctx context.Context, ex Executor, t Task, u Unique) (UniqueResult, error) {
	if t.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return UniqueResult{}, fmt.Errorf("making an id: %w", err)
		}
		t.ID = id.String()
	}
	row := s.hooked(ctx, t)
	if problem := s.checkUnique(row, u); problem != nil {
		return UniqueResult{}, taskError(t.ID, problem)
	}
	var result UniqueResult
	err := s.db.Within(ctx, s.on(ex), func(c rows.Conn) (err error) {
		result, err = uniqueCall{s, c, row, u}.run(ctx)
		return err
	})
	if err != nil {
		if !errors.Is(err, ErrExists) {
			err = fmt.Errorf("scheduling task %s of unique key %s: %w", t.ID, t.UniqueKey, err)
		}
		return UniqueResult{}, err
	}
	if result.Outcome != UniqueKept && result.Outcome != UniqueRefused {
		s.pace.Due(s.db.DB, rows.Millis(result.DeliverAt))
	}
	return result, nil
}

// checkUnique returns the problem of an invalid task or Unique, nil if both are valid.
func (s *Store) checkUnique(t *rows.Task, u Unique) *rows.FieldError {
	bad := func(field, format string, args ...any) *rows.FieldError {
		return &rows.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
	}
	pushes := u.OnPending == PushBackPending
	switch keep := s.cfg.Retention.Keep; {
	case t.UniqueKey == "":
		return bad("UniqueKey", "not set; expected what the task is about, such as reindex-42")
	case u.OnPending != "" && u.OnPending != KeepPending && u.OnPending != ReplacePending && !pushes:
		return bad("OnPending", "%q, expected %q, %q or %q", u.OnPending, KeepPending, ReplacePending, PushBackPending)
	case pushes && u.MaxWait <= 0:
		return bad("MaxWait", "%s, expected more than 0: how long after it was scheduled a task that is pushed back is due at the latest", topology.FormatDuration(u.MaxWait))
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

// uniqueCall is one call of ScheduleUnique in its transaction.
type uniqueCall struct {
	s *Store
	c rows.Conn
	t *rows.Task
	u Unique
}

// uniqueTries is how often the pending task of a key may end, or another one appear, between the
// statements of one call. Each time another transaction has made progress.
const uniqueTries = 100

func (x uniqueCall) run(ctx context.Context) (UniqueResult, error) {
	if refused, err := x.cooling(ctx); err != nil || refused.Outcome != "" {
		return refused, err
	}
	if x.u.Cooldown == 0 {
		return x.write(ctx)
	}
	// A refusal leaves no row, so that the id can be used after the cooldown.
	var result UniqueResult
	undone, err := x.c.Undoable(ctx, func() (undo bool, err error) {
		result, err = x.write(ctx)
		return result.Outcome == UniqueRefused, err
	})
	if err == nil && !undone && result.Outcome == UniqueRefused { // every statement is a separate transaction
		_, err = x.c.ChangeHolder(ctx, rows.Holder{ID: x.t.ID, Version: 1}, rows.GiveWay("its unique key cools down: task "+result.ID+" is running or was done", x.now(ctx)))
	}
	return result, err
}

// write inserts the task or merges it with the pending one.
func (x uniqueCall) write(ctx context.Context) (UniqueResult, error) {
	for range uniqueTries {
		inserted, err := x.c.InsertUnique(ctx, x.t, x.now(ctx))
		if err != nil {
			return UniqueResult{}, err
		}
		if inserted {
			return x.created(ctx)
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
	return UniqueResult{}, fmt.Errorf("its pending task changed %d times meanwhile", uniqueTries)
}

func (x uniqueCall) now(ctx context.Context) int64 { return x.s.nowOn(ctx, x.c).UnixMilli() }

// cooling returns the refusal of a cooldown that has not ended, or the zero result.
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

// created returns the result of an inserted task. A pending task may have been done while the insertion
// waited for it. From now on no other task of the key can become pending, so this check of the
// cooldown is the final one.
func (x uniqueCall) created(ctx context.Context) (UniqueResult, error) {
	refused, err := x.cooling(ctx)
	if err != nil {
		return UniqueResult{}, err
	}
	if refused.Outcome != "" {
		return refused, nil // run undoes the insertion
	}
	return UniqueResult{Outcome: UniqueCreated, ID: x.t.ID, DeliverAt: time.UnixMilli(rows.Millis(x.t.DeliverAt))}, x.c.WriteTags(ctx, x.t)
}

// merge merges the task with the pending task of its key. The result is zero if the pending task has
// ended, so that the task can be inserted.
func (x uniqueCall) merge(ctx context.Context, h rows.Holder) (UniqueResult, error) {
	if w, _ := ctx.Value(workKey{}).(*work); w != nil && w.id == h.ID {
		return UniqueResult{}, w.finishOnce(ctx, x.c) // the handler's own task, whose effect is kept
	}
	if h.Over {
		return UniqueResult{}, x.c.Expire(ctx, h.ID, h.Version, x.now(ctx))
	}
	result := UniqueResult{ID: h.ID}
	var a rows.Assignment
	due := h.Due
	switch {
	case x.u.OnPending == ReplacePending:
		result.Outcome, due, a = UniqueReplaced, rows.Millis(x.t.DeliverAt), x.t.ReplaceBy(h, x.now(ctx))
	case x.pushedTo(h) > h.Due:
		due = x.pushedTo(h)
		result.Outcome, a = UniquePushedBack, rows.DueAt(due, x.now(ctx))
	default:
		result.Outcome, a = UniqueKept, rows.Touch(x.now(ctx))
	}
	result.DeliverAt = time.UnixMilli(due)
	changed, err := x.c.ChangeHolder(ctx, h, a)
	if err != nil || !changed {
		return UniqueResult{}, err
	}
	if result.Outcome == UniqueReplaced {
		err = x.c.RewriteTags(ctx, h, x.t)
	}
	return result, err
}

// pushedTo returns the time to which the pending task is pushed back, 0 if it is not.
func (x uniqueCall) pushedTo(h rows.Holder) int64 {
	if x.u.OnPending != PushBackPending {
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
