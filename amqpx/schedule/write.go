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

// Option tunes one call of Schedule or ScheduleBatch.
type Option func(*writing)

type writing struct{ on rows.OnExisting }

// Replace makes the given task take the place of one with the same id, whatever
// its status. The version goes on from the old one's, so that its messages no
// longer count. A handler may replace its own task in its transaction, with the
// context that it was given: its effect stands, and the new task follows.
func Replace() Option { return func(w *writing) { w.on = rows.Replace } }

// Schedule enlists a task in ex: the caller's transaction, or a database.
// Nothing is sent unless that commits. A DeliverAt in the past is due at once.
// Errors: *TaskError for an invalid task, or one with a UniqueKey; *ExistsError for an id that exists
// (the transaction can continue after it).
func (s *Store) Schedule(ctx context.Context, ex Executor, t Task, opts ...Option) error {
	return s.ScheduleBatch(ctx, ex, []Task{t}, opts...)
}

// ScheduleBatch enlists many tasks with few statements, all or none of them. When
// it fails in a transaction of the caller, the caller rolls back.
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

// direct runs do on c, without a transaction of its own.
func (s *Store) direct(ctx context.Context, c sqldb.Conn, do func(rows.Conn) error) error {
	x, err := s.db.On(ctx, c)
	if err != nil {
		return err
	}
	return do(x)
}

// toWrite checks tasks, with what the hook adds, and returns their rows.
func (s *Store) toWrite(ctx context.Context, tasks []Task) ([]*rows.Task, error) {
	list := make([]*rows.Task, len(tasks))
	seen := make(map[string]bool, len(tasks))
	for i := range tasks {
		list[i] = s.hooked(ctx, tasks[i])
		problem := s.check(list[i])
		if problem != nil && problem.Field == "Headers" { // the hook's, perhaps
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

// hooked is the row of a task after Hooks.BeforeSchedule.
func (s *Store) hooked(ctx context.Context, t Task) *rows.Task {
	if hook := s.cfg.Hooks.BeforeSchedule; hook != nil {
		t.Headers = maps.Clone(t.Headers)
		s.observed(func() { hook(ctx, &t) })
	}
	return t.row()
}

// check returns why a task cannot be written, or sent.
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

// Cancel ends a pending task without its effect, when ex commits. It waits for a
// handler that is running on it; handlers of a task to an exchange undo their effects
// instead. Errors: ErrNotFound, or *StatusError when it is too late.
func (s *Store) Cancel(ctx context.Context, ex Executor, id string) error {
	return s.change(ctx, ex, id, "cancel", StatusPending, rows.Cancel(s.nowIn(ctx, ex).UnixMilli()))
}

// CancelBatch cancels those of the tasks that are pending, and returns how many
// were. In a database it is one transaction.
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

// Reschedule moves a pending task to another instant, earlier or later, when ex
// commits. Its attempts start anew. Errors: as Cancel, and *TaskError.
func (s *Store) Reschedule(ctx context.Context, ex Executor, id string, deliverAt time.Time) error {
	return s.move(ctx, ex, id, "reschedule", StatusPending, deliverAt)
}

// RescheduleBy moves a pending task by a duration from where it is when the statement
// runs, so that several at once add up, when ex commits. It ends at the bounds of an
// instant: at once, and the year 9999. Its attempts start anew. Errors: as Reschedule.
func (s *Store) RescheduleBy(ctx context.Context, ex Executor, id string, by time.Duration) error {
	if reason := units.Duration(by); reason != "" {
		return &TaskError{ID: id, Field: "DeliverAt", Reason: "moved by " + reason}
	}
	err := s.change(ctx, ex, id, "reschedule", StatusPending, rows.DueBy(by, s.nowIn(ctx, ex).UnixMilli()))
	if err == nil {
		s.Wake()
	}
	return err
}

// FireNow makes a pending task due at once by the database's clock, when
// ex commits. Errors: as Cancel.
func (s *Store) FireNow(ctx context.Context, ex Executor, id string) error {
	return s.move(ctx, ex, id, "fire", StatusPending, s.nowIn(ctx, ex).Truncate(time.Millisecond))
}

// Revive makes a failed task pending again, due at deliverAt; an instant in the
// past means at once. Errors: as Reschedule, and *UniqueError if another task of its
// unique key is pending.
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
	if want == StatusFailed { // it is to be pending
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

// work is a task whose handler runs, in the context of that handler. Its task is
// finished after the handler's function, or before that replaces it in the same
// transaction: a successor is no competitor, whose replacement would undo the effect.
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

// finishOnce finishes the task unless that has happened.
func (w *work) finishOnce(ctx context.Context, c rows.Conn) error {
	if w.finished {
		return nil
	}
	err := w.finish(ctx, c)
	w.finished = err == nil
	return err
}

// finishBefore finishes the task of the handler that replaces it in its transaction.
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
