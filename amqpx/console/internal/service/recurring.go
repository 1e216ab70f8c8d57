package service

import (
	"context"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// maxRecurring bounds a list of recurring tasks.
const maxRecurring = 10_000

// Recurring returns all recurring tasks, at most 10,000.
func (c *Core) Recurring(ctx context.Context, who Identity) ([]schedule.Recurring, error) {
	return readStore(ctx, c, func(ctx context.Context, s *schedule.Store) ([]schedule.Recurring, error) {
		list := []schedule.Recurring{}
		for r, err := range s.Schedules().List(ctx, schedule.NoTx) {
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

// LastRuns returns the last occurrence of each recurring task that has come to an end, by name.
func (c *Core) LastRuns(ctx context.Context, names []string) (map[string]schedule.Task, error) {
	return readStore(ctx, c, func(ctx context.Context, s *schedule.Store) (map[string]schedule.Task, error) {
		return s.Schedules().LastRuns(ctx, schedule.NoTx, names)
	})
}

// RecurringTask returns one recurring task.
func (c *Core) RecurringTask(ctx context.Context, who Identity, name string) (schedule.Recurring, error) {
	return readStore(ctx, c, func(ctx context.Context, s *schedule.Store) (schedule.Recurring, error) {
		r, err := s.Schedules().Get(ctx, schedule.NoTx, name)
		veilTask(who, &r.Task)
		return r, err
	})
}

// PutRecurring creates a recurring task, or changes the one of that name.
func (c *Core) PutRecurring(ctx context.Context, who Identity, r schedule.Recurring) (change schedule.Change, err error) {
	err = c.changeRecurring(ctx, who, "put", r.Name, func(x schedule.Schedules) (err error) {
		change, err = x.Put(ctx, schedule.NoTx, r)
		return err
	})
	return change, err
}

// PauseRecurring withdraws the occurrences that are not due yet, and makes no more.
func (c *Core) PauseRecurring(ctx context.Context, who Identity, name string) error {
	return c.changeRecurring(ctx, who, "pause", name, func(x schedule.Schedules) error { return x.Pause(ctx, schedule.NoTx, name) })
}

// ResumeRecurring makes occurrences again, from now on.
func (c *Core) ResumeRecurring(ctx context.Context, who Identity, name string) error {
	return c.changeRecurring(ctx, who, "resume", name, func(x schedule.Schedules) error { return x.Resume(ctx, schedule.NoTx, name) })
}

// FireRecurring schedules one more occurrence, due now, and returns the id of its task.
func (c *Core) FireRecurring(ctx context.Context, who Identity, name string) (id string, err error) {
	err = c.changeRecurring(ctx, who, "fire", name, func(x schedule.Schedules) (err error) {
		id, err = x.Fire(ctx, schedule.NoTx, name)
		return err
	})
	return id, err
}

// DeleteRecurring deletes a recurring task and withdraws what is not due yet.
func (c *Core) DeleteRecurring(ctx context.Context, who Identity, name string) error {
	return c.changeRecurring(ctx, who, "delete", name, func(x schedule.Schedules) error { return x.Delete(ctx, schedule.NoTx, name) })
}

func (c *Core) changeRecurring(ctx context.Context, who Identity, action, name string, do func(schedule.Schedules) error) error {
	s, err := c.store()
	if err != nil {
		return err
	}
	return c.recorded(ctx, who, Entry{Action: "recurring." + action, Target: name}, func() error { return do(s.Schedules()) })
}
