package tasks

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/console"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

const (
	bulkHelp = "With filters instead of ids it " + bulkWay
	bulkWay  = `counts the tasks, asks, and changes them in
batches, each in its own transaction. Interrupted, it goes on when it is given
again.`
)

type bulk struct {
	filterFlags
	app.Consent

	x      *tasks
	name   string // the name of the command
	did    string // the past participle of the change, such as "cancelled"
	of     string // the tasks that it changes
	detail string // for the audit of a change by ids
	again  string // the flag that is required to repeat the command safely, if there is one

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
	f.BoolVar(&b.all, "all", false, "all "+b.of+" tasks, without a filter")
	b.Register(f, "only count")
	f.IntVar(&b.options.Batch, "batch", 500, "tasks of one transaction, up to 5000")
	f.Var((*app.Duration)(&b.options.Pause), "pause", "pause between two batches; default none")
	f.Int64Var(&b.options.Limit, "limit", 0, "the most tasks to change, 0 for all")
}

func (b *bulk) spreads(c *cobra.Command) {
	c.Flags().Var((*app.Duration)(&b.options.Spread), "spread", "spread the due instants of many tasks over this long; default all at once")
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
		return false, fmt.Errorf("both task ids and --%s; give either ids or filters", filter)
	case len(ids) > 0 && given(bulkFlags) != "":
		return false, fmt.Errorf("--%s with task ids; it is for filters", given(bulkFlags))
	case len(ids) > 0:
		return false, nil
	case filter != "" && b.all:
		return false, fmt.Errorf("both --all and --%s; give one", filter)
	case filter == "" && !b.all:
		return false, errors.New("no task; give ids, a filter such as --queue, or --all")
	}
	return true, nil
}

// change is a method of schedule.Store that changes one task.
type change func(s *schedule.Store, ctx context.Context, tx schedule.Executor, id string) error

// run applies one to each of the ids, or action to the tasks that the filter selects.
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
		if b.options.After, err = schedule.ParseBulkPlace(b.after); err != nil {
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

// changeLine is the result of a change, or with --dry-run the expected result.
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
			Text:     fmt.Sprintf("%s will be %s. Type yes to go on: ", shown.Count(b.result.Matching, "task", "tasks"), b.did),
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
		b.result.After = p.Place.String()
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
	if failed == nil || b.again == "" || l.After == "" {
		return app.GoOn(failed)
	}
	how := fmt.Sprintf("to go on, give the same command with %s '%s': without it, tasks would be %s twice", b.again, l.After, b.did)
	if errors.Is(failed, context.Canceled) { // its error says nothing about resuming
		return &program.StatusError{Code: program.ExitInterrupt, Err: errors.New("interrupted; " + how)}
	}
	return fmt.Errorf("%w; %s", failed, how)
}

