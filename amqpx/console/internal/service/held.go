package service

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Destinations returns those that are held back.
func (c *Core) Destinations(ctx context.Context) ([]schedule.DestinationState, error) {
	return readStore(ctx, c, func(ctx context.Context, s *schedule.Store) ([]schedule.DestinationState, error) {
		return s.Destinations(ctx, schedule.NoTx)
	})
}

// Destination returns what holds one back, if anything.
func (c *Core) Destination(ctx context.Context, d topology.Destination) (schedule.DestinationState, error) {
	list, err := c.Destinations(ctx)
	for _, x := range list {
		if x.Destination() == d {
			return x, nil
		}
	}
	return schedule.DestinationState{Queue: d.Queue, Exchange: d.Exchange}, err
}

// PauseDestination keeps the tasks of a destination in the table.
func (c *Core) PauseDestination(ctx context.Context, who Identity, d topology.Destination) error {
	return c.changeDestination(ctx, who, Entry{Action: "destination.pause"}, d, func(s *schedule.Store) error {
		return s.Pause(ctx, schedule.NoTx, d, who.Name)
	})
}

// ResumeDestination sends them again, over a time if spread is set.
func (c *Core) ResumeDestination(ctx context.Context, who Identity, d topology.Destination, spread time.Duration) error {
	e := Entry{Action: "destination.resume"}
	if spread > 0 {
		e.Detail = "over " + topology.FormatDuration(spread)
	}
	return c.changeDestination(ctx, who, e, d, func(s *schedule.Store) error { return s.Resume(ctx, schedule.NoTx, d, spread) })
}

// SetCeiling bounds how many tasks a second come to a destination; 0 takes the bound away.
func (c *Core) SetCeiling(ctx context.Context, who Identity, x schedule.Ceiling) error {
	e := Entry{Action: "destination.ceiling", Detail: "none"}
	if x.PerSecond != 0 {
		e.Detail = fmt.Sprintf("%g a second", x.PerSecond)
	}
	return c.changeDestination(ctx, who, e, topology.Destination{Queue: x.Queue, Exchange: x.Exchange}, func(s *schedule.Store) error {
		return s.SetCeiling(ctx, schedule.NoTx, x)
	})
}

func (c *Core) changeDestination(ctx context.Context, who Identity, e Entry, d topology.Destination, do func(*schedule.Store) error) error {
	s, err := c.store()
	if err != nil {
		return err
	}
	if (d.Queue == "") == (d.Exchange == "") {
		return &FieldError{"queue", "expected a queue or an exchange"}
	}
	e.Target = cmp.Or(d.Queue, d.Exchange)
	return c.recorded(ctx, who, e, func() error { return do(s) })
}
