package rows

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// FirstOverdue returns the earliest resend_at of a lane that has passed, by routing key.
func (c Conn) FirstOverdue(ctx context.Context, l Lane, now int64) (map[string]int64, error) {
	firsts := map[string]int64{}
	query := "SELECT routing_key, MIN(resend_at) FROM " + c.from(ToResend) + " AND queue = ? AND exchange = ? AND resend_at <= ? GROUP BY routing_key"
	err := c.each(ctx, query, []any{l.Queue, l.Exchange, now}, func(scan scanner) error {
		var key string
		var first int64
		err := scan(&key, &first)
		firsts[key] = first
		return err
	})
	return firsts, err
}

// Passage is the progress of a destination's consumers.
type Passage struct {
	// Reached is when the last message whose task is done arrived in the queue: when the task was
	// due, or when it was sent if it was sent once, and late. Messages that arrived before it have
	// been taken from the queue. It is 0 if no such message is known.
	Reached int64
	// Lively is when a task was last done by the only message that was sent for it, not by a message
	// that was sent again.
	Lively int64
}

// recent is how many of the done tasks of a lane are read, beginning with the latest due time. It is more
// than one because each routing key of an exchange has separate consumers, and because several tasks may
// be due at the same time.
const recent = 200

// Passages returns the progress of a lane's consumers by routing key. A key without a recent task is
// missing.
func (c Conn) Passages(ctx context.Context, l Lane, now int64) (map[string]Passage, error) {
	all := map[string]Passage{}
	query := "SELECT routing_key, due_at, finished_at, sends, sent_at FROM " + c.byDestination(l.Exchange, "queue") +
		" WHERE queue = ? AND exchange = ? AND status = 'done' AND due_at <= ? ORDER BY due_at DESC LIMIT ?"
	err := c.each(ctx, query, []any{l.Queue, l.Exchange, now, recent}, func(scan scanner) error {
		var key string
		var due int64
		var finished, sent sql.NullInt64
		var sends int
		err := scan(&key, &due, &finished, &sends, &sent)
		p := all[key]
		p.Reached = max(p.Reached, due)
		if sends <= 1 {
			p.Reached, p.Lively = max(p.Reached, sent.Int64), max(p.Lively, finished.Int64)
		}
		all[key] = p
		return err
	})
	return all, err
}

// CountUnsettled counts the given tasks that are still pending after they were sent again. A task that its
// handler has replaced does not count, because it was sent once at most.
func (c Conn) CountUnsettled(ctx context.Context, ids []string) (int64, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	return c.number(ctx, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE "+stillPending+" AND sends > 1 AND id IN ("+marks(len(ids))+")", anys(ids)...)
}

// Timeless reads some pending tasks whose due_at is not a time up to the year 9999, with the reason in Bad.
// No claim finds them, because they are never due. In SQLite a text sorts after all numbers.
func (c Conn) Timeless(ctx context.Context) ([]*Task, error) {
	list, err := c.tasks(ctx, "SELECT "+bodiless+" FROM rabbitdelay_tasks WHERE status = 'pending' AND due_at > ? ORDER BY due_at, id LIMIT 500", []any{int64(MaxDue)})
	for _, t := range list {
		if t.Bad == nil {
			t.Bad = &RowError{[]string{fmt.Sprintf("column due_at: %d, expected an instant up to the year 9999 in milliseconds", t.DeliverAt.UnixMilli())}}
		}
	}
	return list, err
}

// noLease is the condition that no attempt except the one with a given token works on a task under a
// lease. Its parameters are the time and the token.
const noLease = " AND NOT EXISTS (SELECT 1 FROM rabbitdelay_effects AS e WHERE e.task_id = rabbitdelay_tasks.id AND e.version = rabbitdelay_tasks.version" +
	" AND e.created_at = rabbitdelay_tasks.created_at AND e.done_at IS NULL AND e.lease_until > ? AND e.lease_token <> ?)"

// EndedLeases returns ids of running tasks whose leases have ended.
func (c Conn) EndedLeases(ctx context.Context, now int64) ([]string, error) {
	return c.texts(ctx, "SELECT id FROM rabbitdelay_tasks WHERE status = 'running'"+noLease+" LIMIT 1000", now, "")
}

// EndLease makes a task pending again whose lease has ended, and reports whether it did. If another task of
// its unique key is pending, the task stays running until its retry is overdue, and is then cancelled.
func (c Conn) EndLease(ctx context.Context, id string, now int64) (bool, error) {
	end := func(set string, args ...any) (bool, error) {
		return c.changed(ctx, "UPDATE rabbitdelay_tasks SET "+set+", updated_at = ? WHERE id = ? AND status = 'running'"+noLease, append(args, now, id, now, "")...)
	}
	ended, err := end("status = 'pending'")
	if sqldb.Duplicate(err) {
		key, other, err := c.KeyTaken(ctx, id)
		if err != nil || other == "" {
			return false, err
		}
		return c.changed(ctx, "UPDATE rabbitdelay_tasks SET status = 'cancelled', finished_at = ?, last_error = ?, updated_at = ? WHERE id = ? AND status = 'running' AND (resend_at IS NULL OR resend_at <= ?)"+noLease,
			now, fmt.Sprintf("its lease ended without an outcome, and it gave way to task %s of its unique key %s", other, key), now, id, now, now, "")
	}
	return ended, err
}

// CountRunning counts the tasks that are worked on under a lease.
func (c Conn) CountRunning(ctx context.Context) (int64, error) {
	return c.number(ctx, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE status = 'running'")
}
