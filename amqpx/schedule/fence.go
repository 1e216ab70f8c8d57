package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// fenced is what the fence compares with the message: the task's id, its
// version, its due instant, and the instant of its creation, which keeps a message of an older
// task of the same id, whose row has been deleted, from firing the new one. Foreign
// publishers' messages may have none, and stand for any.
const fenced = " WHERE id = ? AND version = ? AND created_at BETWEEN ? AND ? AND due_at <= ?"

// fenceArgs returns the parameters of fenced.
func fenceArgs(d *amqpx.Delivery, now int64) []any {
	from, to := createdOf(d), createdOf(d)
	if from == 0 {
		from, to = math.MinInt64, math.MaxInt64
	}
	return []any{d.ID, d.Version, from, to, dueOf(d, now)}
}

// createdOf returns when the task of a message was created, 0 if it does not have that.
func createdOf(d *amqpx.Delivery) int64 {
	if d.Created.IsZero() {
		return 0
	}
	return d.Created.UnixMilli()
}

// The fence of a task to a queue is one statement. Of a task to an exchange each queue
// that gets it records its own effect first, and makes the task done when that has
// happened: until then it locks nothing of the task, so that one queue's handler
// waits for no other's. Another queue's failure does not end the task.
const (
	fenceQueue     = "UPDATE rabbitdelay_tasks SET status = 'done', finished_at = ?, updated_at = ?" + fenced + " AND status = 'pending' AND exchange = '' AND "
	finishExchange = "UPDATE rabbitdelay_tasks SET status = 'done', finished_at = ?, updated_at = ?" + fenced + " AND status IN ('pending', 'running', 'failed') AND exchange <> ''"
	recordEffect   = "INTO rabbitdelay_effects (task_id, created_at, version, queue, done_at, updated_at) VALUES (?, ?, ?, ?, ?, ?)"
	takeEffect     = "UPDATE rabbitdelay_effects SET done_at = ?, updated_at = ?" + effectRow + " AND done_at IS NULL AND lease_until <= ?"
)

// pass is what the fence has let through.
type pass struct {
	exchange bool  // the task goes to one, and is made done by finish
	created  int64 // of its row
}

// fence lets one message of a task through: it makes a task to a queue done, and
// records the effect of one to an exchange. Its first statement on SQLite is one
// that writes, so that a deferred transaction takes its write lock at once.
func (h *handler) fence(ctx context.Context, tx sqldb.Tx, d *amqpx.Delivery) (pass, SkipReason, error) {
	dialect, err := h.dialect.Resolve(ctx, tx)
	if err != nil {
		return pass{}, "", err
	}
	// The row decides whether the task goes to a queue. The message mostly knows, but
	// may have come through an exchange of the user's, or be a test's.
	for _, toQueue := range []bool{d.Exchange == "", d.Exchange != ""} {
		var p pass
		var passed bool
		if toQueue {
			passed, err = h.fenceQueue(ctx, tx, dialect, d)
		} else {
			p, passed, err = h.fenceExchange(ctx, tx, dialect, d)
		}
		if err != nil || passed {
			return p, "", err
		}
		row, err := look(ctx, tx, dialect, d.ID, h.now(), current(dialect))
		if err != nil {
			return pass{}, "", err
		}
		if row.expired(d) {
			return pass{}, SkipExpired, expire(ctx, tx, dialect, d, h.now().UnixMilli())
		}
		if row.toQueue == toQueue || row.version == 0 {
			reason, err := row.reason(d)
			return pass{}, reason, err
		}
	}
	return pass{}, SkipStale, nil // it became another task meanwhile
}

func (h *handler) fenceQueue(ctx context.Context, tx sqldb.Tx, dialect Dialect, d *amqpx.Delivery) (bool, error) {
	now := h.now().UnixMilli()
	return changed(tx.ExecContext(ctx, dialect.Bind(fenceQueue+unexpired(dialect, now)), append([]any{now, now}, fenceArgs(d, now)...)...))
}

