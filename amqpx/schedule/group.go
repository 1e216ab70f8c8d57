package schedule

import (
	"context"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// WithGroup makes up to n tasks that are being handled at the same time share a
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
// What fn locks stays locked until all of its group are committed. fn cannot end the
// transaction: its Commit and Rollback return errors, and each of the group runs alone then.
func WithGroup(n int) HandlerOption { return func(h *handler) { h.group = min(n, maxGroup) } }

const maxGroup = 200

// piece is a task's message that waits to be handled in a shared transaction.
type piece struct {
	ctx context.Context
	d   *amqpx.Delivery
}

// together makes several tasks done with one statement and runs their effects. It continues only if all of
// them pass the fence.
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
