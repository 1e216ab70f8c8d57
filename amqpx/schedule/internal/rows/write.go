package rows

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Limits of one statement. The number of rows is limited because of the number of placeholders, and the number of
// bytes so that it fits into a packet of MariaDB's default size of 16 MiB.
const (
	insertRows  = 500
	insertBytes = 4 << 20
)

// stillPending is for statements that find their rows by ids. No planner takes an index
// of the status for it, in which it would read everything that is pending; they do where
// they have no statistics, and where they do not know the number of ids.
const stillPending = "(status = 'pending') IS TRUE"

// written lists the columns that Insert writes.
var written = []string{"id", "queue", "exchange", "routing_key", "due_at", "body", "content_type", "type", "correlation_id", "priority", "expires_after", "unique_key", "headers", "created_at", "updated_at"}

// written returns the values of the columns written.
func (t *Task) written(now int64) []any {
	key := sql.NullString{String: t.UniqueKey, Valid: t.UniqueKey != ""}
	return []any{t.ID, t.Queue, t.Exchange, t.RoutingKey, Millis(t.DeliverAt), blob(t.Body), t.ContentType, t.Type, t.CorrelationID, t.Priority, expiresAfter(t.ExpiresAfter), key, asJSON(t.Headers), now, now}
}

// renewed resets a row to a new one of a later version, which the relay sends again.
const renewed = `status = 'pending', attempts = 0, last_error = NULL, finished_at = NULL, ` +
	`sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0`

// OnExisting is the policy of Insert for tasks that exist.
type OnExisting int

const (
	// Refuse inserts nothing of the statement that met one.
	Refuse OnExisting = iota
	// Replace makes the new task take the place of the old one, in a later version.
	Replace
)