// fenceExchange records the effect of the message's queue. A delivery of the same
// queue at the same time waits here for the outcome of this one.
func (h *handler) fenceExchange(ctx context.Context, tx sqldb.Tx, dialect Dialect, d *amqpx.Delivery) (pass, bool, error) {
	now := h.now().UnixMilli()
	if dialect == SQLite {
		if _, err := tx.ExecContext(ctx, "UPDATE rabbitdelay_effects SET done_at = NULL WHERE task_id = ''"); err != nil {
			return pass{}, false, err
		}
	}
	row, err := look(ctx, tx, dialect, d.ID, h.now(), "")
	if err != nil || row.toQueue || !row.open(d) || row.due > dueOf(d, now) || row.status != StatusDone && row.over {
		return pass{}, false, err
	}
	p := pass{true, row.created}
	query := "INSERT " + recordEffect
	if dialect == MySQL {
		query = "INSERT IGNORE " + recordEffect
	} else {
		query += " ON CONFLICT DO NOTHING"
	}
	passed, err := changed(tx.ExecContext(ctx, dialect.Bind(query), d.ID, row.created, d.Version, d.Queue, now, now))
	if err != nil || passed {
		return p, passed, err
	}
	// Unless its effect is there, its row is that of an attempt.
	passed, err = changed(tx.ExecContext(ctx, dialect.Bind(takeEffect), now, now, d.ID, row.created, d.Version, d.Queue, now))
	return p, passed, err
}

// finish makes a task to an exchange done, after its effect in one of its queues, and
// keeps it from being replaced before that is committed. A *skipError undoes the
// effect of a task that was cancelled, moved or replaced meanwhile.
func (h *handler) finish(ctx context.Context, tx sqldb.Conn, d *amqpx.Delivery, p pass) error {
	if !p.exchange {
		return nil
	}
	dialect, err := h.dialect.Resolve(ctx, tx)
	if err != nil {
		return err
	}
	now := h.now().UnixMilli()
	done, err := changed(tx.ExecContext(ctx, dialect.Bind(finishExchange), append([]any{now, now}, fenceArgs(d, now)...)...))
	if err != nil || done {
		return err
	}
	lock := current(dialect)
	if dialect == PostgreSQL {
		lock = " FOR SHARE"
	}
	row, err := look(ctx, tx, dialect, d.ID, h.now(), lock)
	if err != nil || row.version == d.Version && row.created == p.created && row.status == StatusDone {
		return err
	}
	reason, err := row.reason(d)
	if err != nil {
		return err
	}
	return &skipError{reason}
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
	created int64
	due     int64
	status  Status
	toQueue bool
	over    bool // its time is: expires_after has passed
}

// look reads a task, with a lock such as that of current. now is this process's clock.
func look(ctx context.Context, c sqldb.Conn, dialect Dialect, id string, now time.Time, lock string) (found, error) {
	var f found
	var exchange string
	var over int
	err := c.QueryRowContext(ctx, dialect.Bind("SELECT version, created_at, due_at, status, exchange, CASE WHEN "+unexpired(dialect, now.UnixMilli())+" THEN 0 ELSE 1 END FROM rabbitdelay_tasks WHERE id = ?"+lock), id).
		Scan(&f.version, &f.created, &f.due, &f.status, &exchange, &over)
	if errors.Is(err, sql.ErrNoRows) {
		return found{}, nil
	}
	f.toQueue, f.over = exchange == "", over != 0
	return f, err
}

// isOf reports whether the row is that of the message's task, in its version.
func (f found) isOf(d *amqpx.Delivery) bool {
	created := createdOf(d)
	return f.version == d.Version && (created == 0 || created == f.created)
}

// reason says why a message did not pass the fence.
func (f found) reason(d *amqpx.Delivery) (SkipReason, error) {
	switch {
	case f.version == 0:
		return SkipMissing, nil
	case f.isOf(d) && f.status == StatusPending && d.DueAt.IsZero():
		return "", fmt.Errorf("%w: the message has no due instant, and the task is due at %s; a test sets Delivery.DueAt to the task's instant, a publisher the header %s",
			ErrNotTask, time.UnixMilli(f.due).UTC().Format(time.RFC3339Nano), amqpx.HeaderDue)
	case !f.isOf(d) || f.status == StatusPending:
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
