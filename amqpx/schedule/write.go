package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
)

// Option is an option of a single call of Schedule or ScheduleBatch.
type Option func(*writing)

type writing struct{ on rows.OnExisting }

// Replace makes Schedule overwrite an existing task with the same id, whatever its status, instead
// of returning *ExistsError. The new task continues the version numbers of the old one, so that the
// old task's messages have no effect. A handler may replace its own task in its transaction, if it
// passes the context that it was given. Then its effect is kept, and the new task follows.
func Replace() Option { return func(w *writing) { w.on = rows.Replace } }

// Schedule writes a task with ex, which is the caller's transaction, or NoTx for the store's database.
// The task is sent only after a commit. A task with a DeliverAt in the past is due immediately.
//
// Schedule returns *TaskError for an invalid task and for a task with a UniqueKey (use
// ScheduleUnique), and *ExistsError if the id exists. The transaction can continue after an
// *ExistsError.
func (s *Store) Schedule(ctx context.Context, ex Executor, t Task, opts ...Option) error {
	return s.ScheduleBatch(ctx, ex, []Task{t}, opts...)
}

// ScheduleBatch writes many tasks with few statements, either all of them or none. If it fails in a
// transaction of the caller, the caller has to roll back.
func (s *Store) ScheduleBatch(ctx context.Context, ex Executor, tasks []Task, opts ...Option) error {
	w := writing{on: rows.Refuse}
	for i, o := range opts {
		if o == nil {
			return fmt.Errorf("%w: option %d of %d is nil", ErrTask, i+1, len(opts))
		}
		o(&w)
	}
	list, err := s.toWrite(ctx, tasks)
	for _, t := range list {
		if t.UniqueKey != "" {
			return taskError(t.ID, &rows.FieldError{Field: "UniqueKey", Reason: fmt.Sprintf("%q; use ScheduleUnique, which says what is to happen while another task has it", t.UniqueKey)})
		}
	}
	if err != nil || len(list) == 0 {
		return err
	}
	c := s.on(ex)
	write := func(c rows.Conn) error { return s.insert(ctx, c, list, w.on) }
	switch {
	case w.on == rows.Refuse && len(list) == 1 && len(list[0].Tags) == 0: // one statement
		err = s.direct(ctx, c, write)
	default:
		if w.on == rows.Replace {
			err = s.finishBefore(ctx, c, list)
		}
		if err == nil {
			err = s.db.Within(ctx, c, write)
		}
	}
	if err == nil {
		first := slices.MinFunc(list, func(a, b *rows.Task) int { return a.DeliverAt.Compare(b.DeliverAt) })
		s.pace.Due(s.db.DB, rows.Millis(first.DeliverAt))
	}
	return err
}

// direct runs do on c without beginning a transaction.
func (s *Store) direct(ctx context.Context, c sqldb.Conn, do func(rows.Conn) error) error {
	x, err := s.db.On(ctx, c)
	if err != nil {
		return err
	}
	return do(x)
}

// toWrite checks tasks after Hooks.BeforeSchedule, and returns their rows.
func (s *Store) toWrite(ctx context.Context, tasks []Task) ([]*rows.Task, error) {
	list := make([]*rows.Task, len(tasks))
	seen := make(map[string]bool, len(tasks))
	for i := range tasks {
		list[i] = s.hooked(ctx, tasks[i])
		problem := s.check(list[i])
		if problem != nil && problem.Field == "Headers" { // the hook may have added them
			list[i].Headers = tasks[i].Headers
			problem = s.check(list[i])
		}
		if problem == nil && seen[list[i].ID] {
			problem = &rows.FieldError{Field: "ID", Reason: "is twice in one batch"}
		}
		if problem != nil {
			return nil, taskError(list[i].ID, problem)
		}
		seen[list[i].ID] = true
	}
	return list, nil
}

// hooked returns the row of a task after Hooks.BeforeSchedule.
func (s *Store) hooked(ctx context.Context, t Task) *rows.Task {
	if hook := s.cfg.Hooks.BeforeSchedule; hook != nil {
		t.Headers = maps.Clone(t.Headers)
		s.observed(func() { hook(ctx, &t) })
	}
	return t.row()
}

// check returns why a task cannot be written or sent, or nil.
func (s *Store) check(t *rows.Task) *rows.FieldError {
	if problem := relay.Check(t, s.cfg.MaxBody); problem != nil {
		return problem
	}
	return s.sendable(t)
}

func (s *Store) insert(ctx context.Context, c rows.Conn, list []*rows.Task, on rows.OnExisting) error {
	existing, err := c.Insert(ctx, list, s.nowOn(ctx, c).UnixMilli(), on)
	if err == nil && len(existing) > 0 {
		err = &ExistsError{IDs: existing}
	}
	return err
}

// Cancel cancels a pending task when ex commits, so that it has no effect. It waits for a handler
// that is working on the task. Handlers of a task to an exchange roll back their effects instead.
// Cancel returns ErrNotFound if there is no such task, and *StatusError if it is too late.
func (s *Store) Cancel(ctx context.Context, ex Executor, id string) error {
	return s.change(ctx, ex, id, "cancel", StatusPending, rows.Cancel(s.nowIn(ctx, ex).UnixMilli()))
}

