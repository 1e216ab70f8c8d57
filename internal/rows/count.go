package rows

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// QueueCount is the number of tasks with one status for one queue.
type QueueCount struct {
	Queue, Status string
	Count         int64
}

// CountByQueue returns the number of tasks that a filter selects for each queue and status, sorted by queue and status.
func (c Conn) CountByQueue(ctx context.Context, f Filter) (counts []QueueCount, err error) {
	if f.ByError() {
		return c.countErrorsByQueue(ctx, f)
	}
	where := f.where()
	query := "SELECT queue, status, COUNT(*) FROM rabbitdelay_tasks" + where.String() + " GROUP BY queue, status ORDER BY queue, status"
	err = c.each(ctx, query, where.args, func(scan scanner) error {
		var n QueueCount
		err := scan(&n.Queue, &n.Status, &n.Count)
		counts = append(counts, n)
		return err
	})
	return counts, err
}

func (c Conn) countErrorsByQueue(ctx context.Context, f Filter) ([]QueueCount, error) {
	counted := map[QueueCount]int64{}
	err := c.eachByError(ctx, f, func(queue, status string, _ int64) bool {
		counted[QueueCount{Queue: queue, Status: status}]++
		return true
	})
	var counts []QueueCount
	for n, count := range counted {
		n.Count = count
		counts = append(counts, n)
	}
	slices.SortFunc(counts, func(a, b QueueCount) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Status, b.Status))
	})
	return counts, err
}

// Count counts the tasks that a filter selects.
func (c Conn) Count(ctx context.Context, f Filter) (n int64, err error) {
	if f.ByError() {
		err = c.eachByError(ctx, f, func(string, string, int64) bool { n++; return true })
		return n, err
	}
	where := f.where()
	return c.number(ctx, "SELECT COUNT(*) FROM rabbitdelay_tasks"+where.String(), where.args...)
}

