package rows

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Limits of one statement. The number of rows is limited because of the number of placeholders, and the number of bytes
// so that the statement fits into one packet of MariaDB's default size, 16 MiB.
const (
	insertRows  = 500
	insertBytes = 4 << 20
)

// stillPending is the condition for a pending task in a form that no index matches. It is for statements that find
// their rows by id. With a plain status = 'pending', a planner without statistics, or one that does not know the number
// of ids, might choose an index of the status and read all pending rows.
const stillPending = "(status = 'pending') IS TRUE"

// OnExisting is the policy of Insert for tasks that already exist.
type OnExisting int

const (
	// Refuse inserts none of a statement's rows if one of them exists.
	Refuse OnExisting = iota
	// Replace overwrites an existing task with the new one, and increments its version.
	Replace
)

// Insert writes tasks with their tags. If any tasks already exist, existing contains their ids, and the caller must
// roll back.
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
		// Avoid a database error, because it would abort the caller's transaction in PostgreSQL.
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

// replacing returns the end of an INSERT that overwrites an existing row.
func (c Conn) replacing() string {
	set, value := " ON CONFLICT (id) DO UPDATE SET ", "excluded.%s"
	if c.mysql() {
		set, value = " ON DUPLICATE KEY UPDATE ", "VALUES(%s)"
	}
	var b strings.Builder
	b.WriteString(set)
	for _, column := range written[1:] {
		given := fmt.Sprintf(value, column)
		if column == "created_at" { // created_at distinguishes the new task from the old one, so the two must not be equal
			given = fmt.Sprintf("CASE WHEN %s > rabbitdelay_tasks.created_at THEN %s ELSE rabbitdelay_tasks.created_at + 1 END", given, given)
		}
		fmt.Fprintf(&b, "%s = %s, ", column, given)
	}
	b.WriteString("version = rabbitdelay_tasks.version + 1, " + renewed)
	return b.String()
}

// existing returns the ids of the given tasks that already exist. If only one task is given, its insert was refused, so
// the task must exist, and no query is needed, except on MySQL. A query might not find the task, because PostgreSQL's
// snapshot does not contain tasks that were committed later.
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

// Assignment is a change to the columns of tasks, with the condition that the tasks must satisfy.
type Assignment struct {
	set       string
	args      []any
	condition string
}

// Cancel cancels tasks, so that they have no effect.
func Cancel(now int64) Assignment {
	return Assignment{set: "status = 'cancelled', finished_at = ?, updated_at = ?", args: []any{now, now}}
}

// DueAt makes tasks pending in a new version, with the given due time.
func DueAt(due, now int64) Assignment {
	return Assignment{set: "due_at = ?, updated_at = ?, version = version + 1, " + renewed, args: []any{due, now}}
}

// DueBy makes tasks pending in a new version, due later by a duration, or earlier if it is negative. Due times stay
// within the range that the table allows.
func DueBy(d time.Duration, now int64) Assignment {
	by := d.Milliseconds()
	due := fmt.Sprintf("CASE WHEN due_at + %d > %d THEN %d WHEN due_at + %d < %d THEN 0 ELSE due_at + %d END", by, int64(MaxDue), int64(MaxDue), by, int64(minDue), by)
	return Assignment{set: "due_at = " + due + ", updated_at = ?, version = version + 1, " + renewed, args: []any{now}}
}

// Change changes a task that has the wanted status. If the task has another status, Change returns that status and
// changes nothing. The error is sql.ErrNoRows if there is no such task.
func (c Conn) Change(ctx context.Context, id, want string, a Assignment) (changed bool, status string, err error) {
	for range changeTries {
		changed, err = c.changed(ctx, "UPDATE rabbitdelay_tasks SET "+a.set+" WHERE id = ? AND status = '"+want+"'", append(a.args, id)...)
		if err != nil || changed {
			return changed, want, err
		}
		err = c.one(ctx, "SELECT status FROM rabbitdelay_tasks WHERE id = ?"+c.lock(Current), []any{id}, &status)
		if err != nil || status != want { // if it is the wanted status, the status changed between the two statements, so try again
			break
		}
	}
	return false, status, err
}

// changeTries is the maximum number of times that Change tries again because the task has changed between its two
// statements.
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

// Status returns a task's status, or "" if there is no such task.
func (c Conn) Status(ctx context.Context, id string) (status string, err error) {
	err = c.one(ctx, "SELECT status FROM rabbitdelay_tasks WHERE id = ?", []any{id}, &status)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return status, err
}