// CancelBatch cancels the tasks with the given ids that are pending, and returns their number. With
// NoTx it is one transaction.
func (s *Store) CancelBatch(ctx context.Context, ex Executor, ids []string) (int, error) {
	var total int64
	err := s.db.Within(ctx, s.on(ex), func(c rows.Conn) (err error) {
		total, err = c.CancelPending(ctx, ids, s.nowOn(ctx, c).UnixMilli())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("cancelling %s: %w", shown.Count(len(ids), "task", "tasks"), err)
	}
	return int(total), nil
}

// Reschedule moves a pending task to an earlier or later due time when ex commits. Its attempts are
// counted from the beginning again. Reschedule returns the errors of Cancel, and *TaskError for an
// invalid time.
func (s *Store) Reschedule(ctx context.Context, ex Executor, id string, deliverAt time.Time) error {
	return s.move(ctx, ex, id, "reschedule", StatusPending, deliverAt)
}

// RescheduleBy moves a pending task by a duration when ex commits. The duration is added to the due
// time that the task has when the statement runs, so that concurrent calls add up. The result is
// never before "immediately" nor after the year 9999. The attempts are counted from the beginning
// again. The errors are those of Reschedule.
func (s *Store) RescheduleBy(ctx context.Context, ex Executor, id string, by time.Duration) error {
	if reason := units.Shift(by); reason != "" {
		return &TaskError{ID: id, Field: "DeliverAt", Reason: "moved by " + reason}
	}
	err := s.change(ctx, ex, id, "reschedule", StatusPending, rows.DueBy(by, s.nowIn(ctx, ex).UnixMilli()))
	if err == nil {
		s.Wake()
	}
	return err
}

// FireNow makes a pending task due immediately by the database's clock, when ex commits. The errors
// are those of Cancel.
func (s *Store) FireNow(ctx context.Context, ex Executor, id string) error {
	return s.move(ctx, ex, id, "fire", StatusPending, s.nowIn(ctx, ex).Truncate(time.Millisecond))
}

// Revive makes a failed task pending again, due at deliverAt, or immediately if that is in the past.
// The errors are those of Reschedule, and *UniqueError if another task with its unique key is
// pending.
func (s *Store) Revive(ctx context.Context, ex Executor, id string, deliverAt time.Time) error {
	return s.move(ctx, ex, id, "revive", StatusFailed, deliverAt)
}

func (s *Store) move(ctx context.Context, ex Executor, id, action string, want Status, at time.Time) error {
	due := rows.Millis(at)
	if at.IsZero() {
		return &TaskError{ID: id, Field: "DeliverAt", Reason: "not set; expected an instant, the present one for at once"}
	}
	if reason := units.Instant(at); reason != "" {
		return &TaskError{ID: id, Field: "DeliverAt", Reason: reason}
	}
	if due > rows.MaxDue {
		return &TaskError{ID: id, Field: "DeliverAt", Reason: fmt.Sprintf("%v, expected an instant up to the year 9999", at)}
	}
	err := s.change(ctx, ex, id, action, want, rows.DueAt(due, s.nowIn(ctx, ex).UnixMilli()))
	if err == nil {
		s.pace.Due(s.db.DB, due)
	}
	return err
}

func (s *Store) change(ctx context.Context, ex Executor, id, action string, want Status, a rows.Assignment) error {
	c, err := s.conn(ctx, ex)
	if err != nil {
		return err
	}
	key := ""
	if want == StatusFailed { // the task would become pending
		var pending string
		if key, pending, err = c.KeyTaken(ctx, id); err == nil && pending != "" {
			err = &UniqueError{ID: id, Key: key, Pending: pending}
		}
		if err != nil {
			return err
		}
	}
	changed, status, err := c.Change(ctx, id, string(want), a)
	switch {
	case key != "" && sqldb.Duplicate(err):
		return &UniqueError{ID: id, Key: key}
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("cannot %s task %s: %w", action, id, ErrNotFound)
	case err != nil:
		return fmt.Errorf("%s task %s: %w", action, id, err)
	case !changed:
		return &StatusError{ID: id, Action: action, Status: Status(status), Want: want}
	}
	return nil
}

// work is the task of a running handler, stored in that handler's context. The task is finished after
// the handler's function, or before the function replaces the task in the same transaction. The
// replacement is then a successor, and does not undo the effect.
type work struct {
	id       string
	finish   func(ctx context.Context, c rows.Conn) error
	finished bool
}

type workKey struct{}

// withWork returns the context of the handler's function.
func withWork(ctx context.Context, w *work) context.Context {
	return context.WithValue(ctx, workKey{}, w)
}

// finishOnce finishes the task unless it is finished already.
func (w *work) finishOnce(ctx context.Context, c rows.Conn) error {
	if w.finished {
		return nil
	}
	err := w.finish(ctx, c)
	w.finished = err == nil
	return err
}

// finishBefore finishes the task of a handler if the handler is about to replace it in its transaction.
func (s *Store) finishBefore(ctx context.Context, c sqldb.Conn, tasks []*rows.Task) error {
	w, _ := ctx.Value(workKey{}).(*work)
	if _, outside := c.(sqldb.DB); w == nil || outside {
		return nil
	}
	if !slices.ContainsFunc(tasks, func(t *rows.Task) bool { return t.ID == w.id }) {
		return nil
	}
	return s.direct(ctx, c, func(c rows.Conn) error { return w.finishOnce(ctx, c) })
}
