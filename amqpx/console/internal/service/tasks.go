package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/amqpx/trace"
)

// MaxPage is how many tasks a page may have, MaxBatch how many tasks one Schedule.
const (
	MaxPage  = 1000
	MaxBatch = 1000
)

// Tasks is a method of Tasks.
func (c *Core) Tasks(ctx context.Context, who Identity, f schedule.Filter) (TaskPage, error) {
	s, err := c.store()
	if err != nil {
		return TaskPage{}, err
	}
	switch {
	case f.Limit < 1 || f.Limit > MaxPage:
		return TaskPage{}, &FieldError{"limit", fmt.Sprintf("%d; expected 1 to %d", f.Limit, MaxPage)}
	case f.Header != "" && !who.Role.May(RoleOperator):
		return TaskPage{}, fmt.Errorf("filter by header: %w", ErrForbidden)
	}
	ctx, cancel, err := c.bounded(ctx)
	defer cancel()
	if err != nil {
		return TaskPage{}, err
	}
	limit := f.Limit
	f.Limit, f.WithoutBody = limit+1, true
	page := TaskPage{Tasks: []schedule.Task{}}
	for t, err := range s.List(ctx, nil, f) {
		if err != nil {
			return TaskPage{}, slow(ctx, err)
		}
		if len(page.Tasks) == limit {
			page.Next = page.Tasks[limit-1].Cursor()
			break
		}
		veil(who, &t)
		page.Tasks = append(page.Tasks, t)
	}
	return page, nil
}

var errSlow = errors.New("the database took too long; narrow the filter, by a queue, a status or due instants")

// answering is how long the database may take to answer at all.
const answering = 3 * time.Second

// answers returns nil where the database answers, or there is none.
func (c *Core) answers(ctx context.Context) error {
	if c.cfg.Store == nil {
		return nil
	}
	return c.cfg.Store.Ping(ctx, answering)
}

// bounded returns a context for what a page reads, and an error where the database does
// not answer at all.
func (c *Core) bounded(ctx context.Context) (context.Context, context.CancelFunc, error) {
	err := c.answers(ctx)
	ctx, cancel := context.WithTimeoutCause(ctx, slowest, errSlow)
	return ctx, cancel, err
}

// slow explains the error of a statement that took too long.
func slow(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errSlow) {
		return errSlow
	}
	return err
}

// Count is a method of Tasks.
func (c *Core) Count(ctx context.Context, f schedule.Filter, limit int64) (n int64, more bool, err error) {
	s, err := c.store()
	if err != nil {
		return 0, false, err
	}
	ctx, cancel, err := c.bounded(ctx)
	defer cancel()
	if err != nil {
		return 0, false, err
	}
	if n, err = s.CountUpTo(ctx, nil, f, limit); err != nil {
		return 0, false, slow(ctx, err)
	}
	if limit > 0 && n > limit {
		return limit, true, nil
	}
	return n, false, nil
}

// Task is a method of Tasks.
func (c *Core) Task(ctx context.Context, who Identity, id string) (TaskDetail, error) {
	s, err := c.store()
	if err != nil {
		return TaskDetail{}, err
	}
	ctx, cancel, err := c.bounded(ctx)
	defer cancel()
	if err != nil {
		return TaskDetail{}, err
	}
	var d TaskDetail
	if d.Task, err = s.Get(ctx, nil, id); err != nil {
		return TaskDetail{}, slow(ctx, err)
	}
	if d.Effects, err = s.Effects(ctx, nil, id); err != nil {
		return TaskDetail{}, slow(ctx, err)
	}
	t := trace.Trace{ID: id, At: time.Now(), Task: &d.Task, TasksKnown: true, Effects: d.Effects}
	c.looks.mu.Lock()
	last := c.looks.last
	c.looks.mu.Unlock()
	if last != nil {
		for i, have := range last.Status.Destinations {
			if have.Name == d.Task.Destination().String() {
				t.Destination = &last.Status.Destinations[i]
			}
		}
	}
	scopes := []string{}
	if d.Task.Queue != "" {
		scopes = append(scopes, d.Task.Queue)
	}
	for _, e := range d.Effects {
		scopes = append(scopes, e.Queue)
	}
	slices.Sort(scopes)
	d.Records, err = idempotency.Find(ctx, c.cfg.DB, id, slices.Compact(scopes)...)
	if err != nil && !errors.Is(err, idempotency.ErrNoTable) {
		return TaskDetail{}, slow(ctx, err)
	}
	t.Records, t.RecordsKnown = d.Records, err == nil
	d.Why = t.Explain()
	if parts := strings.Split(d.Task.Headers["traceparent"], "-"); len(parts) == 4 {
		d.TraceID = parts[1]
	}
	if d.Audit, err = c.entries(ctx, who, id, "", 50); err != nil {
		return TaskDetail{}, slow(ctx, err)
	}
	veil(who, &d.Task)
	return d, nil
}

// Trace is a method of Tasks.
func (c *Core) Trace(ctx context.Context, who Identity, id string) (trace.Trace, error) {
	src, err := c.source(ctx)
	if err != nil {
		if c.cfg.Store == nil {
			return trace.Trace{}, err
		}
		src = blind(err)
	}
	src.Tasks, src.Patience = c.cfg.Store, patience
	ctx, cancel := context.WithTimeout(ctx, 3*patience)
	defer cancel()
	t, err := trace.Take(ctx, id, trace.Source{Status: src, DB: c.cfg.DB})
	if err != nil {
		return t, err
	}
	if t.Task != nil {
		veil(who, t.Task)
	}
	veilDead(who, t.Lying)
	t.Unseen = veilUnseen(who, t.Unseen)
	return t, nil
}

