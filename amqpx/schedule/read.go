package schedule

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Get returns the task with the given id, or ErrNotFound.
func (s *Store) Get(ctx context.Context, ex Executor, id string) (TaskRow, error) {
	c, err := s.conn(ctx, ex)
	if err != nil {
		return TaskRow{}, err
	}
	t, err := c.Get(ctx, id)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return TaskRow{}, fmt.Errorf("task %s: %w", id, ErrNotFound)
	case err != nil:
		return TaskRow{}, fmt.Errorf("reading task %s: %w", id, err)
	}
	return taskOf(t), nil
}

// List iterates over tasks in the order of f.Sort, by default by due time and id. By default, tasks that another
// program wrote without a valid due time come last. List reads page by page, and each page begins where the last one
// ended. No statement stays open between two pages, so tasks that are rescheduled in the meantime may be listed twice
// or not at all. The iteration ends after an error.
func (s *Store) List(ctx context.Context, ex Executor, f Filter) iter.Seq2[TaskRow, error] {
	return func(yield func(TaskRow, error) bool) {
		if err := s.list(ctx, ex, f, func(t *rows.Task) bool { return yield(taskOf(t), nil) }); err != nil {
			yield(TaskRow{}, fmt.Errorf("listing tasks: %w", err))
		}
	}
}

func (s *Store) list(ctx context.Context, ex Executor, f Filter, yield func(*rows.Task) bool) error {
	filter, err := f.rowFilter()
	if err != nil {
		return err
	}
	sort, err := f.Sort.parsed()
	if err != nil {
		return err
	}
	c, err := s.conn(ctx, ex)
	if err != nil {
		return err
	}
	limit := f.Limit
	if limit <= 0 {
		limit = math.MaxInt
	}
	l := rows.Listing{Filter: filter, Sort: sort, After: rows.Place(f.After), Limit: limit, WithoutBody: f.WithoutBody}
	if f.Unheld {
		return s.listUnheld(ctx, c, l, yield)
	}
	return c.List(ctx, l, yield)
}

// QueueCount is the number of tasks of one queue in one status. Queue is empty
// for tasks whose destination is an exchange.
type QueueCount struct {
	Queue  string
	Status Status
	Count  int64
}

// Count counts the tasks that the filter selects by queue and status, sorted in that order.
func (s *Store) Count(ctx context.Context, ex Executor, f Filter) ([]QueueCount, error) {
	return reading(ctx, s, ex, f, "counting tasks", func(c rows.Conn, f rows.Filter) (counts []QueueCount, err error) {
		list, err := c.CountByQueue(ctx, f)
		for _, n := range list {
			counts = append(counts, QueueCount{n.Queue, Status(n.Status), n.Count})
		}
		return counts, err
	})
}

// CountUpTo counts the tasks that the filter selects, up to limit. A result of limit + 1 means that there are more. A
// limit of 0 means no limit.
func (s *Store) CountUpTo(ctx context.Context, ex Executor, f Filter, limit int64) (int64, error) {
	return reading(ctx, s, ex, f, "counting tasks", func(c rows.Conn, f rows.Filter) (int64, error) {
		if limit <= 0 {
			return c.Count(ctx, f)
		}
		return c.CountUpTo(ctx, f, limit)
	})
}

// CountFinished counts the tasks that finished with a status between from, inclusive, and to,
// exclusive, up to limit. A result of limit + 1 means that there are more.
func (s *Store) CountFinished(ctx context.Context, ex Executor, status Status, from, to time.Time, limit int64) (int64, error) {
	if !slices.Contains([]Status{StatusDone, StatusCancelled, StatusExpired, StatusFailed}, status) {
		return 0, fmt.Errorf("%w: counting finished tasks: status %q; expected done, cancelled, expired or failed", ErrConfig, status)
	}
	return reading(ctx, s, ex, Filter{}, "counting finished tasks", func(c rows.Conn, _ rows.Filter) (int64, error) {
		return c.CountFinished(ctx, string(status), from, to, limit)
	})
}

// SentTasks describes pending tasks whose messages should be on the broker.
type SentTasks struct {
	Tasks int64 // number of tasks
	// ResendFrom and ResendTo are the earliest and the latest time at which the relay sends one of the tasks again, if
	// it finds that the message is lost: the range of TaskRow.ResendAt. They are zero if there are no tasks.
	ResendFrom, ResendTo time.Time
}

// SentAhead counts the pending tasks that are due later than ahead from now and that were sent longer than age ago, by
// the database's clock. Each of their messages is still in a delay queue, unless the broker lost it, so a broker that
// has fewer messages has lost some. At most limit tasks are counted, those that are due first. It returns ErrConfig if
// the limit is not positive.
func (s *Store) SentAhead(ctx context.Context, ex Executor, ahead, age time.Duration, limit int64) (SentTasks, error) {
	if limit < 1 {
		return SentTasks{}, fmt.Errorf("%w: counting sent tasks: limit is %d; expected 1 or more", ErrConfig, limit)
	}
	return reading(ctx, s, ex, Filter{}, "counting sent tasks", func(c rows.Conn, _ rows.Filter) (SentTasks, error) {
		now := s.nowOn(ctx, c)
		found, err := c.SentAhead(ctx, now.Add(ahead).UnixMilli(), now.Add(-age).UnixMilli(), limit)
		if err != nil || found.Tasks == 0 {
			return SentTasks{}, err
		}
		return SentTasks{found.Tasks, time.UnixMilli(found.First).UTC(), time.UnixMilli(found.Last).UTC()}, nil
	})
}

