package change

import (
	"context"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Kind is the kind of an Action.
type Kind string

// The kinds of actions.
const (
	Cancel       Kind = "cancel"
	Delete       Kind = "delete"
	RunNow       Kind = "run"
	Revive       Kind = "revive"
	Reschedule   Kind = "reschedule"
	RescheduleBy Kind = "reschedule-by"
)

// Action is a change to one task or to many tasks.
type Action struct {
	Kind   Kind
	At     time.Time     // the new due time; required for Reschedule; zero means now for Revive
	By     time.Duration // how much later RescheduleBy makes a task due
	Spread time.Duration // the period over which a bulk change spreads the due times
}

// Check returns the action with its defaults filled in. It returns a *FieldError if the action is invalid.
func (a Action) Check() (Action, error) {
	switch {
	case a.Kind != RescheduleBy && a.By != 0:
		return a, &FieldError{"by", "by is only for reschedule-by; omit it"}
	case a.Kind == RescheduleBy && a.By == 0:
		return a, &FieldError{"by", "by is missing or 0; expected a duration such as 2h or -1d"}
	case a.Kind != Reschedule && a.Kind != Revive && !a.At.IsZero():
		return a, &FieldError{"to", "to is only for reschedule and revive; omit it"}
	case a.Kind == Reschedule && a.At.IsZero():
		return a, &FieldError{"to", "to is missing; expected a time"}
	case a.Kind == Revive && a.At.IsZero():
		a.At = time.Now()
	}
	return a, nil
}

// Bulk returns the action for Store.Bulk. It returns a *FieldError if the action is invalid.
func (a Action) Bulk() (schedule.BulkAction, error) {
	a, err := a.Check()
	if err != nil {
		return schedule.BulkAction{}, err
	}
	switch a.Kind {
	case Cancel:
		return schedule.BulkCancel(), nil
	case Delete:
		return schedule.BulkDelete(), nil
	case RunNow:
		return schedule.BulkRunNow(), nil
	case Revive:
		return schedule.BulkRevive(a.At), nil
	case Reschedule:
		return schedule.BulkReschedule(a.At), nil
	case RescheduleBy:
		return schedule.BulkRescheduleBy(a.By), nil
	}
	return schedule.BulkAction{}, a.unknown()
}

func (a Action) unknown() error {
	return &FieldError{"action", fmt.Sprintf("action is %q; expected cancel, delete, run, revive, reschedule or reschedule-by", a.Kind)}
}

// Task applies an action to one task, and returns the task after the change. For Delete, which requires that the task
// has ended, it returns the deleted task.
func (o Operator) Task(ctx context.Context, id string, a Action) (t schedule.TaskRow, err error) {
	if a, err = a.Check(); err != nil {
		return t, err
	}
	s, e := o.Store, Entry{Action: "task." + string(a.Kind), Target: id}
	var do func(tx schedule.Executor) error
	switch a.Kind {
	case Cancel:
		do = func(tx schedule.Executor) error { return s.Cancel(ctx, tx, id) }
	case Delete:
		return t, o.Record(ctx, e, func() (err error) {
			t, err = o.deleteTask(ctx, id)
			return err
		})
	case RunNow:
		do = func(tx schedule.Executor) error { return s.RunNow(ctx, tx, id) }
	case Revive:
		e.Detail = "due " + shown.Instant(a.At)
		do = func(tx schedule.Executor) error { return s.Revive(ctx, tx, id, a.At) }
	case Reschedule:
		e.Detail = "to " + shown.Instant(a.At)
		do = func(tx schedule.Executor) error { return s.Reschedule(ctx, tx, id, a.At) }
	case RescheduleBy:
		e.Action, e.Detail = "task.reschedule", "by "+signed(a.By)
		do = func(tx schedule.Executor) error { return s.RescheduleBy(ctx, tx, id, a.By) }
	default:
		return t, a.unknown()
	}
	// Read the task in the transaction that changes it, because a handler may finish it as soon as that is committed.
	err = o.Record(ctx, e, func() error {
		return s.Transact(ctx, "task "+id, func(tx schedule.Executor) (err error) {
			if err = do(tx); err == nil {
				t, err = s.Get(ctx, tx, id)
			}
			return err
		})
	})
	return t, err
}

// deleteTask deletes a task that has ended, and returns it.
func (o Operator) deleteTask(ctx context.Context, id string) (schedule.TaskRow, error) {
	t, err := o.Store.Get(ctx, schedule.NoTx, id)
	if err != nil {
		return t, err
	}
	p, err := o.Store.Bulk(ctx, schedule.Filter{IDs: []string{id}}, schedule.BulkDelete(), schedule.BulkOptions{})
	if err == nil && p.Changed == 0 {
		err = o.undeleted(ctx, id)
	}
	return t, err
}

// undeleted returns the reason why a task was not deleted.
func (o Operator) undeleted(ctx context.Context, id string) error {
	t, err := o.Store.Get(ctx, schedule.NoTx, id) // another operator may have deleted or revived it
	switch {
	case err != nil:
		return err
	case t.Status == schedule.StatusPending || t.Status == schedule.StatusRunning:
		return fmt.Errorf("task %s is %s, but only finished tasks can be deleted; cancel the task first", id, t.Status)
	case t.Status == schedule.StatusDone && t.Exchange != "":
		return fmt.Errorf("task %s was sent to exchange %s, and the handlers of its other queues may still need it; it is deleted at the end of its retention", id, t.Exchange)
	}
	return fmt.Errorf("task %s was changed at the same time and is %s; run the command again", id, t.Status)
}

// BulkEntry describes an action on the tasks that a filter selects, for the audit. The parameter limit is the largest
// number of tasks that it changes, or 0 if there is no limit. If values is true, the entry contains the values of
// headers, which only operators may see.
func BulkEntry(f schedule.Filter, a Action, limit int64, values bool) Entry {
	e := Entry{Action: "bulk." + string(a.Kind), Detail: DescribeFilter(f, values) + ": " + a.String()}
	if limit > 0 {
		e.Detail += "; at most " + shown.Count(limit, "task", "tasks")
	}
	return e
}

// BulkOutcome describes the result of a bulk change, for the audit.
func BulkOutcome(changed int64) string { return shown.Count(changed, "task", "tasks") + " changed" }

// String returns the action as it appears in the audit.
func (a Action) String() string {
	text := string(a.Kind)
	if !a.At.IsZero() {
		text += " " + shown.Instant(a.At)
	}
	if a.By != 0 {
		text += " " + signed(a.By)
	}
	if a.Spread > 0 {
		text += " over " + topology.FormatDuration(a.Spread)
	}
	return text
}

func signed(d time.Duration) string {
	if d < 0 {
		return "-" + topology.FormatDuration(-d)
	}
	return topology.FormatDuration(d)
}