// CountUpTo counts the tasks that a filter selects, up to limit + 1. It reads the tasks of each status in the order of
// an index, so that it can stop early.
func (c Conn) CountUpTo(ctx context.Context, f Filter, limit int64) (total int64, err error) {
	if f.ByError() {
		err = c.eachByError(ctx, f, func(string, string, int64) bool { total++; return total <= limit })
		return total, err
	}
	for _, status := range Statuses {
		if f.Status != "" && f.Status != status || total > limit {
			continue
		}
		one := f
		one.Status = status
		query, args := c.listQuery(Listing{Filter: one}, "due_at, id", int(min(limit-total, math.MaxInt32))+1)
		n, err := c.number(ctx, "SELECT COUNT(*) FROM ("+query+") AS bounded", args...)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// CountFinished counts the tasks that finished with the given status in the interval [from, to). It stops counting at
// limit + 1. The status is a literal in the statement, so that the planner can use the partial index.
func (c Conn) CountFinished(ctx context.Context, status string, from, to time.Time, limit int64) (int64, error) {
	return c.number(ctx, fmt.Sprintf("SELECT COUNT(*) FROM (SELECT 1 FROM rabbitdelay_tasks WHERE status = '%s' AND finished_at >= %d AND finished_at < %d LIMIT %d) AS bounded",
		status, Stored(from), Stored(to), limit+1))
}

// Bins counts tasks by due time, in bins of step milliseconds. The first bin begins at start. Bins calls the function
// bin with the index and the count of each bin that has tasks.
func (c Conn) Bins(ctx context.Context, f Filter, start, step int64, bin func(i int, count int64)) error {
	if f.ByError() {
		counts := map[int]int64{}
		err := c.eachByError(ctx, f, func(_, _ string, due int64) bool { counts[int((due-start)/step)]++; return true })
		for i, count := range counts {
			bin(i, count)
		}
		return err
	}
	where := f.where()
	// Subtract the remainder first, because / is not an integer division in MySQL.
	number := fmt.Sprintf("((due_at - %d) - (due_at - %d) %% %d) / %d", start, start, step, step)
	return c.each(ctx, "SELECT "+number+" AS bin, COUNT(*) FROM rabbitdelay_tasks"+where.String()+" GROUP BY bin", where.args, func(scan scanner) error {
		var i float64 // MySQL returns the quotient as a decimal, such as 3.0000
		var count int64
		err := scan(&i, &count)
		bin(int(i), count)
		return err
	})
}

// pendingInOrder returns the FROM and WHERE clauses of pending tasks. An index contains these tasks in the order of
// their due times.
func (c Conn) pendingInOrder() string {
	return " FROM " + c.tasksBy("status", "") + " WHERE status = 'pending'"
}

// Oldest returns the earliest due time of the pending tasks that are due, or zero if none is due.
func (c Conn) Oldest(ctx context.Context, now int64) (time.Time, error) {
	return c.oldest(ctx, c.pendingInOrder()+" AND due_at <= ?", now)
}

// mostImmediate bounds how many tasks with a due time of 0 are read to find the oldest of them.
const mostImmediate = 1000

// oldest returns the earliest due time of rows, or zero if there are none. The parameter from is the part of the SELECT
// after the columns. An index must return its rows in order of due time. A task with a due time of 0, which means
// immediately, is treated as due since it was written.
func (c Conn) oldest(ctx context.Context, from string, args ...any) (time.Time, error) {
	var first, written sql.NullInt64
	err := c.one(ctx, "SELECT due_at"+from+" AND due_at > 0 ORDER BY due_at LIMIT 1", args, &first)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, err
	}
	err = c.one(ctx, fmt.Sprintf("SELECT MIN(created_at) FROM (SELECT created_at%s AND due_at = 0 ORDER BY due_at LIMIT %d) AS immediate", from, mostImmediate), args, &written)
	if err != nil {
		return time.Time{}, err
	}
	if written.Valid && (!first.Valid || written.Int64 < first.Int64) {
		first = written
	}
	return orZero(first), nil
}

// CountPending counts the pending tasks that are due in the interval (after, until], up to limit.
func (c Conn) CountPending(ctx context.Context, after, until, limit int64) (int64, error) {
	return c.number(ctx, "SELECT COUNT(*) FROM (SELECT 1"+c.pendingInOrder()+" AND due_at > ? AND due_at <= ? LIMIT ?) AS counted", after, until, limit)
}

// CountUnsent counts the pending tasks of a lane that have not been sent and are due in the interval (after, until], up
// to limit. Tasks that a relay has claimed count as well.
func (c Conn) CountUnsent(ctx context.Context, l Lane, after, until, limit int64) (int64, error) {
	instant := c.instant(ToSend)
	return c.number(ctx, "SELECT COUNT(*) FROM (SELECT 1 FROM "+c.from(ToSend)+" AND queue = ? AND exchange = ? AND "+instant+" > ? AND "+instant+" <= ? ORDER BY "+instant+" LIMIT ?) AS counted", // ORDER BY makes the planner use the index
		l.Queue, l.Exchange, after, until, limit)
}

// CountKeys calls count with each routing key of a lane and the number of its pending tasks, sorted by routing key. It
// reads at most the given number of tasks, those with the earliest due times.
func (c Conn) CountKeys(ctx context.Context, l Lane, most int, count func(key string, pending int64)) error {
	query := fmt.Sprintf("SELECT routing_key, COUNT(*) FROM (SELECT routing_key FROM rabbitdelay_tasks "+
		"WHERE queue = ? AND exchange = ? AND status = 'pending' ORDER BY due_at LIMIT %d) AS first GROUP BY routing_key ORDER BY routing_key", most)
	return c.each(ctx, query, []any{l.Queue, l.Exchange}, func(scan scanner) error {
		var key string
		var pending int64
		err := scan(&key, &pending)
		if err == nil {
			count(key, pending)
		}
		return err
	})
}
