package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// fenced is what the fence compares with the message: the task's id, its version,
// and its due instant. The version alone would do while ids are not used again. The
// due instant keeps a message of an older task of the same id, whose row has been
// deleted, from firing the new one early.
const fenced = " WHERE id = ? AND version = ? AND due_at <= ?"

// The fence of a task to a queue is one statement. A task to an exchange is done
// with its first effect, and each queue that gets it records its own: another
// queue's failure does not end it.
const (
	fenceQueue    = "UPDATE rabbitdelay_tasks SET status = 'done', finished_at = ?, updated_at = ?" + fenced + " AND status = 'pending' AND exchange = '' AND " + unexpired
	fenceExchange = "UPDATE rabbitdelay_tasks SET status = 'done', finished_at = ?, updated_at = ?" + fenced + " AND status IN ('pending', 'running', 'failed') AND exchange <> '' AND " + unexpired
	recordEffect  = "INTO rabbitdelay_effects (task_id, version, due_at, queue, done_at, updated_at) " +
		"SELECT id, version, due_at, ?, ?, ? FROM rabbitdelay_tasks" + fenced + " AND status = 'done' AND exchange <> ''"
	takeEffect = "UPDATE rabbitdelay_effects SET done_at = ?, updated_at = ? WHERE task_id = ? AND version = ? AND queue = ? AND done_at IS NULL AND lease_until <= ? " +
		"AND due_at = (SELECT due_at FROM rabbitdelay_tasks" + fenced + " AND status = 'done')"
)

// fence makes the task done. It is the first statement of the transaction, so
// that a concurrent delivery or change of the task waits here for the outcome of
// this one, and a deferred transaction of SQLite takes its write lock at once.
func (h *handler) fence(ctx context.Context, tx sqldb.Tx, d *amqpx.Delivery) (SkipReason, error) {
	dialect, err := h.dialect.Resolve(ctx, tx)
	if err != nil {
		return "", err
	}
	// The row decides whether the task goes to a queue. The message mostly knows, but
	// may have come through an exchange of the user's, or be a test's.
	for _, toQueue := range []bool{d.Exchange == "", d.Exchange != ""} {
		var passed bool
		if toQueue {
			passed, err = h.fenceQueue(ctx, tx, dialect, d)
		} else {
			passed, err = h.fenceExchange(ctx, tx, dialect, d)
		}
		if err != nil || passed {
			return "", err
		}
		row, err := look(ctx, tx, dialect, d.ID)
		if err != nil {
			return "", err
		}
		if row.expired(d, h.now().UnixMilli()) {
			return SkipExpired, expire(ctx, tx, dialect, d, h.now().UnixMilli())
		}
		if row.toQueue == toQueue || row.version == 0 {
			return row.reason(d)
		}
	}
	return SkipStale, nil // it became another task meanwhile
}

func (h *handler) fenceQueue(ctx context.Context, tx sqldb.Tx, dialect Dialect, d *amqpx.Delivery) (bool, error) {
	now := h.now().UnixMilli()
	return changed(tx.ExecContext(ctx, dialect.Bind(fenceQueue), now, now, d.ID, d.Version, dueOf(d, now), now))
}

func (h *handler) fenceExchange(ctx context.Context, tx sqldb.Tx, dialect Dialect, d *amqpx.Delivery) (bool, error) {
	now := h.now().UnixMilli()
	due := dueOf(d, now)
	if _, err := tx.ExecContext(ctx, dialect.Bind(fenceExchange), now, now, d.ID, d.Version, due, now); err != nil {
		return false, err
	}
	query, args := "INSERT "+recordEffect, []any{d.Queue, now, now, d.ID, d.Version, due}
	switch dialect {
	case PostgreSQL:
		// Another version may not come before the effect is committed.
		query += " FOR SHARE ON CONFLICT DO NOTHING"
	case MySQL:
		query = "INSERT IGNORE " + recordEffect
	case SQLite:
		query += " ON CONFLICT DO NOTHING"
	}
	passed, err := changed(tx.ExecContext(ctx, dialect.Bind(query), args...))
	if err != nil || passed {
		return passed, err
	}
	// Unless its effect is there, its row is that of an attempt.
	return changed(tx.ExecContext(ctx, dialect.Bind(takeEffect), now, now, d.ID, d.Version, d.Queue, now, d.ID, d.Version, due))
}

// changed tells whether a statement changed rows.
func changed(res sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// found is a task as a message finds it.
type found struct {
	version int64 // 0: there is none
	due     int64
	status  Status
	toQueue bool
	after   sql.NullInt64 // expires_after
}

func look(ctx context.Context, c sqldb.Conn, dialect Dialect, id string) (found, error) {
	var f found
	var exchange string
	err := c.QueryRowContext(ctx, dialect.Bind("SELECT version, due_at, status, exchange, expires_after FROM rabbitdelay_tasks WHERE id = ?"), id).
		Scan(&f.version, &f.due, &f.status, &exchange, &f.after)
	if errors.Is(err, sql.ErrNoRows) {
		return found{}, nil
	}
	f.toQueue = exchange == ""
	return f, err
}

// reason says why a message did not pass the fence.
func (f found) reason(d *amqpx.Delivery) (SkipReason, error) {
	switch {
	case f.version == 0:
		return SkipMissing, nil
	case f.version == d.Version && f.status == StatusPending && d.DueAt.IsZero():
		return "", fmt.Errorf("%w: the message has no due instant, and the task is due at %s; a test sets Delivery.DueAt to the task's instant, a publisher the header %s",
			ErrNotTask, time.UnixMilli(f.due).UTC().Format(time.RFC3339Nano), amqpx.HeaderDue)
	case f.version != d.Version || f.status == StatusPending:
		return SkipStale, nil
	case f.status == StatusRunning:
		return "", &heldError{minLease} // by a LeaseHandler of the same queue
	case f.status == StatusCancelled:
		return SkipCancelled, nil
	case f.status == StatusExpired:
		return SkipExpired, nil
	case f.status == StatusFailed:
		return SkipFailed, nil
	}
	return SkipDuplicate, nil
}
