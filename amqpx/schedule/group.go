package schedule

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Group lets up to n tasks that are being handled at the same time share a
// transaction; the default is 1. Nobody waits for company, so it makes nothing
// slower, and at a Concurrency of 32 or more it handles about twice as many
// tasks. n over 200 counts as 200, for the conditions of one statement.
//
// The guarantee is the same. When anything in a shared transaction fails (an
// error or a panic of fn, a task that is not pending, a deadlock), it is undone
// and each of its tasks runs in a transaction of its own, so that one task's
// failure is never another's. An fn that often fails therefore often runs twice.
// What fn locks stays locked until all of its group are committed.
func Group(n int) HandlerOption { return func(h *handler) { h.group = min(n, maxGroup) } }

const maxGroup = 200

// piece is a task's message on its way to its commit.
type piece struct {
	ctx context.Context
	d   *amqpx.Delivery
}

// together makes several tasks done by one statement and runs their effects. It
// goes on only when all of them pass the fence.
func (h *handler) together(ctx context.Context, tx *sql.Tx, pieces []piece) error {
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
	const done = "UPDATE rabbitdelay_tasks SET status = 'done', finished_at = ?, updated_at = ?"
	if dialect == PostgreSQL {
		// One statement for any number of tasks, which is planned once: to plan
		// what is below costs more than to run it. JSON, because every driver can
		// pass a string.
		type fence struct {
			ID      string `json:"id"`
			Version int64  `json:"version"`
			Due     int64  `json:"due"`
		}
		fences := make([]fence, len(pieces))
		for i, p := range pieces {
			fences[i] = fence{p.d.ID, p.d.Version, dueOf(p.d, now)}
		}
		list, err := json.Marshal(fences)
		return dialect.Bind(done + ` FROM json_to_recordset(CAST(CAST(? AS text) AS json)) AS fence (id text, version bigint, due bigint)
			WHERE rabbitdelay_tasks.id = fence.id AND rabbitdelay_tasks.version = fence.version AND due_at <= fence.due AND status = 'pending'`), []any{now, now, string(list)}, err
	}
	const one = "(id = ? AND version = ? AND due_at <= ?)"
	args = append(make([]any, 0, 2+3*len(pieces)), now, now)
	for _, p := range pieces {
		args = append(args, p.d.ID, p.d.Version, dueOf(p.d, now))
	}
	return dialect.Bind(done + " WHERE status = 'pending' AND (" + one + strings.Repeat(" OR "+one, len(pieces)-1) + ")"), args, nil
}

// dueOf is the due instant that a message stands for, now without one.
func dueOf(d *amqpx.Delivery, now int64) int64 {
	if d.DueAt.IsZero() {
		return now
	}
	return d.DueAt.UnixMilli()
}
