package taskview

import (
	"context"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// MaxWaiting is the largest number of tasks that schedule.DestinationState.Waiting counts.
const MaxWaiting = rows.MaxWaiting

// DestinationCount is the number of pending tasks for a destination, among the first 10,000 pending tasks for its queue
// or exchange by due time.
type DestinationCount struct {
	Destination topology.Destination
	Pending     int64
}

// maxUnknown is the maximum number of tasks that UnknownDestinations reads for each queue or exchange.
const maxUnknown = 10_000

// UnknownDestinations returns the destinations of pending tasks that schedule.Config.Destination rejects. Schedule
// rejects such tasks, so they were written by other programs, or before the configuration changed. A relay with this
// configuration will not send them. If the configuration does not restrict destinations, the result is empty.
func (s *Store) UnknownDestinations(ctx context.Context) ([]DestinationCount, error) {
	if s.listed == nil {
		return nil, nil
	}
	c, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	lanes, err := c.PendingLanes(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding tasks: %w", err)
	}
	var list []DestinationCount
	for _, l := range lanes {
		dest := topology.Destination{Queue: l.Queue, Exchange: l.Exchange}
		// Check each routing key of an exchange separately.
		if l.Exchange == "" && s.listed(dest) == nil {
			continue
		}
		err := c.CountKeys(ctx, l, maxUnknown, func(key string, pending int64) {
			dest.RoutingKey = key
			if s.listed(dest) != nil {
				list = append(list, DestinationCount{dest, pending})
			}
		})
		if err != nil {
			return nil, fmt.Errorf("counting tasks of %s: %w", topology.Destination{Queue: l.Queue, Exchange: l.Exchange}, err)
		}
	}
	return list, nil
}

// Known reports whether any task in the table, finished or not, or any recurring task has the given destination, which
// is a queue, or an exchange with any routing key. A destination that is not known may be misspelt, or it may not have
// had a task yet.
func (s *Store) Known(ctx context.Context, d topology.Destination) (bool, error) {
	n, err := s.CountUpTo(ctx, schedule.NoTx, schedule.Filter{Queue: d.Queue, Exchange: d.Exchange}, 1)
	if err != nil || n > 0 {
		return n > 0, err
	}
	for r, err := range s.Recurring().List(ctx, schedule.NoTx) {
		if err != nil {
			return false, err
		}
		if r.Task.Queue == d.Queue && r.Task.Exchange == d.Exchange {
			return true, nil
		}
	}
	return false, nil
}

// Named returns the destinations that have pending tasks, and those that are paused or have a rate limit. They are the
// candidates when a name is misspelt. An exchange is returned without a routing key.
func (s *Store) Named(ctx context.Context) ([]topology.Destination, error) {
	held, err := s.Destinations(ctx, schedule.NoTx)
	if err != nil {
		return nil, err
	}
	list, err := s.waiting(ctx)
	for _, d := range held {
		list = append(list, d.Destination())
	}
	return list, err
}

// waiting returns the destinations that have pending tasks.
func (s *Store) waiting(ctx context.Context) ([]topology.Destination, error) {
	return reading(ctx, s, "reading destinations with pending tasks", func(c rows.Conn) (list []topology.Destination, err error) {
		lanes, err := c.PendingLanes(ctx)
		for _, l := range lanes {
			list = append(list, topology.Destination{Queue: l.Queue, Exchange: l.Exchange})
		}
		return list, err
	})
}
