package tasks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

type bulk struct {
	filterFlags
	app.Consent

	x     *tasks
	did   string // the past participle of the change, such as "cancelled"
	of    string // the status of the tasks that can be changed, in words
	again string // a flag without which repeating the command would change tasks twice; empty if there is none
	due   string // with --delay, the new due time of a reschedule; a repeated command would compute a later one

	all   bool
	after string

	store   *app.Store
	action  change.Action
	many    schedule.BulkAction
	options schedule.BulkOptions
	result  changeLine
	touched []schedule.TaskRow // the tasks that were changed by their ids
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
	c.Flags().Var((*app.Duration)(&b.action.Spread), "spread", "spread the due times of many tasks over this duration, batch by batch; default: none")
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

// run applies the action to the tasks with the given ids, or to those that the filter selects.
func (b *bulk) run(c *cobra.Command, ids []string, action change.Action) error {
	many, err := b.byFilter(ids)
	if err != nil {
		return err
	}
	action.Spread = b.action.Spread
	b.action, b.options.Spread = action, action.Spread
	if !many {
		return b.each(c.Context(), ids)
	}
	if b.many, err = action.Bulk(); err != nil {
		return err
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
	b.result.Matching, err = b.store.BulkCount(ctx, b.chosen, b.many, b.options)
	if b.result.Matching > 0 {
		q = app.Question{
			Text:     fmt.Sprintf("%s will be %s. Type yes to continue: ", shown.Count(b.result.Matching, "task", "tasks"), b.did),
			Declined: "no task was changed",
		}
	}
	return q, err
}

func (b *bulk) Entry() change.Entry {
	return change.BulkEntry(b.chosen, b.action, b.options.Limit, false)
}

func (b *bulk) Outcome() string { return change.BulkOutcome(b.result.Changed) }

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
	p, err := b.store.Bulk(ctx, b.chosen, b.many, b.options)
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

// each applies the action to every id, and prints each task as it is after the change.
func (b *bulk) each(ctx context.Context, ids []string) error {
	show := b.x.changed
	if b.action.Kind == change.Delete {
		show = func(t schedule.TaskRow) error {
			t.Body = nil
			return b.x.Show(asjson.TaskOf(t), "%s: deleted\n", shown.Line(t.ID))
		}
	}
	return b.x.WithStore(ctx, func(ctx context.Context, s *app.Store) error {
		operator := b.Operator(s)
		return b.x.each(ids, func(id string) (schedule.TaskRow, error) { return operator.Task(ctx, id, b.action) }, func(t schedule.TaskRow) error {
			b.touched = append(b.touched, t)
			return show(t)
		})
	})
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
			return b.run(c, ids, change.Action{Kind: change.Cancel})
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
			return b.run(c, ids, change.Action{Kind: change.RunNow})
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
				b.again = "--after"
				return b.run(c, ids, change.Action{Kind: change.RescheduleBy, By: time.Duration(by)})
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
			return b.run(c, ids, change.Action{Kind: change.Reschedule, At: at})
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
			return b.run(c, ids, change.Action{Kind: change.Delete})
		},
	}
	b.register(c)
	return c
}
