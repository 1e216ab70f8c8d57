package service

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// maxRecurring is the maximum length of a list of recurring tasks.
const maxRecurring = 10_000

// Recurring returns all recurring tasks, at most 10,000.
func (c *Core) Recurring(ctx context.Context, who Identity) ([]schedule.Recurring, error) {
	return readStore(ctx, c, func(ctx context.Context, s *taskview.Store) ([]schedule.Recurring, error) {
		list := []schedule.Recurring{}
		for r, err := range s.Recurring().List(ctx, schedule.NoTx) {
			if err != nil {
				return nil, err
			}
			veilTask(who, &r.Task)
			if list = append(list, r); len(list) == maxRecurring {
				break
			}
		}
		return list, nil
	})
}

// LastRuns returns, for each of the named recurring tasks, the last of its occurrences that have ended. The result is
// keyed by the name. A task without such an occurrence is missing.
func (c *Core) LastRuns(ctx context.Context, names []string) (map[string]schedule.TaskRow, error) {
	return readStore(ctx, c, func(ctx context.Context, s *taskview.Store) (map[string]schedule.TaskRow, error) {
		return s.Recurring().LastRuns(ctx, schedule.NoTx, names)
	})
}

// RecurringTask returns one recurring task.
func (c *Core) RecurringTask(ctx context.Context, who Identity, name string) (schedule.Recurring, error) {
	return readStore(ctx, c, func(ctx context.Context, s *taskview.Store) (schedule.Recurring, error) {
		r, err := s.Recurring().Get(ctx, schedule.NoTx, name)
		veilTask(who, &r.Task)
		return r, err
	})
}

// PutRecurring creates a recurring task, or changes the existing one with this name.
func (c *Core) PutRecurring(ctx context.Context, who Identity, r schedule.Recurring) (schedule.Change, error) {
	return c.operator(who).PutRecurring(ctx, r)
}

// PauseRecurring withdraws the occurrences that are not due yet, and schedules no more.
func (c *Core) PauseRecurring(ctx context.Context, who Identity, name string) error {
	return c.operator(who).PauseRecurring(ctx, name)
}

// ResumeRecurring schedules occurrences again, starting from now.
func (c *Core) ResumeRecurring(ctx context.Context, who Identity, name string) error {
	return c.operator(who).ResumeRecurring(ctx, name)
}

// RunRecurring schedules one additional occurrence, due now, and returns the id of its task.
func (c *Core) RunRecurring(ctx context.Context, who Identity, name string) (id string, err error) {
	return c.operator(who).RunRecurring(ctx, name)
}

// DeleteRecurring deletes a recurring task and withdraws the occurrences that are not due yet.
func (c *Core) DeleteRecurring(ctx context.Context, who Identity, name string) error {
	return c.operator(who).DeleteRecurring(ctx, name)
}

// Destinations returns the destinations that are paused or limited.
func (c *Core) Destinations(ctx context.Context) ([]schedule.DestinationState, error) {
	return readStore(ctx, c, func(ctx context.Context, s *taskview.Store) ([]schedule.DestinationState, error) {
		return s.Destinations(ctx, schedule.NoTx)
	})
}

// Destination returns the state of a destination. If the destination is neither paused nor limited, the state contains
// only its name.
func (c *Core) Destination(ctx context.Context, d topology.Destination) (schedule.DestinationState, error) {
	list, err := c.Destinations(ctx)
	for _, x := range list {
		if x.Destination() == d {
			return x, nil
		}
	}
	return schedule.DestinationState{Queue: d.Queue, Exchange: d.Exchange}, err
}

// UnknownDestination returns a warning if the name of a destination may be misspelt. It returns an empty string if a
// task or a recurring task has this destination, or if the last overview of this process contains it.
func (c *Core) UnknownDestination(ctx context.Context, d topology.Destination) (string, error) {
	name := cmp.Or(d.Queue, d.Exchange)
	seen := c.seenDestinations()
	if slices.Contains(seen, d) {
		return "", nil
	}
	return readStore(ctx, c, func(ctx context.Context, s *taskview.Store) (string, error) {
		known, err := s.Known(ctx, d)
		if err != nil || known {
			return "", err
		}
		named, err := s.Named(ctx)
		if err != nil {
			return "", err
		}
		var names []string
		for _, x := range append(seen, named...) {
			names = append(names, cmp.Or(x.Queue, x.Exchange))
		}
		return fmt.Sprintf("no task, no recurring task and no destination has the name %s%s", shown.Line(name), naming.DidYouMean(name, names)), nil
	})
}

// seenDestinations returns the destinations in the last overview. Exchanges are returned without a routing key.
func (c *Core) seenDestinations() (list []topology.Destination) {
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	if c.shared.last == nil {
		return nil
	}
	for _, d := range c.shared.last.Status.Destinations {
		if !d.Exchange {
			list = append(list, topology.Destination{Queue: d.Name})
			continue
		}
		for i := range len(d.Name) { // both the exchange and the routing key may contain a colon, so every prefix may be the exchange
			if d.Name[i] == ':' {
				list = append(list, topology.Destination{Exchange: d.Name[:i]})
			}
		}
	}
	return list
}

// PauseDestination keeps the tasks for a destination in the table until ResumeDestination is called.
func (c *Core) PauseDestination(ctx context.Context, who Identity, d topology.Destination) error {
	return c.operator(who).Pause(ctx, d)
}

// ResumeDestination sends the tasks for a destination again. If spread is not zero, the overdue tasks are sent over
// that period.
func (c *Core) ResumeDestination(ctx context.Context, who Identity, d topology.Destination, spread time.Duration) error {
	return c.operator(who).Resume(ctx, d, spread)
}

// SetRateLimit limits the number of tasks per second that are sent to a destination. Zero removes the limit.
func (c *Core) SetRateLimit(ctx context.Context, who Identity, x schedule.RateLimit) error {
	return c.operator(who).SetRateLimit(ctx, x)
}
