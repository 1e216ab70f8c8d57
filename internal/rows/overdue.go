package rows

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// FirstOverdue returns, for each routing key of a lane, the earliest resend_at, if it has passed.
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

// Sent contains the number of tasks whose messages are on the broker, and the range of their resend_at.
type Sent struct {
	Tasks       int64
	First, Last int64
}

// SentAhead counts up to limit pending tasks that are due later than dueAfter and were sent before sentBefore. It reads
// them in the order of their due times.
func (c Conn) SentAhead(ctx context.Context, dueAfter, sentBefore, limit int64) (s Sent, err error) {
	var first, last sql.NullInt64
	query := "SELECT COUNT(*), MIN(resend_at), MAX(resend_at) FROM (SELECT resend_at" + c.pendingInOrder() +
		" AND due_at > ? AND resend_at IS NOT NULL AND sent_at < ? ORDER BY due_at LIMIT ?) AS ahead"
	err = c.one(ctx, query, []any{dueAfter, sentBefore, limit}, &s.Tasks, &first, &last)
	s.First, s.Last = first.Int64, last.Int64
	return s, err
}

// Passage is the progress of a destination's consumers.
type Passage struct {
	// Reached is when the last message that is known to have been handled arrived in its queue. That is the task's due
	// time or, if the task was sent only once and after it was due, the time of sending. Queues are read in order, so
	// consumers have received all messages that arrived earlier. Reached is 0 if no such message is known.
	Reached int64
	// Lively is the last time at which a task that had been sent only once was done. A task that was sent again does
	// not count, because it does not show that consumers make progress in the queue.
	Lively int64
}

// recent is the number of a lane's done tasks that are read, beginning with the latest due time. One would not be
// enough, because each routing key of an exchange has separate consumers, and several tasks may be due at the same
// time.
const recent = 200

// Passages returns the progress of a lane's consumers by routing key. A key without a recent task is missing.
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

// CountUnsettled counts how many of the given tasks are still pending after they were sent again. It does not count a
// task whose handler has replaced it in the meantime, because the replacement has been sent at most once.
func (c Conn) CountUnsettled(ctx context.Context, ids []string) (int64, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	return c.number(ctx, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE "+stillPending+" AND sends > 1 AND id IN ("+marks(len(ids))+")", anys(ids)...)
}

// Timeless reads some pending tasks whose due_at is not a time up to the year 9999, such as a string in SQLite, which
// sorts after all numbers. No claim finds them, because they are never due. Their field Bad contains the reason.
func (c Conn) Timeless(ctx context.Context) ([]*Task, error) {
	list, err := c.tasks(ctx, "SELECT "+bodiless+" FROM rabbitdelay_tasks WHERE status = 'pending' AND due_at > ? ORDER BY due_at, id LIMIT 500", []any{int64(MaxDue)})
	for _, t := range list {
		if t.Bad == nil {
			t.Bad = &RowError{[]string{fmt.Sprintf("column due_at: %d, expected a time up to the year 9999 in milliseconds", t.DeliverAt.UnixMilli())}}
		}
	}
	return list, err
}

// noLease is the condition that no attempt holds a lease on a task, except the one with a given token. Its parameters
// are the time and the token.
const noLease = " AND NOT EXISTS (SELECT 1 FROM rabbitdelay_effects AS e WHERE e.task_id = rabbitdelay_tasks.id AND e.version = rabbitdelay_tasks.version" +
	" AND e.created_at = rabbitdelay_tasks.created_at AND e.done_at IS NULL AND e.lease_until > ? AND e.lease_token <> ?)"

// EndedLeases returns the ids of up to 1000 running tasks whose leases have ended.
func (c Conn) EndedLeases(ctx context.Context, now int64) ([]string, error) {
	return c.texts(ctx, "SELECT id FROM rabbitdelay_tasks WHERE status = 'running'"+noLease+" LIMIT 1000", now, "")
}

// EndLease makes a task pending again if its lease has ended, and returns its new status, or "" if it stays as it is.
// If another task with the same unique key is pending, the task that is due first continues: EndLease cancels the given
// task once its retry is overdue and the other task is due. Until then the given task stays running.
func (c Conn) EndLease(ctx context.Context, id string, now int64) (status string, err error) {
	end := func(status, set, condition string, args ...any) (string, error) {
		ended, err := c.changed(ctx, "UPDATE rabbitdelay_tasks SET status = ?, "+set+"updated_at = ? WHERE id = ? AND status = 'running'"+condition+noLease,
			append(append([]any{status}, args...), now, "")...)
		if !ended {
			status = ""
		}
		return status, err
	}
	status, err = end(Pending, "", "", now, id)
	if !sqldb.Duplicate(err) {
		return status, err
	}
	key, other, err := c.KeyTaken(ctx, id)
	if err != nil || other == "" {
		return "", err
	}
	rival, err := c.Find(ctx, other, now, Unlocked)
	if err != nil || rival.Status != Pending || rival.Due > now {
		return "", err
	}
	cause, err := c.texts(ctx, "SELECT last_error FROM rabbitdelay_tasks WHERE last_error IS NOT NULL AND id = ?", id)
	if err != nil {
		return "", err
	}
	cause = append(cause, fmt.Sprintf("its lease ended without an outcome, and it gave way to task %s with the same unique key %s", other, key))
	return end(Cancelled, "finished_at = ?, last_error = ?, ", " AND (resend_at IS NULL OR resend_at <= ?)",
		now, ErrorText(errors.New(strings.Join(cause, "; "))), now, id, now)
}

// CountRunning counts the tasks on which handlers are working under a lease.
func (c Conn) CountRunning(ctx context.Context) (int64, error) {
	return c.number(ctx, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE status = 'running'")
}
