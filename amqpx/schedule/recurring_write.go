package schedule

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Change is what a write did.
type Change string

// The changes there are.
const (
	Created   Change = "created"
	Changed   Change = "changed"
	Unchanged Change = "unchanged"
)

// within runs do in ex, in a transaction of its own if that is a database.
func (x Schedules) within(ctx context.Context, ex Executor, what string, do func(c sqldb.Conn, d Dialect) error) error {
	c := x.s.on(ex)
	run := func(c sqldb.Conn) error {
		d, err := x.s.dialect.Resolve(ctx, c)
		if err != nil {
			return err
		}
		return do(c, d)
	}
	var err error
	if db, ok := c.(sqldb.DB); ok {
		err = sqldb.Transact(ctx, db, nil, func(tx sqldb.Tx) error { return run(tx) })
	} else {
		err = run(c)
	}
	wrote(x.s.db)
	if _, named := errors.AsType[*RecurringError](err); err == nil || named {
		return err
	}
	return fmt.Errorf("%s: %w", what, sqldb.Explain(err))
}

// of names a recurring task in an error.
func of(name string) string { return "recurring task " + name }

// Add creates one, and the task of its next occurrence. Errors: *RecurringError,
// ErrScheduleExists (the transaction can continue after both).
func (x Schedules) Add(ctx context.Context, ex Executor, r Recurring) error {
	if err := x.check(&r); err != nil {
		return err
	}
	return x.within(ctx, ex, of(r.Name), func(c sqldb.Conn, d Dialect) error {
		created, err := x.insert(ctx, c, d, r)
		if err == nil && !created {
			return ErrScheduleExists
		}
		return err
	})
}

// Put creates one, or changes the one of that name so that it says the same. It
// may be called at every start of a program: what is the same stays untouched, and
// one that is paused stays paused. A change withdraws the tasks that are not due
// yet and goes on from now. Errors: *RecurringError.
func (x Schedules) Put(ctx context.Context, ex Executor, r Recurring) (Change, error) {
	if err := x.check(&r); err != nil {
		return "", err
	}
	var change Change
	err := x.within(ctx, ex, of(r.Name), func(c sqldb.Conn, d Dialect) error {
		var err error
		change, err = x.put(ctx, c, d, r)
		return err
	})
	return change, err
}

func (x Schedules) put(ctx context.Context, c sqldb.Conn, d Dialect, r Recurring) (Change, error) {
	old, err := x.get(ctx, c, d, r.Name)
	switch {
	case errors.Is(err, ErrNoSchedule):
		created, err := x.insert(ctx, c, d, r)
		if err != nil || created {
			return Created, err
		}
	case err != nil:
		return "", err
	case old.bad == nil && old.Recurring.same(&r) && old.Origin == r.Origin:
		return Unchanged, nil
	}
	return Changed, x.edit(ctx, c, d, r.Name, func(old *Recurring) error {
		r.Paused = old.Paused
		*old = r
		return nil
	})
}

// Edit changes one: change gets it as it is and sets what is to be different, its
// Name excepted. It withdraws the tasks that are not due yet and goes on from now.
// Errors: ErrNoSchedule, *RecurringError, and those of change, which leave all as it
// was if the caller rolls back.
func (x Schedules) Edit(ctx context.Context, ex Executor, name string, change func(r *Recurring) error) error {
	return x.within(ctx, ex, of(name), func(c sqldb.Conn, d Dialect) error { return x.edit(ctx, c, d, name, change) })
}

// Pause withdraws the tasks that are not due yet, and makes no more. Errors:
// ErrNoSchedule.
func (x Schedules) Pause(ctx context.Context, ex Executor, name string) error {
	return x.paused(ctx, ex, name, true)
}

// Resume goes on from now; what would have happened meanwhile does not. Errors:
// ErrNoSchedule.
func (x Schedules) Resume(ctx context.Context, ex Executor, name string) error {
	return x.paused(ctx, ex, name, false)
}

func (x Schedules) paused(ctx context.Context, ex Executor, name string, paused bool) error {
	return x.within(ctx, ex, of(name), func(c sqldb.Conn, d Dialect) error {
		if _, err := x.lock(ctx, c, d, name); err != nil {
			return err
		}
		value := 0
		if paused {
			value = 1
		}
		// Nothing else, so that what cannot be read can be paused, and stays as it is.
		if _, err := c.ExecContext(ctx, d.Bind("UPDATE rabbitdelay_schedules SET paused = ? WHERE name = ?"), value, name); err != nil {
			return err
		}
		return x.replan(ctx, c, d, name)
	})
}

