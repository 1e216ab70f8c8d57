package cli

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
)

// change is one of the methods of a store.
type change func(ctx context.Context, s *schedule.Store, tx *sql.Tx, id string) error

// change does it to every id, each in a transaction of its own, and prints the
// task as it is then.
func (x *tasks) change(ctx context.Context, ids []string, do change) error {
	return x.on(ctx, func(ctx context.Context, db *sql.DB, s *schedule.Store) error {
		return x.each(ids, func(id string) (t schedule.Task, err error) {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return t, fmt.Errorf("task %s: %w", id, err)
			}
			defer func() { _ = tx.Rollback() }() // nothing after the commit
			if err := do(ctx, s, tx, id); err != nil {
				return t, err
			}
			if t, err = s.Get(ctx, tx, id); err != nil {
				return t, err
			}
			if err := tx.Commit(); err != nil {
				return t, fmt.Errorf("task %s: committing: %w", id, err)
			}
			return t, nil
		}, x.changed)
	})
}

func (x *tasks) changed(t schedule.Task) error {
	if x.a.JSON {
		t.Body = nil // nobody changed it
		return x.a.PrintJSON(asjson.TaskOf(t))
	}
	due := ""
	if t.Status == schedule.StatusPending {
		due = fmt.Sprintf(", due %s (%s), version %d", shown.Instant(t.DeliverAt), shown.FromNow(t.DeliverAt, time.Now()), t.Version)
	}
	_, err := fmt.Fprintf(x.a.Stdout, "%s: %s%s\n", shown.Line(t.ID), t.Status, due)
	return err
}

// advise adds what to do to the errors that tell people of their mistake.
func advise(err error) error {
	if se, ok := errors.AsType[*schedule.StatusError](err); ok {
		return fmt.Errorf("%w; %s", err, remedy(se))
	}
	if errors.Is(err, schedule.ErrNotFound) {
		return fmt.Errorf("%w; \"rabbitdelay tasks list\" shows those there are; finished ones are deleted after a while", err)
	}
	return err
}

func remedy(e *schedule.StatusError) string {
	switch {
	case e.Status == schedule.StatusPending:
		return "it still waits; use reschedule or fire"
	case e.Status == schedule.StatusFailed && e.Action == "cancel":
		return "it has failed for good, so there is nothing to cancel"
	case e.Status == schedule.StatusFailed:
		return "use revive"
	case e.Status == schedule.StatusCancelled && e.Action == "cancel":
		return "there is nothing to do"
	case e.Status == schedule.StatusDone:
		return "its effect has happened; to repeat it, schedule a task with another id"
	}
	return "to run it after all, schedule a task with another id, or replace it"
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

// when is the instant that --delay or --at gives.
type when struct {
	delay duration
	at    instant
}

func (w *when) register(c *cobra.Command, fallback string) {
	c.Flags().Var(&w.delay, "delay", "due this long from now, such as 1500ms, 30m or 7d"+fallback)
	c.Flags().Var(&w.at, "at", `due at this instant instead, such as 2026-01-31T08:00:00Z or "tomorrow 08:00 Europe/Berlin"`)
}

// instant is when the task is to be due.
func (w *when) instant(a *app) (time.Time, error) {
	switch {
	case a.Given("delay") && a.Given("at"):
		return time.Time{}, errors.New("both --delay and --at; give one")
	case w.delay < 0:
		return time.Time{}, fmt.Errorf("--delay: %s; expected 0 or more", w.delay.String())
	}
	if at := time.Time(w.at); !at.IsZero() {
		return at, nil
	}
	return time.Now().Add(time.Duration(w.delay)), nil
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
		RunE: func(c *cobra.Command, ids []string) error {
			action, one, err := x.moving(&w, time.Duration(by))
			if err != nil {
				return err
			}
			if x.a.Given("by") {
				b.again = "--after"
			}
			return b.run(c, ids, action, one)
		},
	}
	w.register(c, "")
	c.Flags().Var(&by, "by", "later by this long, or with a minus earlier, such as 2h or -1d")
	b.register(c)
	b.spreads(c)
	c.Flags().StringVar(&b.after, "after", "", "with --by, go on behind the task at which an interrupted run stopped")
	return c
}

// moving is what reschedule does to many tasks, and to one.
func (x *tasks) moving(w *when, by time.Duration) (schedule.BulkAction, change, error) {
	given := 0
	for _, name := range []string{"delay", "at", "by"} {
		if x.a.Given(name) {
			given++
		}
	}
	switch {
	case given == 0:
		return schedule.BulkAction{}, nil, errors.New("no instant; give --delay, --at or --by")
	case x.a.Given("by") && given > 1:
		return schedule.BulkAction{}, nil, errors.New("--by with --delay or --at; give one")
	case x.a.Given("by"):
		return schedule.BulkMoveBy(by), func(ctx context.Context, s *schedule.Store, tx *sql.Tx, id string) error {
			return s.RescheduleBy(ctx, tx, id, by)
		}, nil
	}
	at, err := w.instant(x.a)
	return schedule.BulkMoveTo(at), func(ctx context.Context, s *schedule.Store, tx *sql.Tx, id string) error {
		return s.Reschedule(ctx, tx, id, at)
	}, err
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
		RunE: func(c *cobra.Command, _ []string) error {
			return b.run(c, nil, schedule.BulkDelete(), nil)
		},
	}
	b.register(c)
	return c
}
