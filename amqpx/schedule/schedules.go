package schedule

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/pace"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/recur"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// Schedules are the recurring tasks of a store. A method's Executor is as that of
// the store's: what it changes, its tasks included, takes effect when that
// commits.
type Schedules struct{ s *Store }

// Schedules returns the store's recurring tasks.
func (s *Store) Schedules() Schedules { return Schedules{s} }

// Get reads one. Errors: ErrNoSchedule.
func (x Schedules) Get(ctx context.Context, ex Executor, name string) (Recurring, error) {
	c, err := x.s.conn(ctx, ex)
	if err != nil {
		return Recurring{}, err
	}
	r, err := recur.Get(ctx, c, name)
	if err != nil {
		return Recurring{}, fmt.Errorf("recurring task %s: %w", name, err)
	}
	return recurringOf(r), nil
}

// schedulePage is how many rows List reads at a time.
const schedulePage = 100

// List iterates over all of them in the order of their names, page by page, without
// the tasks' bodies. The iteration ends after an error.
func (x Schedules) List(ctx context.Context, ex Executor) iter.Seq2[Recurring, error] {
	return func(yield func(Recurring, error) bool) {
		c, err := x.s.conn(ctx, ex)
		for after := ""; err == nil; {
			var page []*rows.Schedule
			page, err = c.Schedules(ctx, after, schedulePage)
			for _, r := range page {
				if !yield(recurringOf(r), nil) {
					return
				}
				after = r.Name
			}
			if err == nil && len(page) < schedulePage {
				return
			}
		}
		yield(Recurring{}, fmt.Errorf("listing recurring tasks: %w", err))
	}
}

// Change is what a write did.
type Change string

// The changes there are.
const (
	Created   Change = "created"
	Changed   Change = "changed"
	Unchanged Change = "unchanged"
)

var changes = map[recur.Change]Change{recur.Created: Created, recur.Changed: Changed, recur.Unchanged: Unchanged}

// lastRuns is how many recurring tasks LastRuns reads at a time.
const lastRuns = 50

// LastRuns returns, by the names of recurring tasks, the last occurrence of each that was
// done, failed or expired, without its body and tags, for as long as tasks are kept after
// their end. Names without one are left out.
func (x Schedules) LastRuns(ctx context.Context, ex Executor, names []string) (map[string]Task, error) {
	c, err := x.s.conn(ctx, ex)
	if err != nil {
		return nil, err
	}
	runs := map[string]Task{}
	for some := range slices.Chunk(names, lastRuns) {
		list, err := c.LastRuns(ctx, some)
		if err != nil {
			return nil, fmt.Errorf("reading the last runs of recurring tasks: %w", err)
		}
		for _, t := range list {
			name, _, _ := strings.Cut(t.ID, "@")
			runs[name] = taskOf(t)
		}
	}
	return runs, nil
}

