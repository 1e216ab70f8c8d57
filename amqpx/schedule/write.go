package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Option tunes one call of Schedule or ScheduleBatch.
type Option func(*writing)

type writing struct{ replace bool }

// Replace makes the given task take the place of one with the same id, whatever
// its status. The version goes on from the old one's, so that its messages no
// longer count. A handler may replace its own task in its transaction, with the
// context that it was given: its effect stands, and the new task follows.
func Replace() Option { return func(w *writing) { w.replace = true } }

// Schedule enlists a task in ex: the caller's transaction, or a database.
// Nothing is sent unless that commits. A DeliverAt in the past is due at once.
// Errors: *TaskError for an invalid task, *ExistsError for an id that exists
// (the transaction can continue after it).
func (s *Store) Schedule(ctx context.Context, ex Executor, t Task, opts ...Option) error {
	return s.schedule(ctx, ex, []Task{t}, opts)
}

// ScheduleBatch enlists many tasks with few statements, all or none of them. When
// it fails in a transaction of the caller, the caller rolls back.
func (s *Store) ScheduleBatch(ctx context.Context, ex Executor, tasks []Task, opts ...Option) error {
	return s.schedule(ctx, ex, tasks, opts)
}

// Bounds of one INSERT: rows, so that placeholders suffice everywhere, and bytes,
// so that it fits into a packet of MariaDB's default 16 MiB.
const (
	insertRows  = 500
	insertBytes = 4 << 20
)

func (s *Store) schedule(ctx context.Context, ex Executor, tasks []Task, opts []Option) error {
	var w writing
	for _, o := range opts {
		o(&w)
	}
	given := tasks
	if hook := s.cfg.Hooks.BeforeSchedule; hook != nil {
		tasks = slices.Clone(tasks)
		for i := range tasks {
			t := &tasks[i]
			t.Headers = maps.Clone(t.Headers)
			s.observed(func() { hook(ctx, t) })
		}
	}
	if len(tasks) == 0 {
		return nil
	}
	seen := make(map[string]bool, len(tasks))
	for i := range tasks {
		err := s.check(&tasks[i])
		if bad, ok := errors.AsType[*TaskError](err); ok && bad.Field == "Headers" { // the hook's, perhaps
			tasks[i].Headers = given[i].Headers
			err = s.check(&tasks[i])
		}
		if err != nil {
			return err
		}
		if seen[tasks[i].ID] {
			return &TaskError{ID: tasks[i].ID, Field: "ID", Reason: "is twice in one batch"}
		}
		seen[tasks[i].ID] = true
	}
	chunks := split(tasks)
	c := s.on(ex)
	write := func(c sqldb.Conn) error {
		d, err := s.dialect.Resolve(ctx, c)
		if err != nil {
			return err
		}
		for _, chunk := range chunks {
			if err := s.insert(ctx, c, d, chunk, w.replace); err != nil {
				return err
			}
			if err := writeTags(ctx, c, d, chunk, w.replace); err != nil {
				return err
			}
		}
		return nil
	}
	var err error
	if db, ok := c.(sqldb.DB); ok && (len(tasks) > 1 || len(tasks[0].Tags) > 0 || w.replace) {
		err = sqldb.Transact(ctx, db, nil, func(tx sqldb.Tx) error { return write(tx) })
	} else {
		if w.replace {
			err = finishBefore(ctx, c, tasks)
		}
		if err == nil {
			err = write(c)
		}
	}
	if err == nil {
		first := millis(tasks[0].DeliverAt)
		for i := range tasks {
			first = min(first, millis(tasks[i].DeliverAt))
		}
		s.wakeFor(first)
	}
	return err
}

// check refuses a task that cannot be written, or sent.
func (s *Store) check(t *Task) error {
	if err := t.validate(s.cfg.MaxBody); err != nil {
		return err
	}
	return s.accepts(t)
}

func split(tasks []Task) [][]Task {
	var chunks [][]Task
	start, size := 0, 0
	for i := range tasks {
		n := len(tasks[i].Body)
		if i > start && (i-start == insertRows || size+n > insertBytes) {
			chunks = append(chunks, tasks[start:i])
			start, size = i, 0
		}
		size += n
	}
	if start < len(tasks) {
		chunks = append(chunks, tasks[start:])
	}
	return chunks
}

// stillPending is for statements that find their rows by ids. No planner takes an
// index of the status for it, in which it would read all that is pending; they do
// where they have no statistics, and where they do not know the number of ids.
const stillPending = "(status = 'pending') IS TRUE"

// written are the columns that Schedule writes.
var written = []string{"id", "queue", "exchange", "routing_key", "due_at", "body", "content_type", "type", "correlation_id", "priority", "expires_after", "headers", "created_at", "updated_at"}

// renewed is what Replace resets, so that the row is like a new one of a later
// version.
const renewed = `status = 'pending', attempts = 0, last_error = NULL, finished_at = NULL, ` + unsent