// Insert writes tasks with their tags. existing has the ids that existed already; the caller then rolls back.
func (c Conn) Insert(ctx context.Context, tasks []*Task, now int64, on OnExisting) (existing []string, err error) {
	for _, chunk := range split(tasks) {
		if existing, err = c.insertChunk(ctx, chunk, now, on); err != nil || len(existing) > 0 {
			return existing, err
		}
		if err := c.writeTags(ctx, chunk, on); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func split(tasks []*Task) [][]*Task {
	var chunks [][]*Task
	start, size := 0, 0
	for i, t := range tasks {
		n := len(t.Body)
		if i > start && (i-start == insertRows || size+n > insertBytes) {
			chunks = append(chunks, tasks[start:i])
			start, size = i, 0
		}
		size += n
	}
	return append(chunks, tasks[start:])
}

func (c Conn) insertChunk(ctx context.Context, tasks []*Task, now int64, on OnExisting) (existing []string, err error) {
	args := make([]any, 0, len(tasks)*len(written))
	for _, t := range tasks {
		args = append(args, t.written(now)...)
	}
	row := "(" + marks(len(written)) + ")"
	query := "INSERT INTO rabbitdelay_tasks (" + strings.Join(written, ", ") + ") VALUES " + row + strings.Repeat(", "+row, len(tasks)-1)
	switch {
	case on == Replace:
		query += c.replacing()
	case !c.mysql():
		// Not an error of the database, because PostgreSQL would abort the caller's
		// transaction.
		query += " ON CONFLICT (id) DO NOTHING"
		if len(tasks) > 1 {
			if existing, err := c.existing(ctx, tasks); err != nil || len(existing) > 0 {
				return existing, err
			}
		}
	}
	n, err := c.exec(ctx, query, args...)
	switch {
	case sqldb.Duplicate(err), err == nil && on == Refuse && n < int64(len(tasks)):
		existing, failed := c.existing(ctx, tasks)
		if failed != nil || len(existing) > 0 {
			return existing, failed
		}
	}
	if err != nil {
		return nil, fmt.Errorf("scheduling tasks: %w", err)
	}
	return nil, nil
}

// replacing completes an INSERT so that it overwrites the row that is there.
func (c Conn) replacing() string {
	set, value := " ON CONFLICT (id) DO UPDATE SET ", "excluded.%s"
	if c.mysql() {
		set, value = " ON DUPLICATE KEY UPDATE ", "VALUES(%s)"
	}
	var b strings.Builder
	b.WriteString(set)
	for _, column := range written[1:] {
		given := fmt.Sprintf(value, column)
		if column == "created_at" { // it identifies the work, and is never the old one's
			given = fmt.Sprintf("CASE WHEN %s > rabbitdelay_tasks.created_at THEN %s ELSE rabbitdelay_tasks.created_at + 1 END", given, given)
		}
		fmt.Fprintf(&b, "%s = %s, ", column, given)
	}
	b.WriteString("version = rabbitdelay_tasks.version + 1, " + renewed)
	return b.String()
}

// existing returns the ids of those of the tasks that exist. A single one does, or nobody
// would ask; a snapshot of PostgreSQL may not show it.
func (c Conn) existing(ctx context.Context, tasks []*Task) ([]string, error) {
	if len(tasks) == 1 && !c.mysql() {
		return ids(tasks), nil
	}
	return c.texts(ctx, "SELECT id FROM rabbitdelay_tasks WHERE id IN ("+marks(len(tasks))+") ORDER BY id"+c.lock(Current), anys(ids(tasks))...)
}

func ids(tasks []*Task) []string {
	list := make([]string, len(tasks))
	for i, t := range tasks {
		list[i] = t.ID
	}
	return list
}

// Assignment is a change of task columns, and a condition that the tasks have to meet.
type Assignment struct {
	set       string
	args      []any
	condition string
}

// Cancel cancels tasks, so that they have no effect.
func Cancel(now int64) Assignment {
	return Assignment{set: "status = 'cancelled', finished_at = ?, updated_at = ?", args: []any{now, now}}
}

// DueAt makes tasks pending in a new version, due at an instant.
func DueAt(due, now int64) Assignment {
	return Assignment{set: "due_at = ?, updated_at = ?, version = version + 1, " + renewed, args: []any{due, now}}
}

// DueBy makes tasks pending in a new version, due later by a duration, or earlier if that
// is negative, within the bounds of an instant.
func DueBy(d time.Duration, now int64) Assignment {
	by := d.Milliseconds()
	due := fmt.Sprintf("CASE WHEN due_at + %d > %d THEN %d WHEN due_at + %d < %d THEN 0 ELSE due_at + %d END", by, int64(MaxDue), int64(MaxDue), by, int64(minDue), by)
	return Assignment{set: "due_at = " + due + ", updated_at = ?, version = version + 1, " + renewed, args: []any{now}}
}

// Change changes a task that has the wanted status. Otherwise it returns the status that
// it has; the error is sql.ErrNoRows if there is no such task.
func (c Conn) Change(ctx context.Context, id, want string, a Assignment) (changed bool, status string, err error) {
	for range changeTries {
		changed, err = c.changed(ctx, "UPDATE rabbitdelay_tasks SET "+a.set+" WHERE id = ? AND status = '"+want+"'", append(a.args, id)...)
		if err != nil || changed {
			return changed, want, err
		}
		err = c.one(ctx, "SELECT status FROM rabbitdelay_tasks WHERE id = ?"+c.lock(Current), []any{id}, &status)
		if err != nil || status != want { // otherwise it became so between the statements
			break
		}
	}
	return false, status, err
}

// changeTries is how often a task may change between the statements of one Change.
const changeTries = 100

// CancelPending cancels the given tasks that are pending, and returns their number.
func (c Conn) CancelPending(ctx context.Context, ids []string, now int64) (total int64, err error) {
	for len(ids) > 0 {
		n := min(len(ids), insertRows)
		a := Cancel(now)
		cancelled, err := c.exec(ctx, "UPDATE rabbitdelay_tasks SET "+a.set+" WHERE "+stillPending+" AND id IN ("+marks(n)+")", append(a.args, anys(ids[:n])...)...)
		if err != nil {
			return 0, err
		}
		total, ids = total+cancelled, ids[n:]
	}
	return total, nil
}

// Status returns a task's status, "" if there is no such task.
func (c Conn) Status(ctx context.Context, id string) (status string, err error) {
	err = c.one(ctx, "SELECT status FROM rabbitdelay_tasks WHERE id = ?", []any{id}, &status)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return status, err
}
