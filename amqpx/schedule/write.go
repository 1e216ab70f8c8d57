package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Schedule writes a task with ex, which is the caller's transaction, or NoTx for the store's database. The task is sent
// only after the commit. A task with a DeliverAt in the past is due immediately.
//
// Schedule returns *TaskError for an invalid task and for a task with a UniqueKey (use
// ScheduleUnique), and *ExistsError if the id exists. The transaction can continue after an
// *ExistsError.
func (s *Store) Schedule(ctx context.Context, ex Executor, t Task) error {
	return s.ScheduleBatch(ctx, ex, []Task{t})
}

// ScheduleBatch writes many tasks with few statements, either all of them or none. If it fails in a transaction of the
// caller, the caller must roll back.
func (s *Store) ScheduleBatch(ctx context.Context, ex Executor, tasks []Task) error {
	list, err := s.toWrite(ctx, tasks)
	for _, t := range list {
		if t.UniqueKey != "" {
			return taskError(t.ID, &rows.FieldError{Field: "UniqueKey", Reason: fmt.Sprintf("is %q; use ScheduleUnique for a task with a unique key", t.UniqueKey)})
		}
	}
	if err != nil || len(list) == 0 {
		return err
	}
	var fresh, replacing []*rows.Task
	for _, t := range list {
		if t.Replace {
			replacing = append(replacing, t)
		} else {
			fresh = append(fresh, t)
		}
	}
	c := s.rawConn(ex)
	switch {
	case len(list) == 1 && len(fresh) == 1 && len(fresh[0].Tags) == 0: // a single statement needs no transaction
		err = s.direct(ctx, c, func(c rows.Conn) error { return s.insert(ctx, c, fresh, rows.Refuse) })
	default:
		if err = s.finishBefore(ctx, c, replacing); err == nil {
			err = s.db.Within(ctx, c, func(c rows.Conn) error {
				if err := s.insert(ctx, c, fresh, rows.Refuse); err != nil {
					return err
				}
				return s.insert(ctx, c, replacing, rows.Replace)
			})
		}
	}
	if err == nil {
		first := slices.MinFunc(list, func(a, b *rows.Task) int { return a.DeliverAt.Compare(b.DeliverAt) })
		s.poller.Due(s.db.DB, rows.Millis(first.DeliverAt))
	}
	return err
}

// direct passes a connection with its dialect to write, without beginning a transaction.
func (s *Store) direct(ctx context.Context, c sqldb.Conn, write func(rows.Conn) error) error {
	x, err := s.db.On(ctx, c)
	if err != nil {
		return err
	}
	return write(x)
}

// toWrite checks tasks after Hooks.BeforeSchedule, and returns their rows.
func (s *Store) toWrite(ctx context.Context, tasks []Task) ([]*rows.Task, error) {
	list := make([]*rows.Task, len(tasks))
	seen := make(map[string]bool, len(tasks))
	for i := range tasks {
		list[i] = s.hooked(ctx, tasks[i])
		problem := s.check(list[i])
		if problem != nil && problem.Field == "Headers" { // the hook may have added invalid headers
			list[i].Headers = tasks[i].Headers
			problem = s.check(list[i])
		}
		if problem == nil && seen[list[i].ID] {
			problem = &rows.FieldError{Field: "ID", Reason: "occurs twice in the batch"}
		}
		if problem != nil {
			return nil, taskError(list[i].ID, problem)
		}
		seen[list[i].ID] = true
	}
	return list, nil
}

// hooked calls Hooks.BeforeSchedule with a copy of the task, and returns the row of that copy.
func (s *Store) hooked(ctx context.Context, t Task) *rows.Task {
	if hook := s.cfg.Hooks.BeforeSchedule; hook != nil {
		t.Headers = maps.Clone(t.Headers)
		s.observed(func() { hook(ctx, &t) })
	}
	return t.row()
}

// check returns why a task cannot be written or sent, or nil if it can.
func (s *Store) check(t *rows.Task) *rows.FieldError {
	if problem := relay.Check(t, s.cfg.MaxBody); problem != nil {
		return problem
	}
	return s.sendable(t)
}

func (s *Store) insert(ctx context.Context, c rows.Conn, list []*rows.Task, on rows.OnExisting) error {
	if len(list) == 0 {
		return nil
	}
	existing, err := c.Insert(ctx, list, s.nowOn(ctx, c).UnixMilli(), on)
	if err == nil && len(existing) > 0 {
		err = &ExistsError{IDs: existing}
	}
	return err
}

// Cancel cancels a pending task when ex commits, so that it has no effect. It waits for a handler that is working on
// the task. If the task was sent to an exchange, Cancel does not wait, and handlers that are still running roll back
// their effects. Cancel returns ErrNotFound if there is no such task, and *StatusError if it is too late.
func (s *Store) Cancel(ctx context.Context, ex Executor, id string) error {
	return s.change(ctx, ex, id, "cancel", StatusPending, rows.Cancel)
}