// Schedule is a method of Tasks.
func (c *Core) Schedule(ctx context.Context, who Identity, tasks []NewTask) ([]ScheduleResult, error) {
	s, err := c.store()
	if err != nil {
		return nil, err
	}
	if len(tasks) > MaxBatch {
		return nil, &FieldError{"tasks", fmt.Sprintf("%d tasks; expected at most %d", len(tasks), MaxBatch)}
	}
	e := Entry{Action: "task.schedule", Detail: fmt.Sprintf("%d tasks", len(tasks))}
	if len(tasks) == 1 {
		e.Target, e.Detail = tasks[0].ID, "due "+shown.Instant(tasks[0].DeliverAt)
	}
	out := make([]ScheduleResult, len(tasks))
	err = c.recorded(ctx, who, e, func() error {
		all := make([]schedule.Task, len(tasks))
		for i, t := range tasks {
			all[i] = t.Task
			out[i] = ScheduleResult{ID: t.ID, Created: true}
		}
		if err := s.ScheduleBatch(ctx, nil, all); err == nil || !callers(err) {
			return err
		}
		for i, t := range tasks { // none was written
			out[i].ID = t.ID
			out[i].Created, out[i].Err = scheduleOne(ctx, s, t)
			if err := out[i].Err; err != nil && !callers(err) {
				return err
			}
		}
		if len(out) == 1 {
			return out[0].Err // for the audit
		}
		return nil
	})
	if err != nil && callers(err) {
		err = nil // it is in the result
	}
	return out, err
}

// callers tells whether an error is about one task, and not about the database.
func callers(err error) bool {
	return errors.Is(err, schedule.ErrExists) || errors.Is(err, schedule.ErrTask)
}

func scheduleOne(ctx context.Context, s *schedule.Store, t NewTask) (created bool, err error) {
	err = s.Schedule(ctx, nil, t.Task)
	if !errors.Is(err, schedule.ErrExists) {
		return err == nil, err
	}
	have, gerr := s.Get(ctx, nil, t.ID)
	switch {
	case gerr == nil && same(have, t) && (!t.Replace || !again(have, t)):
		return false, nil
	case t.Replace:
		return true, s.Schedule(ctx, nil, t.Task, schedule.Replace())
	}
	return false, err
}

// again reports whether Replace schedules what is there and says the same once more:
// it is due from now on, or what is there has ended.
func again(have schedule.Task, t NewTask) bool {
	return t.AnyDue || have.Status != schedule.StatusPending && have.Status != schedule.StatusRunning
}

// same tells whether a task that is there was made by the same call. Headers that a
// hook of the store has added do not count.
func same(have schedule.Task, t NewTask) bool {
	due := have.DeliverAt.Equal(t.DeliverAt.Add(time.Millisecond - 1).Truncate(time.Millisecond))
	for name, value := range t.Headers {
		if have.Headers[name] != value {
			return false
		}
	}
	for name := range maps.Keys(have.Headers) {
		if _, given := t.Headers[name]; !given && !harmless(name) && name != "tracestate" && name != "baggage" {
			return false
		}
	}
	tags := func(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }
	return (due || t.AnyDue) && have.Queue == t.Queue && have.Exchange == t.Exchange && have.RoutingKey == t.RoutingKey &&
		bytes.Equal(have.Body, t.Body) && have.ContentType == t.ContentType && have.Type == t.Type && have.CorrelationID == t.CorrelationID &&
		have.Priority == t.Priority && have.ExpiresAfter == t.ExpiresAfter && slices.Equal(tags(have.Tags), tags(t.Tags))
}

// Cancel is a method of Tasks.
func (c *Core) Cancel(ctx context.Context, who Identity, id string) error {
	return c.task(ctx, who, Entry{Action: "task.cancel", Target: id}, func(s *schedule.Store) error { return s.Cancel(ctx, nil, id) })
}

// Move is a method of Tasks.
func (c *Core) Move(ctx context.Context, who Identity, id string, to time.Time) error {
	return c.task(ctx, who, Entry{Action: "task.move", Target: id, Detail: "to " + shown.Instant(to)}, func(s *schedule.Store) error { return s.Reschedule(ctx, nil, id, to) })
}

// MoveBy is a method of Tasks.
func (c *Core) MoveBy(ctx context.Context, who Identity, id string, by time.Duration) error {
	return c.task(ctx, who, Entry{Action: "task.move", Target: id, Detail: "by " + by.String()}, func(s *schedule.Store) error { return s.RescheduleBy(ctx, nil, id, by) })
}

// Fire is a method of Tasks.
func (c *Core) Fire(ctx context.Context, who Identity, id string) error {
	return c.task(ctx, who, Entry{Action: "task.fire", Target: id}, func(s *schedule.Store) error { return s.FireNow(ctx, nil, id) })
}

// Revive is a method of Tasks.
func (c *Core) Revive(ctx context.Context, who Identity, id string, at time.Time) error {
	return c.task(ctx, who, Entry{Action: "task.revive", Target: id, Detail: "due " + shown.Instant(at)}, func(s *schedule.Store) error { return s.Revive(ctx, nil, id, at) })
}

// task does something to one task.
func (c *Core) task(ctx context.Context, who Identity, e Entry, do func(*schedule.Store) error) error {
	s, err := c.store()
	if err != nil {
		return err
	}
	return c.recorded(ctx, who, e, func() error { return do(s) })
}
