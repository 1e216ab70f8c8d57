package service

import (
	"context"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// maxRecurring bounds a list of recurring tasks.
const maxRecurring = 10_000

// Recurring is a method of Schedules.
func (c *Core) Recurring(ctx context.Context, who Identity) ([]schedule.Recurring, error) {
	s, err := c.store()
	if err != nil {
		return nil, err
	}
	ctx, cancel, err := c.bounded(ctx)
	defer cancel()
	if err != nil {
		return nil, err
	}
	list := []schedule.Recurring{}
	for r, err := range s.Schedules().List(ctx, nil) {
		if err != nil {
			return nil, slow(ctx, err)
		}
		veil(who, &r.Task)
		if list = append(list, r); len(list) == maxRecurring {
			break
		}
	}
	return list, nil
}

// RecurringTask is a method of Schedules.
func (c *Core) RecurringTask(ctx context.Context, who Identity, name string) (schedule.Recurring, error) {
	s, err := c.store()
	if err != nil {
		return schedule.Recurring{}, err
	}
	ctx, cancel, err := c.bounded(ctx)
	defer cancel()
	if err != nil {
		return schedule.Recurring{}, err
	}
	r, err := s.Schedules().Get(ctx, nil, name)
	veil(who, &r.Task)
	return r, slow(ctx, err)
}

// PutRecurring is a method of Schedules.
func (c *Core) PutRecurring(ctx context.Context, who Identity, r schedule.Recurring) (change schedule.Change, err error) {
	err = c.recurring(ctx, who, "recurring.put", r.Name, func(x schedule.Schedules) (err error) {
		change, err = x.Put(ctx, nil, r)
		return err
	})
	return change, err
}

// PauseRecurring is a method of Schedules.
func (c *Core) PauseRecurring(ctx context.Context, who Identity, name string) error {
	return c.recurring(ctx, who, "recurring.pause", name, func(x schedule.Schedules) error { return x.Pause(ctx, nil, name) })
}

// ResumeRecurring is a method of Schedules.
func (c *Core) ResumeRecurring(ctx context.Context, who Identity, name string) error {
	return c.recurring(ctx, who, "recurring.resume", name, func(x schedule.Schedules) error { return x.Resume(ctx, nil, name) })
}

// FireRecurring is a method of Schedules.
func (c *Core) FireRecurring(ctx context.Context, who Identity, name string) (id string, err error) {
	err = c.recurring(ctx, who, "recurring.fire", name, func(x schedule.Schedules) (err error) {
		id, err = x.Fire(ctx, nil, name)
		return err
	})
	return id, err
}

// DeleteRecurring is a method of Schedules.
func (c *Core) DeleteRecurring(ctx context.Context, who Identity, name string) error {
	return c.recurring(ctx, who, "recurring.delete", name, func(x schedule.Schedules) error { return x.Delete(ctx, nil, name) })
}

func (c *Core) recurring(ctx context.Context, who Identity, action, name string, do func(schedule.Schedules) error) error {
	s, err := c.store()
	if err != nil {
		return err
	}
	return c.recorded(ctx, who, Entry{Action: action, Target: name}, func() error { return do(s.Schedules()) })
}