// CancelBatch cancels the tasks with the given ids that are pending, and returns their number. With NoTx it uses one
// transaction.
func (s *Store) CancelBatch(ctx context.Context, ex Executor, ids []string) (int, error) {
	var total int64
	err := s.db.Within(ctx, s.rawConn(ex), func(c rows.Conn) (err error) {
		total, err = c.CancelPending(ctx, ids, s.nowOn(ctx, c).UnixMilli())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("cancelling %s: %w", shown.Count(len(ids), "task", "tasks"), err)
	}
	return int(total), nil
}

// Reschedule gives a pending task an earlier or later due time when ex commits. The task's count of attempts starts
// over. Reschedule returns the same errors as Cancel, and *TaskError for an invalid time.
func (s *Store) Reschedule(ctx context.Context, ex Executor, id string, deliverAt time.Time) error {
	return s.move(ctx, ex, id, "reschedule", StatusPending, deliverAt)
}

// RescheduleBy reschedules a pending task by a duration when ex commits. The duration is added to the due time that the
// task has when the statement runs, so that concurrent calls add up. A time before March 1973 becomes the Unix epoch,
// which means immediately, and a time after the year 9999 becomes the end of that year. The task's count of attempts
// starts over. The errors are the same as for Reschedule.
func (s *Store) RescheduleBy(ctx context.Context, ex Executor, id string, by time.Duration) error {
	if reason := units.Shift(by); reason != "" {
		return &TaskError{ID: id, Field: "DeliverAt", Reason: "moved by " + reason}
	}
	err := s.change(ctx, ex, id, "reschedule", StatusPending, func(now int64) rows.Assignment { return rows.DueBy(by, now) })
	if err == nil {
		s.Wake()
	}
	return err
}

// RunNow makes a pending task due immediately by the database's clock, when ex commits. The errors are the same as for
// Cancel.
func (s *Store) RunNow(ctx context.Context, ex Executor, id string) error {
	now, err := s.nowIn(ctx, ex)
	if err != nil {
		return fmt.Errorf("run task %s: %w", id, err)
	}
	return s.move(ctx, ex, id, "run", StatusPending, now.Truncate(time.Millisecond))
}

// Revive makes a failed task pending again, due at deliverAt, or immediately if that is in the past. Revive returns the
// same errors as Reschedule, and ErrUnique if another task with its unique key is pending.
func (s *Store) Revive(ctx context.Context, ex Executor, id string, deliverAt time.Time) error {
	return s.move(ctx, ex, id, "revive", StatusFailed, deliverAt)
}

func (s *Store) move(ctx context.Context, ex Executor, id, action string, want Status, at time.Time) error {
	due := rows.Millis(at)
	if at.IsZero() {
		return &TaskError{ID: id, Field: "DeliverAt", Reason: "not set; expected a time (the current time to deliver immediately)"}
	}
	if reason := units.Instant(at); reason != "" {
		return &TaskError{ID: id, Field: "DeliverAt", Reason: reason}
	}
	if due > rows.MaxDue {
		return &TaskError{ID: id, Field: "DeliverAt", Reason: fmt.Sprintf("%v, expected a time up to the year 9999", at)}
	}
	err := s.change(ctx, ex, id, action, want, func(now int64) rows.Assignment { return rows.DueAt(due, now) })
	if err == nil {
		s.poller.Due(s.db.DB, due)
	}
	return err
}

func (s *Store) change(ctx context.Context, ex Executor, id, action string, want Status, a func(now int64) rows.Assignment) error {
	c, err := s.conn(ctx, ex)
	if err != nil {
		return err
	}
	key := ""
	if want == StatusFailed { // the task becomes pending, so no other pending task may have its unique key
		var pending string
		if key, pending, err = c.KeyTaken(ctx, id); err == nil && pending != "" {
			err = &uniqueError{id: id, key: key, pending: pending}
		}
		if err != nil {
			return err
		}
	}
	changed, status, err := c.Change(ctx, id, string(want), a(s.nowOn(ctx, c).UnixMilli()))
	switch {
	case key != "" && sqldb.Duplicate(err):
		return &uniqueError{id: id, key: key}
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("cannot %s task %s: %w", action, id, ErrNotFound)
	case err != nil:
		return fmt.Errorf("%s task %s: %w", action, id, err)
	case !changed:
		return &StatusError{ID: id, Action: action, Status: Status(status), Want: want}
	}
	return nil
}

// work is the task that a handler is working on. The handler's context carries it. The task is finished after the
// handler's function or, if the function replaces the task in its transaction, immediately before the replacement. The
// replacement is then a new task that follows the finished one, and the handler's effect is kept.
type work struct {
	id       string
	finish   func(ctx context.Context, c rows.Conn) error
	finished bool
}

type workKey struct{}

// withWork returns a copy of ctx that carries w. The handler's function gets this copy.
func withWork(ctx context.Context, w *work) context.Context {
	return context.WithValue(ctx, workKey{}, w)
}

// finishOnce finishes the task unless it is already finished.
func (w *work) finishOnce(ctx context.Context, c rows.Conn) error {
	if w.finished {
		return nil
	}
	err := w.finish(ctx, c)
	w.finished = err == nil
	return err
}

// finishBefore finishes a handler's task if the handler is about to replace that task in its transaction.
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