// unsent makes the relay send the row's version anew.
const unsent = `sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0`

func (s *Store) insert(ctx context.Context, ex sqldb.Conn, d Dialect, tasks []Task, replace bool) error {
	now := s.now().UnixMilli()
	args := make([]any, 0, len(tasks)*len(written))
	for i := range tasks {
		t := &tasks[i]
		headers, err := encodeHeaders(t.Headers)
		if err != nil {
			return &TaskError{ID: t.ID, Field: "Headers", Reason: err.Error()}
		}
		body := t.Body
		if body == nil {
			body = []byte{}
		}
		args = append(args, t.ID, t.Queue, t.Exchange, t.RoutingKey, millis(t.DeliverAt), body, t.ContentType, t.Type, t.CorrelationID, t.Priority, expiresAfter(t.ExpiresAfter), headers, now, now)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "INSERT INTO rabbitdelay_tasks (%s) VALUES ", strings.Join(written, ", "))
	row := "(?" + strings.Repeat(", ?", len(written)-1) + ")"
	b.WriteString(row + strings.Repeat(", "+row, len(tasks)-1))
	switch {
	case replace:
		b.WriteString(onConflict(d))
	case d != MySQL:
		// Not an error of the database, because PostgreSQL would abort the
		// caller's transaction.
		b.WriteString(" ON CONFLICT (id) DO NOTHING")
		if len(tasks) > 1 {
			if err := s.refuseExisting(ctx, ex, d, tasks); err != nil {
				return err
			}
		}
	}
	res, err := ex.ExecContext(ctx, d.Bind(b.String()), args...)
	if err != nil {
		if sqldb.Duplicate(err) {
			if named := s.refuseExisting(ctx, ex, d, tasks); named != nil {
				return named
			}
		}
		return fmt.Errorf("scheduling %d tasks: %w", len(tasks), sqldb.Explain(err))
	}
	if replace {
		return nil
	}
	n, err := res.RowsAffected()
	if err == nil && n < int64(len(tasks)) {
		if err := s.refuseExisting(ctx, ex, d, tasks); err != nil {
			return err
		}
	}
	return err
}

// onConflict overwrites a row with the one that was to be inserted.
func onConflict(d Dialect) string {
	var b strings.Builder
	value := "excluded.%s"
	if d == MySQL {
		b.WriteString(" ON DUPLICATE KEY UPDATE ")
		value = "VALUES(%s)"
	} else {
		b.WriteString(" ON CONFLICT (id) DO UPDATE SET ")
	}
	for _, c := range written[1:] {
		if c == "created_at" { // it identifies the work, and is never the old one's
			given := fmt.Sprintf(value, c)
			fmt.Fprintf(&b, "%s = CASE WHEN %s > rabbitdelay_tasks.%s THEN %s ELSE rabbitdelay_tasks.%s + 1 END, ", c, given, c, given, c)
			continue
		}
		fmt.Fprintf(&b, "%s = "+value+", ", c, c)
	}
	b.WriteString("version = rabbitdelay_tasks.version + 1, " + renewed)
	return b.String()
}

// refuseExisting names the tasks that are there.
func (s *Store) refuseExisting(ctx context.Context, ex sqldb.Conn, d Dialect, tasks []Task) error {
	if len(tasks) == 1 && d != MySQL { // only called when it is there
		return &ExistsError{IDs: []string{tasks[0].ID}}
	}
	ids := make([]any, len(tasks))
	for i := range tasks {
		ids[i] = tasks[i].ID
	}
	query := "SELECT id FROM rabbitdelay_tasks WHERE id IN (" + marks(len(ids)) + ") ORDER BY id" + current(d)
	rows, err := ex.QueryContext(ctx, d.Bind(query), ids...)
	if err != nil {
		return sqldb.Explain(err)
	}
	defer func() { _ = rows.Close() }()
	var found []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return err
		}
		found = append(found, id)
	}
	if err := rows.Err(); err != nil || len(found) == 0 {
		return err
	}
	return &ExistsError{IDs: found}
}

// current makes a SELECT read what the statement before it met: MySQL's
// repeatable read shows rows as they were at the transaction's first read, unless
// they are read with a lock.
func current(d Dialect) string {
	if d == MySQL {
		return " LOCK IN SHARE MODE"
	}
	return ""
}

// marks is n placeholders.
func marks(n int) string { return "?" + strings.Repeat(", ?", n-1) }

// Cancel ends a pending task without its effect, when ex commits. It waits for a
// handler that is running on it; handlers of a task to an exchange undo their effects
// instead. Errors: ErrNotFound, or *StatusError when it is too late.
func (s *Store) Cancel(ctx context.Context, ex Executor, id string) error {
	now := s.now().UnixMilli()
	return s.change(ctx, ex, id, "cancel", StatusPending,
		"status = 'cancelled', finished_at = ?, updated_at = ?", now, now)
}

