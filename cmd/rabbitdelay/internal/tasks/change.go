package tasks

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

type bulk struct {
	filterFlags
	app.Consent

	x      *tasks
	name   string // the name of the command
	did    string // the past participle of the change, such as "cancelled"
	of     string // the statuses that it applies to, as words
	detail string // for the audit of a change by ids
	again  string // a flag without which repeating the command would change tasks twice; empty if there is none
	due    string // the new due time of a reschedule with --delay, which a repeated command would compute again, from a later now

	all   bool
	after string

	store   *app.Store
	action  schedule.BulkAction
	options schedule.BulkOptions
	result  changeLine
}

func (b *bulk) register(c *cobra.Command) {
	b.App = b.x.App
	b.filterFlags.register(c)
	f := c.Flags()
	f.BoolVar(&b.all, "all", false, "select all "+b.of+" tasks instead of filtering")
	b.Register(f, "only count the tasks")
	f.IntVar(&b.options.Batch, "batch", 500, "tasks in each transaction, up to 5000")
	f.Var((*app.Duration)(&b.options.Pause), "pause", "pause between two batches; default: none")
	f.Int64Var(&b.options.Limit, "limit", 0, "maximum number of tasks to change, 0 for all")
}

func (b *bulk) spreads(c *cobra.Command) {
	c.Flags().Var((*app.Duration)(&b.options.Spread), "spread", "spread the due times of many tasks over this duration, batch by batch; default: none")
}

// bulkFlags lists the flags that only apply to filters, not to ids.
var bulkFlags = []string{"all", "yes", "dry-run", "batch", "pause", "limit", "spread", "after"}

// byFilter reports whether the tasks are selected by filters rather than by ids.
func (b *bulk) byFilter(ids []string) (bool, error) {
	given := func(names []string) string {
		for _, name := range names {
			if b.Given(name) {
				return name
			}
		}
		return ""
	}
	filter := given(filterNames)
	switch {
	case len(ids) > 0 && filter != "":
		return false, fmt.Errorf("expected either task ids or filters, got both ids and --%s", filter)
	case len(ids) > 0 && given(bulkFlags) != "":
		return false, fmt.Errorf("--%s is only for filters; omit it if you give task ids", given(bulkFlags))
	case len(ids) > 0:
		return false, nil
	case filter != "" && b.all:
		return false, fmt.Errorf("expected only one of --all and --%s", filter)
	case filter == "" && !b.all:
		return false, errors.New("no task was selected; give ids, a filter such as --queue, or --all")
	}
	return true, nil
}

// change is a method of schedule.Store that changes one task.
type change func(s *taskview.Store, ctx context.Context, tx schedule.Executor, id string) error

// run executes one for each of the ids, or action for the tasks that the filter selects.
func (b *bulk) run(c *cobra.Command, ids []string, action schedule.BulkAction, one change) error {
	many, err := b.byFilter(ids)
	if err != nil {
		return err
	}
	b.name, b.action = c.Name(), action
	if !many {
		return b.change(c.Context(), ids, one)
	}
	if b.chosen, err = b.filter(); err != nil {
		return err
	}
	if b.after != "" {
		b.options.After = schedule.Cursor(b.after)
		if err := taskview.CheckBulkCursor(b.options.After); err != nil {
			return fmt.Errorf("--after: %w", err)
		}
	}
	if err := b.Possible(); err != nil {
		return err
	}
	return b.x.WithStore(c.Context(), func(ctx context.Context, s *app.Store) error {
		b.store, b.DB = s, s.DB
		return b.Run(ctx, b)
	})
}

// changeLine is the result of a change. With --dry-run, it is the expected result.
type changeLine struct {
	Changed  int64   `json:"changed"`
	Matching int64   `json:"matching"` // the number of matching tasks before the change
	After    string  `json:"after,omitempty"`
	Seconds  float64 `json:"seconds"`
}

func (b *bulk) Count(ctx context.Context) (q app.Question, err error) {
	b.result.Matching, err = b.store.BulkCount(ctx, b.chosen, b.action, b.options)
	if b.result.Matching > 0 {
		q = app.Question{
			Text:     fmt.Sprintf("%s will be %s. Type yes to continue: ", shown.Count(b.result.Matching, "task", "tasks"), b.did),
			Declined: "no task was changed",
		}
	}
	return q, err
}