// HistogramBucket is the number of tasks due from From, inclusive, to To, exclusive.
type HistogramBucket struct {
	From, To time.Time
	Count    int64
}

// Histogram counts tasks by due time, in n bins of the given width that begin at from. The width is
// in whole milliseconds.
func (s *Store) Histogram(ctx context.Context, ex Executor, f Filter, from time.Time, width time.Duration, n int) ([]HistogramBucket, error) {
	if width < time.Millisecond || n < 1 || n > 100_000 {
		return nil, fmt.Errorf("histogram: width %s and %d bins, expected at least 1ms and 1 to 100000", topology.FormatDuration(width), n)
	}
	start, step := rows.Millis(from), width.Milliseconds()
	bins := make([]HistogramBucket, n)
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
	return reading(ctx, s, ex, f, "histogram of tasks", func(c rows.Conn, f rows.Filter) ([]HistogramBucket, error) {
		return bins, c.Bins(ctx, f, start, step, func(i int, count int64) {
			if i >= 0 && i < n {
				bins[i].Count = count
			}
		})
	})
}

// Effect is what the handler of one queue has recorded about a task. For a task that was sent to an exchange, this
// includes the effect. For other tasks, it includes only the attempts that were recorded before they ran.
type Effect struct {
	Version    int64     // the version of the task
	Queue      string    // the handler's queue
	DoneAt     time.Time // when the effect was committed; zero if it was not
	Attempts   int       // number of attempts that were recorded before they ran
	LeaseUntil time.Time // when the lease of an attempt ends; zero if there is none
}

// Effects returns what handlers have recorded about a task, sorted by version and queue.
func (s *Store) Effects(ctx context.Context, ex Executor, id string) ([]Effect, error) {
	return reading(ctx, s, ex, Filter{}, "reading the effects of task "+id, func(c rows.Conn, _ rows.Filter) (list []Effect, err error) {
		found, err := c.Effects(ctx, id)
		for _, e := range found {
			list = append(list, Effect(e))
		}
		return list, err
	})
}

// Tags returns the tags that tasks have, sorted, and at most limit of them.
func (s *Store) Tags(ctx context.Context, ex Executor, limit int) ([]string, error) {
	return reading(ctx, s, ex, Filter{}, "reading tags", func(c rows.Conn, _ rows.Filter) ([]string, error) { return c.TagNames(ctx, limit) })
}

// heldLanes returns the lanes that are paused, and the lanes whose due tasks wait for a rate limit.
func (s *Store) heldLanes(ctx context.Context, c rows.Conn) (paused map[rows.Lane]bool, limited map[rows.Lane]*DestinationState, err error) {
	gates, err := c.Gates(ctx)
	paused, limited = map[rows.Lane]bool{}, map[rows.Lane]*DestinationState{}
	for _, g := range gates {
		x := stateOf(g, s.nowOn(ctx, c))
		if g.Paused() {
			paused[g.Lane] = true
		} else if x.PerSecond > 0 || !x.SpreadUntil.IsZero() {
			limited[g.Lane] = &x
		}
	}
	return paused, limited, err
}

// listUnheld lists tasks lane by lane. It is needed if lanes are paused or limited, because such a lane may have any
// number of tasks that are due before the tasks of other lanes.
func (s *Store) listUnheld(ctx context.Context, c rows.Conn, l rows.Listing, yield func(*rows.Task) bool) error {
	paused, limited, err := s.heldLanes(ctx, c)
	if err != nil {
		return err
	}
	if len(paused)+len(limited) == 0 || l.Queue+l.Exchange != "" {
		if paused[rows.Lane{Queue: l.Queue, Exchange: l.Exchange}] {
			return nil
		}
		return c.List(ctx, l, yield)
	}
	lanes, err := c.PendingLanes(ctx)
	if err != nil {
		return err
	}
	var all []*rows.Task
	for _, lane := range lanes {
		if paused[lane] {
			continue
		}
		one := l
		one.Queue, one.Exchange = lane.Queue, lane.Exchange
		one.Sent = limited[lane] != nil && limited[lane].Busy
		if err := c.List(ctx, one, func(t *rows.Task) bool { all = append(all, t); return true }); err != nil {
			return err
		}
		slices.SortFunc(all, func(a, b *rows.Task) int {
			return cmp.Or(a.DeliverAt.Compare(b.DeliverAt), cmp.Compare(a.ID, b.ID))
		})
		all = all[:min(len(all), l.Limit)]
	}
	for _, t := range all {
		if !yield(t) {
			break
		}
	}
	return nil
}
