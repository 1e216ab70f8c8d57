package change

import (
	"context"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// AddRecurring creates a recurring task.
func (o Operator) AddRecurring(ctx context.Context, r schedule.Recurring) error {
	return o.recurring(ctx, "add", r.Name, func(x schedule.RecurringTasks) error { return x.Add(ctx, schedule.NoTx, r) })
}

// EditRecurring changes a recurring task.
func (o Operator) EditRecurring(ctx context.Context, name string, edit func(*schedule.Recurring) error) error {
	return o.recurring(ctx, "edit", name, func(x schedule.RecurringTasks) error { return x.Edit(ctx, schedule.NoTx, name, edit) })
}

// PutRecurring creates a recurring task, or changes the existing one with this name.
func (o Operator) PutRecurring(ctx context.Context, r schedule.Recurring) (change schedule.Change, err error) {
	err = o.recurring(ctx, "put", r.Name, func(x schedule.RecurringTasks) (err error) {
		change, err = x.Put(ctx, schedule.NoTx, r)
		return err
	})
	return change, err
}

// PauseRecurring withdraws the occurrences that are not due yet, and schedules no more.
func (o Operator) PauseRecurring(ctx context.Context, name string) error {
	return o.recurring(ctx, "pause", name, func(x schedule.RecurringTasks) error { return x.Pause(ctx, schedule.NoTx, name) })
}

// ResumeRecurring schedules occurrences again, starting from now.
func (o Operator) ResumeRecurring(ctx context.Context, name string) error {
	return o.recurring(ctx, "resume", name, func(x schedule.RecurringTasks) error { return x.Resume(ctx, schedule.NoTx, name) })
}

// RunRecurring schedules one additional occurrence, due now, and returns the id of its task.
func (o Operator) RunRecurring(ctx context.Context, name string) (id string, err error) {
	err = o.recurring(ctx, "run", name, func(x schedule.RecurringTasks) (err error) {
		id, err = x.RunNow(ctx, schedule.NoTx, name)
		return err
	})
	return id, err
}

// DeleteRecurring deletes a recurring task and withdraws the occurrences that are not due yet.
func (o Operator) DeleteRecurring(ctx context.Context, name string) error {
	return o.recurring(ctx, "delete", name, func(x schedule.RecurringTasks) error { return x.Delete(ctx, schedule.NoTx, name) })
}

func (o Operator) recurring(ctx context.Context, verb, name string, do func(x schedule.RecurringTasks) error) error {
	return o.Record(ctx, Entry{Action: "recurring." + verb, Target: name}, func() error { return do(o.Store.Recurring()) })
}
