package schedule

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/recur"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// RecurringTasks reads and changes the recurring tasks of a store. As with the methods of Store, a change
// and its tasks take effect when the Executor's transaction commits, or immediately with NoTx. The zero value is not
// usable; use Store.Recurring.
type RecurringTasks struct{ s *Store }

// Recurring returns the store's recurring tasks.
func (s *Store) Recurring() RecurringTasks { return RecurringTasks{s} }

// Get returns the recurring task with the given name, or ErrNoSchedule.
func (x RecurringTasks) Get(ctx context.Context, ex Executor, name string) (Recurring, error) {
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

// schedulePage is the number of rows that List reads at a time.
const schedulePage = 100

// List iterates over all recurring tasks, sorted by name. It reads them page by page, without the bodies of their
// tasks. The iteration stops after an error.
func (x RecurringTasks) List(ctx context.Context, ex Executor) iter.Seq2[Recurring, error] {
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

// Change is the outcome of Put.
type Change string

// The outcomes of Put.
const (
	Created   Change = "created"
	Changed   Change = "changed"
	Unchanged Change = "unchanged"
)

var changes = map[recur.Change]Change{recur.Created: Created, recur.Changed: Changed, recur.Unchanged: Unchanged}

// lastRuns is the number of recurring tasks that LastRuns reads at a time.
const lastRuns = 50

// LastRuns returns, by name, the last occurrence of each of the given recurring tasks that was done, failed or expired,
// without its body and tags. Names without such an occurrence, or whose last occurrence has been purged, are left out.
func (x RecurringTasks) LastRuns(ctx context.Context, ex Executor, names []string) (map[string]TaskRow, error) {
	c, err := x.s.conn(ctx, ex)
	if err != nil {
		return nil, err
	}
	runs := map[string]TaskRow{}
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

// write calls change with a connection for ex, in a new transaction if ex is a database, and then wakes the loops that
// run on the database in virtual time. It prefixes errors with the parameter subject, such as "recurring task x",
// unless they already name the recurring task.
func (x RecurringTasks) write(ctx context.Context, ex Executor, subject string, change func(p *recur.Planner, c rows.Conn) error) error {
	err := x.s.db.Within(ctx, x.s.rawConn(ex), func(c rows.Conn) error {
		x.s.refresh(ctx, c)
		return change(x.s.planner, c)
	})
	polling.Wrote(x.s.db.DB)
	if err == nil {
		return nil
	}
	if _, named := errors.AsType[*recur.Error](err); named {
		return recurringError(err)
	}
	return fmt.Errorf("%s: %w", subject, err)
}

// writeOne runs write for a single recurring task.
func (x RecurringTasks) writeOne(ctx context.Context, ex Executor, name string, change func(p *recur.Planner, c rows.Conn) error) error {
	return x.write(ctx, ex, "recurring task "+name, change)
}

// checked returns the row of a valid recurring task, or an error.
func (x RecurringTasks) checked(r *Recurring) (*rows.Schedule, error) {
	s := r.scheduleRow()
	return s, recurringError(x.s.planner.Check(s))
}

// Add creates a recurring task, and the task of its next occurrence. It returns *RecurringError if the recurring task
// is invalid, and ErrScheduleExists if one with the same name exists. The transaction can continue after either error.
func (x RecurringTasks) Add(ctx context.Context, ex Executor, r Recurring) error {
	s, err := x.checked(&r)
	if err != nil {
		return err
	}
	return x.writeOne(ctx, ex, r.Name, func(p *recur.Planner, c rows.Conn) error { return p.Add(ctx, c, s) })
}

// Put creates a recurring task, or changes the existing one with the same name to match r. It may be called whenever a
// program starts, because an identical recurring task is left unchanged, and a paused one stays paused. A change
// withdraws the tasks that are not due yet, and the new rule applies immediately. Put returns *RecurringError if r is
// invalid.
func (x RecurringTasks) Put(ctx context.Context, ex Executor, r Recurring) (change Change, err error) {
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

// Edit changes a recurring task. The function change modifies the fields of the current one; a change of Name is
// ignored. Edit withdraws the tasks that are not due yet, and the new rule applies immediately. It returns
// ErrNoSchedule, *RecurringError, or the error of change. After an error, roll back the transaction of ex, so that
// nothing changes.
func (x RecurringTasks) Edit(ctx context.Context, ex Executor, name string, change func(r *Recurring) error) error {
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

// Pause withdraws the tasks of a recurring task that are not due yet, and stops the creation of new ones until Resume.
// It returns ErrNoSchedule if there is no recurring task with that name.
func (x RecurringTasks) Pause(ctx context.Context, ex Executor, name string) error {
	return x.writeOne(ctx, ex, name, func(p *recur.Planner, c rows.Conn) error { return p.SetPaused(ctx, c, name, true) })
}

// Resume lets a paused recurring task create tasks again. Occurrences that were due during the pause are skipped. It
// returns ErrNoSchedule if there is no recurring task with that name.
func (x RecurringTasks) Resume(ctx context.Context, ex Executor, name string) error {
	return x.writeOne(ctx, ex, name, func(p *recur.Planner, c rows.Conn) error { return p.SetPaused(ctx, c, name, false) })
}

// Delete deletes a recurring task, and withdraws its tasks that are not due yet. It returns ErrNoSchedule if there is
// no recurring task with that name.
func (x RecurringTasks) Delete(ctx context.Context, ex Executor, name string) error {
	return x.writeOne(ctx, ex, name, func(p *recur.Planner, c rows.Conn) error { return p.Delete(ctx, c, name) })
}

// RunNow schedules an additional occurrence that is due immediately, and returns the id of its task. The timetable does
// not change. RunNow works even if the recurring task is paused or Overlap would skip the occurrence. It returns
// ErrNoSchedule if there is no recurring task with that name.
func (x RecurringTasks) RunNow(ctx context.Context, ex Executor, name string) (id string, err error) {
	now, err := x.s.nowIn(ctx, ex)
	if err != nil {
		return "", fmt.Errorf("running recurring task %q: %w", name, err)
	}
	now = now.Truncate(time.Millisecond)
	err = x.writeOne(ctx, ex, name, func(p *recur.Planner, c rows.Conn) error {
		t, err := p.Extra(ctx, c, name, now)
		if err != nil {
			return err
		}
		id = t.ID
		return x.s.insert(ctx, c, []*rows.Task{t}, rows.Refuse)
	})
	if err != nil {
		return "", err
	}
	x.s.poller.Due(x.s.db.DB, rows.Millis(now))
	return id, nil
}

// originConfig is the Origin of recurring tasks that Apply wrote.
const originConfig = "config"

// Applied is the result of Apply: the names of the recurring tasks by outcome.
type Applied struct {
	Created, Changed, Unchanged []string
	// Unlisted contains the names that were applied earlier and are no longer in the list. They continue to recur. To
	// stop one, pause or delete it.
	Unlisted []string
}

// Apply calls Put for a whole list, such as the list in a configuration file, in one transaction. It deletes and pauses
// nothing, because another program may have a different list, and an older version of this program may still be
// running. It returns *RecurringError if one of the recurring tasks is invalid.
func (x RecurringTasks) Apply(ctx context.Context, ex Executor, list []Recurring) (done Applied, err error) {
	listed := map[string]bool{}
	all := make([]*rows.Schedule, len(list))
	for i := range list {
		if all[i], err = x.checked(&list[i]); err != nil {
			return Applied{}, err
		}
		all[i].Origin = originConfig
		if listed[list[i].Name] {
			return Applied{}, &RecurringError{Name: list[i].Name, Field: "Name", Reason: "occurs twice in the list"}
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
		applied, err := c.ScheduleNames(ctx, originConfig)
		for _, name := range applied {
			if !listed[name] {
				done.Unlisted = append(done.Unlisted, name)
			}
		}
		return err
	})
	return done, err
}