// CancelBatch cancels those of the tasks that are pending, and returns how many
// were. In a database it is one transaction.
func (s *Store) CancelBatch(ctx context.Context, ex Executor, ids []string) (int, error) {
	c := s.on(ex)
	total := 0
	cancel := func(c sqldb.Conn) error {
		total = 0
		d, err := s.dialect.Resolve(ctx, c)
		if err != nil {
			return err
		}
		now := s.now().UnixMilli()
		for start := 0; start < len(ids); start += insertRows {
			chunk := ids[start:min(start+insertRows, len(ids))]
			args := []any{now, now}
			for _, id := range chunk {
				args = append(args, id)
			}
			res, err := c.ExecContext(ctx, d.Bind("UPDATE rabbitdelay_tasks SET status = 'cancelled', finished_at = ?, updated_at = ? WHERE "+stillPending+" AND id IN ("+marks(len(chunk))+")"), args...)
			if err != nil {
				return fmt.Errorf("cancelling %d tasks: %w", len(ids), sqldb.Explain(err))
			}
			n, err := res.RowsAffected()
			if err != nil {
				return err
			}
			total += int(n)
		}
		return nil
	}
	if db, ok := c.(sqldb.DB); ok {
		err := sqldb.Transact(ctx, db, nil, func(tx sqldb.Tx) error { return cancel(tx) })
		return total, err
	}
	err := cancel(c)
	return total, err
}

// Reschedule moves a pending task to another instant, earlier or later, when ex
// commits. Its attempts start anew. Errors: as Cancel, and *TaskError.
func (s *Store) Reschedule(ctx context.Context, ex Executor, id string, deliverAt time.Time) error {
	return s.move(ctx, ex, id, "reschedule", StatusPending, deliverAt)
}

// RescheduleBy moves a pending task by a duration from where it is when the statement
// runs, so that several at once add up, when ex commits. It ends at the bounds of an
// instant: at once, and the year 9999. Its attempts start anew. Errors: as Cancel.
func (s *Store) RescheduleBy(ctx context.Context, ex Executor, id string, by time.Duration) error {
	err := s.change(ctx, ex, id, "reschedule", StatusPending,
		"due_at = "+dueBy(by)+", updated_at = ?, version = version + 1, "+renewed, s.now().UnixMilli())
	if err == nil {
		s.Wake()
	}
	return err
}

// dueBy is the SQL of due_at moved by a duration, within its bounds.
func dueBy(d time.Duration) string {
	by := d.Milliseconds()
	return fmt.Sprintf("CASE WHEN due_at + %d > %d THEN %d WHEN due_at + %d < %d THEN 0 ELSE due_at + %d END", by, int64(maxDue), int64(maxDue), by, int64(minDue), by)
}

// FireNow makes a pending task due at once, when ex commits: at this process's
// instant, which Run corrects by the database's. Errors: as Cancel.
func (s *Store) FireNow(ctx context.Context, ex Executor, id string) error {
	return s.move(ctx, ex, id, "fire", StatusPending, s.now().Truncate(time.Millisecond))
}

// Revive makes a failed task pending again, due at deliverAt; an instant in the
// past means at once. Errors: as Reschedule.
func (s *Store) Revive(ctx context.Context, ex Executor, id string, deliverAt time.Time) error {
	return s.move(ctx, ex, id, "revive", StatusFailed, deliverAt)
}

func (s *Store) move(ctx context.Context, ex Executor, id, action string, want Status, at time.Time) error {
	due := millis(at)
	if at.IsZero() || due > maxDue {
		return &TaskError{ID: id, Field: "DeliverAt", Reason: fmt.Sprintf("%v, expected an instant up to the year 9999", at)}
	}
	err := s.change(ctx, ex, id, action, want,
		"due_at = ?, updated_at = ?, version = version + 1, "+renewed, due, s.now().UnixMilli())
	if err == nil {
		s.wakeFor(due)
	}
	return err
}

func (s *Store) change(ctx context.Context, ex Executor, id, action string, want Status, set string, args ...any) error {
	c := s.on(ex)
	d, err := s.dialect.Resolve(ctx, c)
	if err != nil {
		return err
	}
	res, err := c.ExecContext(ctx, d.Bind("UPDATE rabbitdelay_tasks SET "+set+" WHERE id = ? AND status = '"+string(want)+"'"), append(args, id)...)
	if err != nil {
		return fmt.Errorf("%s task %s: %w", action, id, sqldb.Explain(err))
	}
	n, err := res.RowsAffected()
	if err != nil || n > 0 {
		return err
	}
	var status Status
	err = c.QueryRowContext(ctx, d.Bind("SELECT status FROM rabbitdelay_tasks WHERE id = ?"+current(d)), id).Scan(&status)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("cannot %s task %s: %w", action, id, ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("%s task %s: %w", action, id, err)
	}
	return &StatusError{ID: id, Action: action, Status: status, Want: want}
}
