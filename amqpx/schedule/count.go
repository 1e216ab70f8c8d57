package schedule

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// QueueCount is the number of tasks of one queue in one status. Queue is empty
// for tasks whose destination is an exchange.
type QueueCount struct {
	Queue  string
	Status Status
	Count  int64
}

// Bin is the number of tasks due from From, inclusive, to To, exclusive.
type Bin struct {
	From, To time.Time
	Count    int64
}

// Count counts tasks by queue and status, in that order.
func (s *Store) Count(ctx context.Context, ex Executor, f Filter) ([]QueueCount, error) {
	where, args, err := f.where()
	if err != nil {
		return nil, fmt.Errorf("counting tasks: %w", err)
	}
	var counts []QueueCount
	err = s.query(ctx, ex, "SELECT queue, status, COUNT(*) FROM rabbitdelay_tasks"+where+" GROUP BY queue, status ORDER BY queue, status", args, func(rows sqldb.Rows) error {
		var c QueueCount
		err := rows.Scan(&c.Queue, &c.Status, &c.Count)
		counts = append(counts, c)
		return err
	})
	return counts, err
}

// CountUpTo counts the tasks that the filter chooses, and stops at limit: a result
// of limit + 1 says that there are more. A limit of 0 is none.
func (s *Store) CountUpTo(ctx context.Context, ex Executor, f Filter, limit int64) (total int64, err error) {
	if limit <= 0 {
		where, args, err := f.where()
		if err != nil {
			return 0, fmt.Errorf("counting tasks: %w", err)
		}
		return s.count(ctx, ex, "rabbitdelay_tasks"+where, args)
	}
	d, err := s.dialect.Resolve(ctx, s.on(ex))
	if err != nil {
		return 0, fmt.Errorf("counting tasks: %w", err)
	}
	for _, status := range statuses { // in the order of an index each
		if f.Status != "" && f.Status != status || total > limit {
			continue
		}
		one := f
		one.Status = status
		query, args, err := listQuery(d, one, "due_at, id", int(min(limit-total, math.MaxInt32))+1)
		if err != nil {
			return 0, fmt.Errorf("counting tasks: %w", err)
		}
		n, err := s.count(ctx, ex, "("+query+") AS bounded", args)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

func (s *Store) count(ctx context.Context, ex Executor, from string, args []any) (n int64, err error) {
	err = s.query(ctx, ex, "SELECT COUNT(*) FROM "+from, args, func(rows sqldb.Rows) error { return rows.Scan(&n) })
	return n, err
}

// Lateness is by how much the tasks that were done from an instant on, and before
// another, were later than their due instants: the last of them, at most limit.
func (s *Store) Lateness(ctx context.Context, ex Executor, from, to time.Time, limit int) ([]time.Duration, error) {
	var list []time.Duration
	query := fmt.Sprintf("SELECT finished_at - due_at FROM rabbitdelay_tasks WHERE status = 'done' AND finished_at >= ? AND finished_at < ? ORDER BY finished_at DESC LIMIT %d", limit)
	err := s.query(ctx, ex, query, []any{stored(from), stored(to)}, func(rows sqldb.Rows) error {
		var ms int64
		err := rows.Scan(&ms)
		list = append(list, time.Duration(max(ms, 0))*time.Millisecond)
		return err
	})
	return list, err
}

// CountFinished counts the tasks that came to an end in a status from an instant on,
// and before another. It stops at limit: a result of limit + 1 says that there are more.
func (s *Store) CountFinished(ctx context.Context, ex Executor, status Status, from, to time.Time, limit int64) (int64, error) {
	if !slices.Contains([]Status{StatusDone, StatusCancelled, StatusExpired, StatusFailed}, status) {
		return 0, fmt.Errorf("%w: counting finished tasks: status %q; expected done, cancelled, expired or failed", ErrConfig, status)
	}
	// The status is written out, so that the planner can use the partial index.
	finished := fmt.Sprintf("(SELECT 1 FROM rabbitdelay_tasks WHERE status = '%s' AND finished_at >= %d AND finished_at < %d LIMIT %d) AS bounded", status, stored(from), stored(to), limit+1)
	return s.count(ctx, ex, finished, nil)
}

// Histogram counts tasks by due instant: n bins of the given width, from the
// instant from on. Widths are whole milliseconds.
func (s *Store) Histogram(ctx context.Context, ex Executor, f Filter, from time.Time, width time.Duration, n int) ([]Bin, error) {
	if width < time.Millisecond || n < 1 || n > 100_000 {
		return nil, fmt.Errorf("histogram: width %v and %d bins, expected at least 1ms and 1 to 100000", width, n)
	}
	start, step := millis(from), width.Milliseconds()
	bins := make([]Bin, n)
	for i := range bins {
		bins[i].From = time.UnixMilli(start + int64(i)*step)
		bins[i].To = time.UnixMilli(start + int64(i+1)*step)
	}
	if f.DueFrom.IsZero() || f.DueFrom.Before(bins[0].From) {
		f.DueFrom = bins[0].From
	}
	if f.DueTo.IsZero() || f.DueTo.After(bins[n-1].To) {
		f.DueTo = bins[n-1].To
	}
	where, args, err := f.where()
	if err != nil {
		return nil, fmt.Errorf("histogram of tasks: %w", err)
	}
	// The remainder is taken off first, because / keeps it in MySQL.
	bin := fmt.Sprintf("((due_at - %d) - (due_at - %d) %% %d) / %d", start, start, step, step)
	err = s.query(ctx, ex, "SELECT "+bin+" AS bin, COUNT(*) FROM rabbitdelay_tasks"+where+" GROUP BY bin", args, func(rows sqldb.Rows) error {
		var i float64 // MySQL's quotient is a decimal
		var count int64
		if err := rows.Scan(&i, &count); err != nil {
			return err
		}
		if k := int(i); k >= 0 && k < n {
			bins[k].Count = count
		}
		return nil
	})
	return bins, err
}