// write runs do in ex, in a transaction of its own if that is a database.
func (x Schedules) write(ctx context.Context, ex Executor, what string, do func(p *recur.Planner, c rows.Conn) error) error {
	err := x.s.db.Within(ctx, x.s.on(ex), func(c rows.Conn) error {
		x.s.refresh(ctx, c)
		return do(x.s.planner, c)
	})
	pace.Wrote(x.s.db.DB)
	if err == nil {
		return nil
	}
	if _, named := errors.AsType[*recur.Error](err); named {
		return recurringError(err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// writeOne is write for one recurring task.
func (x Schedules) writeOne(ctx context.Context, ex Executor, name string, do func(p *recur.Planner, c rows.Conn) error) error {
	return x.write(ctx, ex, "recurring task "+name, do)
}

// checked is the row of a recurring task that can be written.
func (x Schedules) checked(r *Recurring) (*rows.Schedule, error) {
	s := r.scheduleRow()
	return s, recurringError(x.s.planner.Check(s))
}

// Add creates one, and the task of its next occurrence. Errors: *RecurringError,
// ErrScheduleExists (the transaction can continue after both).
func (x Schedules) Add(ctx context.Context, ex Executor, r Recurring) error {
	s, err := x.checked(&r)
	if err != nil {
		return err
	}
	return x.writeOne(ctx, ex, r.Name, func(p *recur.Planner, c rows.Conn) error { return p.Add(ctx, c, s) })
}

// Put creates one, or changes the one of that name so that it says the same. It
// may be called at every start of a program: what is the same stays untouched, and
// one that is paused stays paused. A change withdraws the tasks that are not due
// yet and goes on from now. Errors: *RecurringError.
func (x Schedules) Put(ctx context.Context, ex Executor, r Recurring) (change Change, err error) {
	s, err := x.checked(&r)
	if err != nil {
		return "", err
	}
	err = x.writeOne(ctx, ex, r.Name, func(p *recur.Planner, c rows.Conn) error {
		done, err := p.Put(ctx, c, s)
		change = changes[done]
		return err
	})
	return change, err
}

// Edit changes one: change gets it as it is and sets what is to be different, its
// Name excepted. It withdraws the tasks that are not due yet and goes on from now.
// Errors: ErrNoSchedule, *RecurringError, and those of change, which leave all as it
// was if the caller rolls back.
func (x Schedules) Edit(ctx context.Context, ex Executor, name string, change func(r *Recurring) error) error {
	return x.writeOne(ctx, ex, name, func(p *recur.Planner, c rows.Conn) error {
		return p.Edit(ctx, c, name, func(s *rows.Schedule) error {
			r := recurringOf(s)
			if err := change(&r); err != nil {
				return err
			}
			*s = *r.scheduleRow()
			return nil
		})
	})
}

// Pause withdraws the tasks that are not due yet, and makes no more. Errors:
// ErrNoSchedule.
func (x Schedules) Pause(ctx context.Context, ex Executor, name string) error {
	return x.writeOne(ctx, ex, name, func(p *recur.Planner, c rows.Conn) error { return p.SetPaused(ctx, c, name, true) })
}

// Resume goes on from now; what would have happened meanwhile does not. Errors:
// ErrNoSchedule.
func (x Schedules) Resume(ctx context.Context, ex Executor, name string) error {
	return x.writeOne(ctx, ex, name, func(p *recur.Planner, c rows.Conn) error { return p.SetPaused(ctx, c, name, false) })
}

// Delete withdraws the tasks that are not due yet, and deletes it. Errors:
// ErrNoSchedule.
func (x Schedules) Delete(ctx context.Context, ex Executor, name string) error {
	return x.writeOne(ctx, ex, name, func(p *recur.Planner, c rows.Conn) error { return p.Delete(ctx, c, name) })
}

// Fire schedules one occurrence more, due at once, and returns its task's id. The
// timetable goes on as it was; a pause and Overlap do not keep it. Errors:
// ErrNoSchedule.
func (x Schedules) Fire(ctx context.Context, ex Executor, name string) (id string, err error) {
	now := x.s.nowIn(ctx, ex).Truncate(time.Millisecond)
	err = x.writeOne(ctx, ex, name, func(p *recur.Planner, c rows.Conn) error {
		t, err := p.Fired(ctx, c, name, now)
		if err != nil {
			return err
		}
		id = t.ID
		return x.s.insert(ctx, c, []*rows.Task{t}, rows.Refuse)
	})
	if err != nil {
		return "", err
	}
	x.s.pace.Due(x.s.db.DB, rows.Millis(now))
	return id, nil
}

// OriginConfig is the Origin of what Apply wrote.
const OriginConfig = "config"

// Applied is what Apply did, by names.
type Applied struct {
	Created, Changed, Unchanged []string
	// Unlisted were applied earlier and are not in the list any more. They go on; to
	// end one, Pause or Delete it.
	Unlisted []string
}

// Apply puts a whole list, such as that of a configuration file, in one
// transaction. It deletes and pauses nothing, because another program may have a
// list of its own, and an older version of this one may still be running. Errors:
// *RecurringError.
func (x Schedules) Apply(ctx context.Context, ex Executor, list []Recurring) (done Applied, err error) {
	listed := map[string]bool{}
	all := make([]*rows.Schedule, len(list))
	for i := range list {
		if all[i], err = x.checked(&list[i]); err != nil {
			return Applied{}, err
		}
		all[i].Origin = OriginConfig
		if listed[list[i].Name] {
			return Applied{}, &RecurringError{Name: list[i].Name, Field: "Name", Reason: "is twice in one list"}
		}
		listed[list[i].Name] = true
	}
	err = x.write(ctx, ex, "applying recurring tasks", func(p *recur.Planner, c rows.Conn) error {
		done = Applied{}
		names := map[recur.Change]*[]string{recur.Created: &done.Created, recur.Changed: &done.Changed, recur.Unchanged: &done.Unchanged}
		for _, s := range all {
			change, err := p.Put(ctx, c, s)
			if err != nil {
				return fmt.Errorf("recurring task %s: %w", s.Name, err)
			}
			*names[change] = append(*names[change], s.Name)
		}
		applied, err := c.ScheduleNames(ctx, OriginConfig)
		for _, name := range applied {
			if !listed[name] {
				done.Unlisted = append(done.Unlisted, name)
			}
		}
		return err
	})
	return done, err
}
