package service

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// MaxBatch is the maximum number of tasks in one call to Schedule.
const MaxBatch = 1000

// NewTask is a task to schedule. It is not an error if an equal task already exists.
type NewTask struct {
	schedule.Task

	Replace bool            // overwrite a different task with the same id, whatever its status
	AnyDue  bool            // a task that differs only in its due time counts as equal
	Unique  schedule.Unique // the options of a task with a UniqueKey
}

// UniqueEnded is the outcome if an equal request with the same id has already scheduled this task under its unique key,
// and the task has ended since. Nothing is scheduled.
const UniqueEnded schedule.UniqueOutcome = "ended"

// ScheduleResult is the outcome of Schedule for one task.
type ScheduleResult struct {
	Asked   string                 // the id in the request
	ID      string                 // the id of the task that exists now
	Created bool                   // false if an equal task, or one with the same unique key, exists
	Outcome schedule.UniqueOutcome // set for a task with a UniqueKey
	Err     error
}

// Schedule writes the tasks. If a task is rejected, its result contains the error. Schedule itself returns errors that
// concern the whole call, such as the database's.
func (c *Core) Schedule(ctx context.Context, who Identity, tasks []NewTask) ([]ScheduleResult, error) {
	s, err := c.store()
	if err != nil {
		return nil, err
	}
	if len(tasks) > MaxBatch {
		return nil, &change.FieldError{Field: "tasks", Reason: fmt.Sprintf("there are %d tasks; expected at most %d", len(tasks), MaxBatch)}
	}
	e := change.Entry{Action: "task.schedule", Detail: shown.Count(len(tasks), "task", "tasks")}
	if len(tasks) == 1 {
		e.Target, e.Detail = tasks[0].ID, "due "+shown.Instant(tasks[0].DeliverAt)
	}
	out := make([]ScheduleResult, len(tasks))
	err = c.recorded(ctx, who, e, func() error {
		batch := make([]schedule.Task, len(tasks))
		for i, t := range tasks {
			batch[i] = t.Task
			out[i] = ScheduleResult{Asked: t.ID, ID: t.ID, Created: true}
		}
		if !slices.ContainsFunc(tasks, func(t NewTask) bool { return t.UniqueKey != "" }) {
			if err := s.ScheduleBatch(ctx, schedule.NoTx, batch); err == nil || !ofTask(err) {
				return err
			}
		}
		for i, t := range tasks { // the batch was rolled back
			out[i] = scheduleOne(ctx, s, t)
			if err := out[i].Err; err != nil && !ofTask(err) {
				return err
			}
		}
		if len(out) == 1 {
			return out[0].Err // so that the audit records the error
		}
		return nil
	})
	if err != nil && ofTask(err) {
		err = nil // the result contains the error
	}
	return out, err
}

// ofTask reports whether an error is about a single task rather than the database.
func ofTask(err error) bool {
	return errors.Is(err, schedule.ErrExists) || errors.Is(err, schedule.ErrInvalidTask)
}

func scheduleOne(ctx context.Context, s *taskview.Store, t NewTask) (r ScheduleResult) {
	r.Asked, r.ID = t.ID, t.ID
	if t.UniqueKey == "" {
		r.Created, r.Err = scheduleByID(ctx, s, t, s.Schedule(ctx, schedule.NoTx, t.Task))
		return r
	}
	unique, err := s.ScheduleUnique(ctx, schedule.NoTx, t.Task, t.Unique)
	if err != nil {
		if r.Created, r.Err = scheduleByID(ctx, s, t, err); r.Err == nil {
			r.Outcome = UniqueEnded
		}
		return r
	}
	return ScheduleResult{Asked: t.ID, ID: unique.ID, Created: unique.Outcome == schedule.UniqueCreated, Outcome: unique.Outcome}
}

// scheduleByID returns the outcome of scheduling a task by its id, if the first attempt failed with err.
func scheduleByID(ctx context.Context, s *taskview.Store, t NewTask, err error) (created bool, _ error) {
	if !errors.Is(err, schedule.ErrExists) {
		return err == nil, err
	}
	have, gerr := s.Get(ctx, schedule.NoTx, t.ID)
	switch {
	// With Replace, an equal task is replaced only if its due time depends on now, or if it has ended.
	case gerr == nil && equal(have, t) && (!t.Replace || !t.AnyDue && (have.Status == schedule.StatusPending || have.Status == schedule.StatusRunning)):
		return false, nil
	case t.Replace:
		again := t.Task
		again.Replace = true
		return true, s.Schedule(ctx, schedule.NoTx, again)
	}
	return false, err
}

// equal reports whether an existing task was created by an equal request. It ignores headers that a hook of the store
// may have added.
func equal(have schedule.TaskRow, t NewTask) bool {
	due := have.DeliverAt.Equal(t.DeliverAt.Add(time.Millisecond - 1).Truncate(time.Millisecond))
	for name, value := range t.Headers {
		if have.Headers[name] != value {
			return false
		}
	}
	for name := range have.Headers {
		if _, given := t.Headers[name]; !given && !harmless(name) && name != "tracestate" && name != "baggage" {
			return false
		}
	}
	// The rest must be the same, apart from the order of the tags.
	a, b := have.Task, t.Task
	for _, x := range []*schedule.Task{&a, &b} {
		x.DeliverAt, x.Headers, x.Replace = time.Time{}, nil, false
		x.Body, x.Tags = append([]byte{}, x.Body...), slices.Compact(slices.Sorted(slices.Values(x.Tags)))
	}
	return (due || t.AnyDue) && reflect.DeepEqual(a, b)
}
