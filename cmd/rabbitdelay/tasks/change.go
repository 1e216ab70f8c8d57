package tasks

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// change does it to every id, each in a transaction of its own, and prints the
// task as it is then.
func (b *bulk) change(ctx context.Context, ids []string, do change) error {
	return b.x.WithStore(ctx, func(ctx context.Context, s *app.Store) error {
		return b.x.each(ids, func(id string) (t schedule.Task, err error) {
			err = b.Audited(ctx, s.DB, "task."+b.name, id, b.detail, func() error {
				return s.InTx(ctx, "task "+id, func(tx *sql.Tx) error {
					if err := do(ctx, s.Store, tx, id); err != nil {
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
			return b.run(c, ids, schedule.BulkCancel(), func(ctx context.Context, s *schedule.Store, tx *sql.Tx, id string) error {
				return s.Cancel(ctx, tx, id)
			})
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
			return b.run(c, ids, schedule.BulkFire(), func(ctx context.Context, s *schedule.Store, tx *sql.Tx, id string) error {
				return s.FireNow(ctx, tx, id)
			})
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
			if x.Given("by") {
				b.again = "--after"
				return x.moveBy(c, &b, ids, time.Duration(by))
			}
			if !x.Given("delay") && !x.Given("at") {
				return errors.New("no instant; give --delay, --at or --by")
			}
			at, err := w.instant(x.App)
			if err != nil {
				return err
			}
			b.detail = "to " + shown.Instant(at)
			return b.run(c, ids, schedule.BulkMoveTo(at), func(ctx context.Context, s *schedule.Store, tx *sql.Tx, id string) error {
				return s.Reschedule(ctx, tx, id, at)
			})
		},
	}
	w.registerDue(c, "")
	c.Flags().Var(&by, "by", "later by this long, or with a minus earlier, such as 2h or -1d")
	b.register(c)
	b.spreads(c)
	c.Flags().StringVar(&b.after, "after", "", "with --by, go on behind the task at which an interrupted run stopped")
	return c
}

func (x *tasks) moveBy(c *cobra.Command, b *bulk, ids []string, by time.Duration) error {
	if x.Given("delay") || x.Given("at") {
		return errors.New("--by with --delay or --at; give one")
	}
	b.detail = "by " + topology.FormatDuration(by)
	return b.run(c, ids, schedule.BulkMoveBy(by), func(ctx context.Context, s *schedule.Store, tx *sql.Tx, id string) error {
		return s.RescheduleBy(ctx, tx, id, by)
	})
}

func (x *tasks) deleteCommand() *cobra.Command {
	b := bulk{x: x, did: "deleted", of: "finished", noIDs: true}
	c := &cobra.Command{
		Use:   "delete FILTER",
		Short: "Delete finished tasks before their retention ends",
		Long: `delete deletes tasks that are done, cancelled, expired or failed, which the relay would
keep for a while; their ids can then be used again. It deletes no pending task:
cancel those first.

It ` + bulkWay,
		Example: `  rabbitdelay tasks delete --status done --queue mail`,
		Args:    program.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return b.run(c, nil, schedule.BulkDelete(), nil) },
	}
	b.register(c)
	return c
}