// change calls do for every id, each in its own transaction, and prints the task as it is after the change.
func (b *bulk) change(ctx context.Context, ids []string, do change) error {
	return b.x.WithStore(ctx, func(ctx context.Context, s *app.Store) error {
		return b.x.each(ids, func(id string) (t schedule.Task, err error) {
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
		return b.x.each(ids, func(id string) (t schedule.Task, err error) {
			err = b.Audited(ctx, s.DB, "task.delete", id, "", func() error {
				if t, err = s.Get(ctx, schedule.NoTx, id); err != nil {
					return err
				}
				p, err := s.Bulk(ctx, schedule.Filter{IDs: []string{id}}, schedule.BulkDelete(), schedule.BulkOptions{})
				if err == nil && p.Changed == 0 {
					err = fmt.Errorf("task %s is %s, and only finished tasks are deleted; cancel it first", id, t.Status)
				}
				return err
			})
			return t, err
		}, func(t schedule.Task) error {
			t.Body = nil
			return b.x.Show(asjson.TaskOf(t), "%s: deleted\n", shown.Line(t.ID))
		})
	})
}

func (x *tasks) cancelCommand() *cobra.Command {
	b := bulk{x: x, did: "cancelled", of: "pending"}
	c := &cobra.Command{
		Use:   "cancel {ID... | FILTER}",
		Short: "End pending tasks without their effect",
		Long: `cancel ends pending tasks without their effect. If a handler is working on a
task at that moment, cancel waits for it; if the handler succeeds, the task is
done, not cancelled.

` + bulkHelp,
		Example: `  rabbitdelay tasks cancel order-42-expire order-43-expire
  rabbitdelay tasks cancel --queue mail --tag campaign-7`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, ids []string) error {
			return b.run(c, ids, schedule.BulkCancel(), (*schedule.Store).Cancel)
		},
	}
	b.register(c)
	return c
}

func (x *tasks) fireCommand() *cobra.Command {
	b := bulk{x: x, did: "fired", of: "pending"}
	c := &cobra.Command{
		Use:   "fire {ID... | FILTER}",
		Short: "Make pending tasks due now",
		Long:  "fire makes pending tasks due now.\n\n" + bulkHelp,
		Example: `  rabbitdelay tasks fire post-7
  rabbitdelay tasks fire --tag campaign-7 --spread 10m`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, ids []string) error {
			return b.run(c, ids, schedule.BulkFire(), (*schedule.Store).FireNow)
		},
	}
	b.register(c)
	b.spreads(c)
	return c
}

func (x *tasks) rescheduleCommand() *cobra.Command {
	var w when
	var by shift
	b := bulk{x: x, did: "moved", of: "pending"}
	c := &cobra.Command{
		Use:   "reschedule {ID... | FILTER}",
		Short: "Move pending tasks to another instant",
		Long: `reschedule moves pending tasks to another instant, earlier or later, or by a
duration. A message that the broker still holds for the old instant has no
effect.

` + bulkHelp,
		Example: `  rabbitdelay tasks reschedule order-42-expire --delay 30m
  rabbitdelay tasks reschedule post-7 --at "tomorrow 08:00 Europe/Berlin"
  rabbitdelay tasks reschedule --queue mail --by -2h`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, ids []string) error {
			switch due := x.Given("delay") || x.Given("at"); {
			case x.Given("by") && due:
				return errors.New("--by with --delay or --at; give one")
			case x.Given("by"):
				b.again, b.detail = "--after", "by "+topology.FormatDuration(time.Duration(by))
				return b.run(c, ids, schedule.BulkMoveBy(time.Duration(by)), func(s *schedule.Store, ctx context.Context, tx schedule.Executor, id string) error {
					return s.RescheduleBy(ctx, tx, id, time.Duration(by))
				})
			case !due:
				return errors.New("no instant; give --delay, --at or --by")
			case b.after != "":
				return errors.New("--after goes with --by alone: a move to an instant that is given again moves nothing twice")
			}
			at, err := w.instant(x.App)
			if err != nil {
				return err
			}
			b.detail = "to " + shown.Instant(at)
			return b.run(c, ids, schedule.BulkMoveTo(at), func(s *schedule.Store, ctx context.Context, tx schedule.Executor, id string) error {
				return s.Reschedule(ctx, tx, id, at)
			})
		},
	}
	w.registerDue(c, "")
	c.Flags().Var(&by, "by", "later by this long, or with a minus earlier, such as 2h or -1d")
	b.register(c)
	b.spreads(c)
	c.Flags().StringVar(&b.after, "after", "", "with --by, go on behind the task at which an interrupted run stopped; of one that was killed it is the place of the newest bulk.reschedule in rabbitdelay_audit")
	return c
}

func (x *tasks) deleteCommand() *cobra.Command {
	b := bulk{x: x, did: "deleted", of: "finished"}
	c := &cobra.Command{
		Use:   "delete {ID... | FILTER}",
		Short: "Delete finished tasks before their retention ends",
		Long: `delete deletes tasks that are done, cancelled, expired or failed, which the relay would
keep for a while; their ids can then be used again. It deletes no pending task:
cancel those first.

` + bulkHelp,
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
