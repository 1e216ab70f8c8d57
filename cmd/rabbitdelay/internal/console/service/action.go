package service

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Kind is the kind of an Action.
type Kind string

// The kinds of actions. Delete is only available for bulk changes.
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

// checked returns the action with its defaults filled in. It returns a *FieldError if the action is invalid.
func (a Action) checked() (Action, error) {
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

// forMany converts the action to a bulk action of package schedule.
func (a Action) forMany() (schedule.BulkAction, error) {
	a, err := a.checked()
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
	return schedule.BulkAction{}, &FieldError{"action", fmt.Sprintf("action is %q; expected cancel, delete, run, revive, reschedule or reschedule-by", a.Kind)}
}

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

// Change applies a to the task. It returns the errors of the corresponding method of schedule.Store.
func (c *Core) Change(ctx context.Context, who Identity, id string, a Action) error {
	s, err := c.store()
	if err != nil {
		return err
	}
	if a, err = a.checked(); err != nil {
		return err
	}
	e := Entry{Action: "task." + string(a.Kind), Target: id}
	var do func() error
	switch a.Kind {
	case Cancel:
		do = func() error { return s.Cancel(ctx, schedule.NoTx, id) }
	case RunNow:
		do = func() error { return s.RunNow(ctx, schedule.NoTx, id) }
	case Revive:
		e.Detail = "due " + shown.Instant(a.At)
		do = func() error { return s.Revive(ctx, schedule.NoTx, id, a.At) }
	case Reschedule:
		e.Action, e.Detail = "task.reschedule", "to "+shown.Instant(a.At)
		do = func() error { return s.Reschedule(ctx, schedule.NoTx, id, a.At) }
	case RescheduleBy:
		e.Action, e.Detail = "task.reschedule", "by "+signed(a.By)
		do = func() error { return s.RescheduleBy(ctx, schedule.NoTx, id, a.By) }
	default:
		return &FieldError{"action", fmt.Sprintf("action is %q; expected cancel, run, revive, reschedule or reschedule-by", a.Kind)}
	}
	return c.recorded(ctx, who, e, do)
}

// BulkCount returns how many tasks Bulk would currently change.
func (c *Core) BulkCount(ctx context.Context, f schedule.Filter, a Action) (int64, error) {
	return readStore(ctx, c, func(ctx context.Context, s *taskview.Store) (int64, error) {
		act, err := a.forMany()
		if err != nil {
			return 0, err
		}
		return s.BulkCount(ctx, all(f), act, schedule.BulkOptions{Spread: a.Spread})
	})
}

// Bulk starts a job that changes the tasks that f selects, but no more than count. The caller passes the number that
// BulkCount returned and the user confirmed.
func (c *Core) Bulk(ctx context.Context, who Identity, f schedule.Filter, a Action, count int64) (Job, error) {
	if count < 1 {
		return Job{}, &FieldError{"count", fmt.Sprintf("count is %d; expected the number of tasks that a dry run has counted, which must be at least 1", count)}
	}
	s, err := c.store()
	if err != nil {
		return Job{}, err
	}
	if a, err = a.checked(); err != nil {
		return Job{}, err
	}
	act, err := a.forMany()
	if err != nil {
		return Job{}, err
	}
	f = all(f)
	if err := s.CheckBulk(f, act, schedule.BulkOptions{Spread: a.Spread, Limit: count}); err != nil {
		return Job{}, err
	}
	q := request{Bulk: &bulkRequest{f, a, count}}
	return c.start(ctx, who, Entry{Action: "bulk." + string(a.Kind), Detail: q.words(false)}, count, q)
}

// all returns f without the fields that select and order a page.
func all(f schedule.Filter) schedule.Filter {
	f.Limit, f.After, f.Sort, f.WithoutBody = 0, "", schedule.SortDue, false
	return f
}

// breath is the longest pause after a batch of a job. It is slightly longer than the 100 ms for which a writer sleeps
// between two attempts to get SQLite's lock.
const breath = 110 * time.Millisecond

type bulkRequest struct {
	Filter schedule.Filter `json:"filter"`
	Action Action          `json:"action"`
	Count  int64           `json:"count"`
}

// bulk runs a job, or resumes it if it was interrupted.
func (c *Core) bulk(ctx context.Context, w *working, q bulkRequest) (string, error) {
	s, err := c.store()
	if err != nil {
		return "", err
	}
	act, err := q.Action.forMany()
	if err != nil {
		return "", err
	}
	before := w.now().Done
	changed := func(n int64) string { return shown.Count(before+n, "task", "tasks") + " changed" }
	o := schedule.BulkOptions{Limit: q.Count - before, Spread: q.Action.Spread}
	if o.Limit <= 0 {
		return changed(0), nil
	}
	// RescheduleBy is the only action that would change a task a second time, so it has to continue after the last changed
	// task.
	if q.Action.Kind == RescheduleBy && w.now().place != "" {
		o.After = schedule.Cursor(w.now().place)
	}
	o.Record = func(ctx context.Context, tx schedule.Executor, p schedule.BulkProgress, ids []any) error {
		return w.progress(ctx, sqldb.On(tx), before+p.Changed, string(p.Place), ids)
	}
	began := time.Now()
	o.Progress = func(p schedule.BulkProgress) {
		w.at(before+p.Changed, string(p.Place))
		select { // for the same duration as the batch took, so that other clients get their turn
		case <-time.After(min(time.Since(began), breath)):
		case <-ctx.Done():
		}
		began = time.Now()
	}
	p, err := s.Bulk(ctx, q.Filter, act, o)
	if errors.Is(err, errNotMine) {
		err = errNotMine
	}
	return changed(p.Changed), err
}

// DescribeTasks describes a filter in words. It includes header values only if values is set, which is for operators.
func DescribeTasks(f schedule.Filter, values bool) string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+"="+value)
		}
	}
	add("queue", f.Queue)
	add("exchange", f.Exchange)
	add("status", string(f.Status))
	add("id-prefix", f.IDPrefix)
	add("unique-key", f.UniqueKey)
	add("id", strings.Join(f.IDs, " or "))
	add("tag", f.Tag)
	add("header", describeHeader(f.Header, f.HeaderValue, values))
	add("error", f.Error)
	add("error-like", f.ErrorLike)
	if !f.DueFrom.IsZero() {
		add("due-from", shown.Instant(f.DueFrom))
	}
	if !f.DueTo.IsZero() {
		add("due-to", shown.Instant(f.DueTo))
	}
	if len(parts) == 0 {
		return "all"
	}
	return strings.Join(parts, " ")
}

func describeHeader(name, value string, values bool) string {
	if name == "" || !values {
		return name
	}
	return name + "=" + strconv.Quote(value)
}
