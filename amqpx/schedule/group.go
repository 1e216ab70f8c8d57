package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// WithGroup lets up to n tasks that are being handled at the same time share a
// transaction; the default is 1. No task waits for others to arrive. It helps
// when beginning, fence and commit dominate: at a concurrency of 64 and on a
// database nearby, some three times as many tasks were handled without an
// effect, and twice as many with an insert. n over 200 counts as 200.
//
// The effects of a group run one after another, and of one handler two groups
// at a time, up to four while n or more tasks wait. If fn itself waits, for
// example for a remote database, leave n at 1, or measure.
//
// The guarantee is the same. When anything in a shared transaction fails (an
// error or a panic of fn, a task that is not pending, a deadlock), it is undone
// and each of its tasks runs in a transaction of its own, so that one task's
// failure is never another's. An fn that often fails therefore often runs twice.
// What fn locks stays locked until all of its group are committed.
func WithGroup(n int) HandlerOption { return func(h *handler) { h.group = min(n, maxGroup) } }

const maxGroup = 200

// piece is a task's message on its way to its commit.
type piece struct {
	ctx context.Context
	d   *amqpx.Delivery
}

// together makes several tasks done by one statement and runs their effects. It
// goes on only when all of them pass the fence.
func (h *handler) together(ctx context.Context, tx sqldb.Tx, pieces []piece) error {
	dialect, err := h.dialect.Resolve(ctx, tx)
	if err != nil {
		return err
	}
	query, args, err := fenceAll(dialect, pieces, h.now().UnixMilli())
	if err != nil {
		return err
	}
	res, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return sqldb.Explain(err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return err
	}
	if n != int64(len(pieces)) {
		return sqldb.ErrApart
	}
	for _, p := range pieces {
		if err := h.fn(p.ctx, tx, p.d); err != nil {
			return fmt.Errorf("task %s: %w", p.d.ID, err)
		}
	}
	return nil
}

// fenceAll is the statement that makes tasks done, those of them that pass the
// fence.
func fenceAll(dialect Dialect, pieces []piece, now int64) (query string, args []any, err error) {
	const set = " SET status = 'done', finished_at = ?, updated_at = ?"
	open := stillPending + " AND (exchange = '') IS TRUE AND (" + unexpired(dialect, now) + ") IS TRUE"
	if dialect == PostgreSQL {
		// To plan what is below costs more than to run it. This is planned once, and
		// written so that the planner, which does not know how many tasks they are,
		// finds the rows by their ids: else it reads the whole table, or all that is
		// pending in the index of the status.
		const byID = "tasks.id = ANY (ARRAY (SELECT id FROM fence)) AND tasks.id = fence.id"
		type fence struct {
			ID      string `json:"id"`
			Version int64  `json:"version"`
			Created int64  `json:"created"`
			Due     int64  `json:"due"`
		}
		fences := make([]fence, len(pieces))
		for i, p := range pieces {
			fences[i] = fence{p.d.ID, p.d.Version, createdOf(p.d), dueOf(p.d, now)}
		}
		list, err := json.Marshal(fences)
		return dialect.Bind("WITH fence AS (SELECT * FROM json_to_recordset(" + sqldb.JSON + ") AS fence (id text, version bigint, created bigint, due bigint)) " +
			"UPDATE rabbitdelay_tasks AS tasks" + set + " FROM fence WHERE " + byID + " AND tasks.version = fence.version AND fence.created IN (0, tasks.created_at) AND tasks.due_at <= fence.due AND " + open), []any{string(list), now, now}, err
	}
	const one = "(id = ? AND version = ? AND created_at BETWEEN ? AND ? AND due_at <= ?)"
	args = append(make([]any, 0, 2+5*len(pieces)), now, now)
	for _, p := range pieces {
		args = append(args, fenceArgs(p.d, now)...)
	}
	return dialect.Bind("UPDATE rabbitdelay_tasks" + set + " WHERE " + open + " AND (" + one + strings.Repeat(" OR "+one, len(pieces)-1) + ")"), args, nil
}

// dueOf is the due instant that a message stands for, now without one.
func dueOf(d *amqpx.Delivery, now int64) int64 {
	if d.DueAt.IsZero() {
		return now
	}
	return max(stored(d.DueAt), 0) // as the row has it, also where a test gives the task's own instant
}
