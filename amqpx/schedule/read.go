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

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
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
// program wrote without a valid due time come last. List reads page by page, and each page begins where the previous
// one ended. No statement stays open between two pages, so tasks that are rescheduled in the meantime may be listed
// twice or not at all. The iteration stops after an error.
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
	after, err := rows.ParsePlace(string(f.After))
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
	l := rows.Listing{Filter: filter, Sort: sort, After: after, Limit: limit, WithoutBody: f.WithoutBody}
	if f.Unheld {
		return s.listUnheld(ctx, c, l, yield)
	}
	return c.List(ctx, l, yield)
}

// QueueCount is the number of tasks with one status for one queue. Queue is empty for tasks whose destination is an
// exchange.
type QueueCount struct {
	Queue  string
	Status Status
	Count  int64
}

// Count returns the number of tasks that the filter selects for each queue and status, sorted by queue and status.
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

// heldLanes returns the lanes that are paused, and the other lanes that have a rate limit or whose tasks are being
// spread after a pause.
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

// listUnheld lists the tasks that are not held back. If lanes are paused or limited, it reads lane by lane, because
// such a lane may have any number of tasks that are due before the tasks of other lanes.
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
