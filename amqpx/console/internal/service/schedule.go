package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
)

// MaxBatch is the largest number of tasks for one Schedule.
const MaxBatch = 1000

// NewTask is a task to write. If an equal task exists already, that is no error.
type NewTask struct {
	schedule.Task

	Replace bool            // overwrite a different task of the same id, whatever its status
	AnyDue  bool            // a task that differs only in its due instant is equal
	Unique  schedule.Unique // of a task with a UniqueKey
}

// UniqueEnded is the outcome of a task with a unique key that was scheduled before, by an equal
// call with its id, and has ended since: nothing was scheduled.
const UniqueEnded schedule.UniqueOutcome = "ended"

// ScheduleResult is the outcome for one task of a Schedule.
type ScheduleResult struct {
	Asked   string                 // the id that the task was given
	ID      string                 // of the task that stands
	Created bool                   // false: an equal task exists, or one of the unique key
	Outcome schedule.UniqueOutcome // of a task with a UniqueKey
	Err     error
}

// Schedule writes each of the tasks, or says in its result why not.
func (c *Core) Schedule(ctx context.Context, who Identity, tasks []NewTask) ([]ScheduleResult, error) {
	s, err := c.store()
	if err != nil {
		return nil, err
	}
	if len(tasks) > MaxBatch {
		return nil, &FieldError{"tasks", fmt.Sprintf("there are %d tasks; expected at most %d", len(tasks), MaxBatch)}
	}
	e := Entry{Action: "task.schedule", Detail: shown.Count(len(tasks), "task", "tasks")}
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
		for i, t := range tasks { // none was written
			out[i] = scheduleOne(ctx, s, t)
			if err := out[i].Err; err != nil && !ofTask(err) {
				return err
			}
		}
		if len(out) == 1 {
			return out[0].Err // for the audit
		}
		return nil
	})
	if err != nil && ofTask(err) {
		err = nil // it is in the result
	}
	return out, err
}

// ofTask reports whether an error is about one task, and not about the database.
func ofTask(err error) bool {
	return errors.Is(err, schedule.ErrExists) || errors.Is(err, schedule.ErrTask)
}

func scheduleOne(ctx context.Context, s *schedule.Store, t NewTask) (r ScheduleResult) {
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

// scheduleByID is what becomes of a task that was scheduled with err.
func scheduleByID(ctx context.Context, s *schedule.Store, t NewTask, err error) (created bool, _ error) {
	if !errors.Is(err, schedule.ErrExists) {
		return err == nil, err
	}
	have, gerr := s.Get(ctx, schedule.NoTx, t.ID)
	switch {
	// An equal task is overwritten if its due instant counts from now, or if it has ended.
	case gerr == nil && equal(have, t) && (!t.Replace || !t.AnyDue && (have.Status == schedule.StatusPending || have.Status == schedule.StatusRunning)):
		return false, nil
	case t.Replace:
		return true, s.Schedule(ctx, schedule.NoTx, t.Task, schedule.Replace())
	}
	return false, err
}

// equal reports whether an existing task was made by the same call. Headers that a hook of
// the store has added do not count.
func equal(have schedule.Task, t NewTask) bool {
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
	tags := func(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }
	return (due || t.AnyDue) && have.UniqueKey == t.UniqueKey && have.Queue == t.Queue && have.Exchange == t.Exchange && have.RoutingKey == t.RoutingKey &&
		bytes.Equal(have.Body, t.Body) && have.ContentType == t.ContentType && have.Type == t.Type && have.CorrelationID == t.CorrelationID &&
		have.Priority == t.Priority && have.ExpiresAfter == t.ExpiresAfter && slices.Equal(tags(have.Tags), tags(t.Tags))
}