// Delete withdraws the tasks that are not due yet, and deletes it. Errors:
// ErrNoSchedule.
func (x Schedules) Delete(ctx context.Context, ex Executor, name string) error {
	return x.within(ctx, ex, of(name), func(c sqldb.Conn, d Dialect) error {
		r, err := x.lock(ctx, c, d, name)
		if err != nil {
			return err
		}
		p := &planner{s: x.s, c: c, d: d, r: r, now: x.s.now()}
		if err := p.withdraw(ctx, true); err != nil {
			return err
		}
		_, err = c.ExecContext(ctx, d.Bind("DELETE FROM rabbitdelay_schedules WHERE name = ?"), name)
		return err
	})
}

// Fire schedules one occurrence more, due at once, and returns its task's id. The
// timetable goes on as it was; a pause and Overlap do not keep it. Errors:
// ErrNoSchedule.
func (x Schedules) Fire(ctx context.Context, ex Executor, name string) (id string, err error) {
	now := x.s.now().Truncate(time.Millisecond)
	err = x.within(ctx, ex, of(name), func(c sqldb.Conn, d Dialect) error {
		r, err := x.get(ctx, c, d, name)
		if err != nil {
			return err
		}
		t := r.Task
		t.ID, t.DeliverAt = name+"@"+now.UTC().Format(firedLayout), now
		if err := t.validate(x.s.cfg.MaxBody); err != nil {
			return err
		}
		id = t.ID
		if err := x.s.insert(ctx, c, d, []Task{t}, false); err != nil {
			return err
		}
		return writeTags(ctx, c, d, []Task{t}, false)
	})
	if err != nil {
		return "", err
	}
	x.s.wakeFor(millis(now))
	return id, nil
}

// check refuses what cannot be written, and tasks that cannot be sent.
func (x Schedules) check(r *Recurring) error {
	if _, err := r.check(x.s.cfg.MaxBody); err != nil {
		return err
	}
	task := r.Task
	task.ID = r.Name
	if te, ok := errors.AsType[*TaskError](x.s.accepts(&task)); ok {
		return r.bad(te.Field, "%s", te.Reason)
	}
	return nil
}

// insert tells whether it did.
func (x Schedules) insert(ctx context.Context, c sqldb.Conn, d Dialect, r Recurring) (bool, error) {
	values, err := r.values()
	if err != nil {
		return false, err
	}
	now := x.s.now().UnixMilli()
	columns := "name, created_at, updated_at, " + strings.Join(definition, ", ")
	query := "INSERT INTO rabbitdelay_schedules (" + columns + ") VALUES (" + marks(len(values)+3) + ")"
	if d != MySQL { // PostgreSQL would abort the caller's transaction
		query += " ON CONFLICT (name) DO NOTHING"
	}
	res, err := c.ExecContext(ctx, d.Bind(query), append([]any{r.Name, now, now}, values...)...)
	if err != nil {
		if d == MySQL && sqldb.Duplicate(err) {
			return false, nil
		}
		return false, err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return false, err
	}
	return true, x.replan(ctx, c, d, r.Name)
}

// lock raises the version, by a statement that keeps the relays and other writers
// off the row until the transaction ends.
func (x Schedules) lock(ctx context.Context, c sqldb.Conn, d Dialect, name string) (*row, error) {
	if _, err := c.ExecContext(ctx, d.Bind("UPDATE rabbitdelay_schedules SET version = version + 1, updated_at = ? WHERE name = ?"), x.s.now().UnixMilli(), name); err != nil {
		return nil, err
	}
	return x.get(ctx, c, d, name)
}

func (x Schedules) edit(ctx context.Context, c sqldb.Conn, d Dialect, name string, change func(r *Recurring) error) error {
	old, err := x.lock(ctx, c, d, name)
	if err != nil {
		return err
	}
	r := old.Recurring
	if err := change(&r); err != nil {
		return err
	}
	r.Name = name
	if err := x.check(&r); err != nil {
		return err
	}
	values, err := r.values()
	if err != nil {
		return err
	}
	set := strings.Join(definition, " = ?, ") + " = ?"
	if _, err := c.ExecContext(ctx, d.Bind("UPDATE rabbitdelay_schedules SET "+set+" WHERE name = ?"), append(values, name)...); err != nil {
		return err
	}
	return x.replan(ctx, c, d, name)
}

// replan withdraws what no longer holds, and makes what holds now.
func (x Schedules) replan(ctx context.Context, c sqldb.Conn, d Dialect, name string) error {
	r, err := x.get(ctx, c, d, name)
	if err != nil {
		return err
	}
	return x.s.plan(ctx, c, d, r)
}