func (b *bulk) Entry() console.AuditEntry {
	return console.AuditEntry{Action: "bulk." + b.name, Detail: console.DescribeTasks(b.chosen)}
}

func (b *bulk) Outcome() string { return shown.Count(b.result.Changed, "task", "tasks") + " changed" }

func (b *bulk) Do(ctx context.Context) error {
	n := b.result.Matching
	if b.DryRun || n == 0 {
		return nil
	}
	bar := b.Progress(int(n), b.did)
	defer bar.Clear()
	b.options.Progress = func(p schedule.BulkProgress) { bar.Set(int(min(p.Changed, n)), b.did) }
	if b.Record != nil {
		b.options.Record = b.Record.Changed
	}
	p, err := b.store.Bulk(ctx, b.chosen, b.action, b.options)
	b.result.Changed = p.Changed
	if err != nil {
		b.result.After = string(p.Place)
	}
	return err
}

func (b *bulk) Tell(took time.Duration, failed error) error {
	l := &b.result
	format := "%[1]s of %[2]s %[3]s in %.2[4]f s\n"
	switch {
	case b.DryRun:
		format = "dry run: %[2]s would be %[3]s\n"
	case l.Matching > 0:
		l.Seconds = app.Seconds(took)
	}
	if err := b.Show(*l, format, shown.Number(l.Changed), shown.Count(l.Matching, "task", "tasks"), b.did, l.Seconds); err != nil {
		return err
	}
	var with string
	switch {
	case failed != nil && b.again != "" && l.After != "":
		with = fmt.Sprintf("%s '%s'", b.again, l.After)
	case failed != nil && b.due != "" && l.Changed > 0:
		with = fmt.Sprintf("--at '%s' instead of --delay", b.due)
	default:
		return app.AdviseRepeat(failed)
	}
	how := fmt.Sprintf("to continue, run the same command with %s; otherwise, tasks would be %s twice", with, b.did)
	if errors.Is(failed, context.Canceled) { // its error says nothing about resuming
		return &program.StatusError{Code: program.ExitInterrupt, Err: errors.New("interrupted; " + how)}
	}
	return fmt.Errorf("%w; %s", failed, how)
}

// change calls do for every id, each in its own transaction, and prints the task as it is after the change.
func (b *bulk) change(ctx context.Context, ids []string, do change) error {
	return b.x.WithStore(ctx, func(ctx context.Context, s *app.Store) error {
		return b.x.each(ids, func(id string) (t schedule.TaskRow, err error) {
			err = b.Audited(ctx, s.DB, "task."+b.name, id, b.detail, func() error {
				return s.InTx(ctx, "task "+id, func(tx *sql.Tx) error {
					if err := do(s.Store, ctx, tx, id); err != nil {
						return err
					}
					t, err = s.Get(ctx, tx, id)
					return err
				})
			})
			return t, err
		}, b.x.changed)
	})
}

// deleteIDs deletes finished tasks by their ids.
func (b *bulk) deleteIDs(ctx context.Context, ids []string) error {
	return b.x.WithStore(ctx, func(ctx context.Context, s *app.Store) error {
		return b.x.each(ids, func(id string) (t schedule.TaskRow, err error) {
			err = b.Audited(ctx, s.DB, "task.delete", id, "", func() error {
				if t, err = s.Get(ctx, schedule.NoTx, id); err != nil {
					return err
				}
				p, err := s.Bulk(ctx, schedule.Filter{IDs: []string{id}}, schedule.BulkDelete(), schedule.BulkOptions{})
				if err == nil && p.Changed == 0 {
					err = undeleted(ctx, s, id)
				}
				return err
			})
			return t, err
		}, func(t schedule.TaskRow) error {
			t.Body = nil
			return b.x.Show(asjson.TaskOf(t), "%s: deleted\n", shown.Line(t.ID))
		})
	})
}

