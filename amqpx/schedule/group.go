package schedule

import (
	"context"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// WithGroup lets up to n tasks that are being handled concurrently share a transaction. The default is 1, the maximum
// 200. No task waits for others to arrive. Grouping helps if most of the time is spent on starting the transaction,
// checking the row and committing: at a concurrency of 64 with a nearby database, it handled about three times as many
// tasks without an effect, and twice as many with an insert.
//
// The effects of a group run one after another. Two groups of one handler run concurrently, or up to four while n or
// more tasks are waiting. If fn itself waits, for example for a remote database, keep n at 1 unless measurements show
// that grouping helps.
//
// The guarantee is the same as without groups. If anything in a shared transaction fails (an error or a panic of fn, a
// task that is not pending, a deadlock), the transaction is rolled back and each of its tasks is handled in a separate
// transaction, so that the failure of one task never affects another. An fn that often fails therefore often runs
// twice. Locks that fn takes are held until its whole group has committed.
//
// fn must not end the transaction. In a group, Commit and Rollback return an error. So does every statement that might
// end the transaction: in MySQL, for example, CREATE TABLE commits implicitly, and a procedure may commit. Only SELECT,
// INSERT, UPDATE, DELETE, WITH, VALUES, MERGE, REPLACE, COPY, NOTIFY and the savepoint statements are allowed, one
// statement in each call. After such an error, the group's tasks are handled in separate transactions, where fn can run
// any statement. The same happens if fn uses the Conn of a pgx.Tx, or a statement that it prepared on the *sql.DB.
// Never end the transaction through that Conn.
func WithGroup(n int) HandlerOption { return func(h *handler) { h.group = min(n, maxGroup) } }

const maxGroup = 200

// piece is a task's message that waits to be handled in a shared transaction.
type piece struct {
	ctx context.Context
	d   *amqpx.Delivery
}

// together marks several tasks as done with one statement and runs their effects. If one of them does not pass the
// fence, it returns sqldb.ErrApart.
func (h *handler) together(ctx context.Context, tx sqldb.Tx, pieces []piece) error {
	c, err := h.db.On(ctx, tx)
	if err != nil {
		return err
	}
	now := h.nowMilli()
	fences := make([]rows.Fence, len(pieces))
	for i, p := range pieces {
		fences[i] = fenceOf(p.d, now)
	}
	n, err := c.AllDone(ctx, fences, now)
	if err != nil {
		return err
	}
	if n != int64(len(pieces)) {
		return sqldb.ErrApart
	}
	for _, p := range pieces {
		if err := sqldb.Lend(ctx, tx, func(lent sqldb.Tx) error { return h.fn.call(p.ctx, lent, p.d) }); err != nil {
			return fmt.Errorf("task %s: %w", p.d.ID, err)
		}
	}
	return nil
}