// undeleted returns the reason why a task was not deleted.
func undeleted(ctx context.Context, s *app.Store, id string) error {
	t, err := s.Get(ctx, schedule.NoTx, id) // another operator may have deleted or revived it
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

func (x *tasks) cancelCommand() *cobra.Command {
	b := bulk{x: x, did: "cancelled", of: "pending"}
	c := &cobra.Command{
		Use:   "cancel {ID... | FILTER}",
		Short: "Cancel pending tasks",
		Long: `Cancel pending tasks, so that they have no effect. Select the tasks by id or by
filters.`,
		Example: `  rabbitdelay tasks cancel order-42-expire order-43-expire
  rabbitdelay tasks cancel --queue mail --tag campaign-7`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, ids []string) error {
			return b.run(c, ids, schedule.BulkCancel(), (*taskview.Store).Cancel)
		},
	}
	b.register(c)
	return c
}

func (x *tasks) runCommand() *cobra.Command {
	b := bulk{x: x, did: "made due", of: "pending"}
	c := &cobra.Command{
		Use:   "run {ID... | FILTER}",
		Short: "Make pending tasks due now",
		Long: `Make pending tasks due now, or spread them over a period with --spread. Select
the tasks by id or by filters.`,
		Example: `  rabbitdelay tasks run post-7
  rabbitdelay tasks run --tag campaign-7 --spread 10m`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, ids []string) error {
			return b.run(c, ids, schedule.BulkRunNow(), (*taskview.Store).RunNow)
		},
	}
	b.register(c)
	b.spreads(c)
	return c
}

func (x *tasks) rescheduleCommand() *cobra.Command {
	var w when
	var by shift
	b := bulk{x: x, did: "rescheduled", of: "pending"}
	c := &cobra.Command{
		Use:   "reschedule {ID... | FILTER}",
		Short: "Change when pending tasks are due",
		Long: `Move pending tasks to another due time, earlier or later, or by a duration.
Select the tasks by id or by filters.`,
		Example: `  rabbitdelay tasks reschedule order-42-expire --delay 30m
  rabbitdelay tasks reschedule post-7 --at "tomorrow 08:00 Europe/Berlin"
  rabbitdelay tasks reschedule --queue mail --by -2h`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, ids []string) error {
			switch due := x.Given("delay") || x.Given("at"); {
			case x.Given("by") && due:
				return errors.New("expected only one of --by, --delay and --at")
			case x.Given("by"):
				b.again, b.detail = "--after", "by "+topology.FormatDuration(time.Duration(by))
				return b.run(c, ids, schedule.BulkRescheduleBy(time.Duration(by)), func(s *taskview.Store, ctx context.Context, tx schedule.Executor, id string) error {
					return s.RescheduleBy(ctx, tx, id, time.Duration(by))
				})
			case !due:
				return errors.New("no new due time was given; give --delay, --at or --by")
			case b.after != "":
				return errors.New("--after only works with --by; to continue with --at, repeat the same command; to continue with --delay, use --at with the time in the first run's error message")
			}
			at, err := w.instant(x.App)
			if err != nil {
				return err
			}
			if x.Given("delay") { // a repeated command must be able to give the same time, which is shown in milliseconds
				at = at.Add(time.Millisecond - 1).Truncate(time.Millisecond)
				b.due = shown.Instant(at)
			}
			b.detail = "to " + shown.Instant(at)
			return b.run(c, ids, schedule.BulkReschedule(at), func(s *taskview.Store, ctx context.Context, tx schedule.Executor, id string) error {
				return s.Reschedule(ctx, tx, id, at)
			})
		},
	}
	w.registerDue(c, "")
	c.Flags().Var(&by, "by", "move the due time by this duration, such as 2h, or -1d to make it earlier")
	b.register(c)
	b.spreads(c)
	c.Flags().StringVar(&b.after, "after", "", "with --by, continue after the task at which an interrupted run stopped; its error message has the value")
	return c
}

func (x *tasks) deleteCommand() *cobra.Command {
	b := bulk{x: x, did: "deleted", of: "finished"}
	c := &cobra.Command{
		Use:   "delete {ID... | FILTER}",
		Short: "Delete finished tasks",
		Long: `Delete tasks that are done, cancelled, expired or failed before their retention
ends. Select the tasks by id or by filters.`,
		Example: `  rabbitdelay tasks delete order-42-expire
  rabbitdelay tasks delete --status done --queue mail`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, ids []string) error {
			if len(ids) == 0 {
				return b.run(c, nil, schedule.BulkDelete(), nil)
			}
			if _, err := b.byFilter(ids); err != nil {
				return err
			}
			return b.deleteIDs(c.Context(), ids)
		},
	}
	b.register(c)
	return c
}
