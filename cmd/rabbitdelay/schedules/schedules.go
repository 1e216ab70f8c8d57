package schedules

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
)

// schedules is one run of a subcommand of schedules.
type schedules struct {
	*app.App
	app.Actor
}

// Command returns the command schedules.
func Command(a *app.App) *cobra.Command {
	x := &schedules{App: a}
	c := &cobra.Command{
		Use:   "schedules",
		Short: "Look at, add, change, pause, fire and delete recurring tasks",
		Long: `schedules works on recurring tasks, the table rabbitdelay_schedules of a business
database. Each occurrence is a task of its own, NAME@INSTANT, which a relay makes
ahead; see "rabbitdelay tasks list --id-prefix NAME@". A change withdraws the tasks
that are not due yet, in the same transaction, and goes on from now.

Those of a file's section schedules are written by "rabbitdelay migrate" and by
"rabbitdelay serve" at their start, which undoes what was changed here. Neither
pauses, resumes or deletes any.`,
		Example: `  rabbitdelay schedules add nightly --cron "30 2 * * *" --time-zone Europe/Berlin --queue reports
  rabbitdelay schedules next nightly
  rabbitdelay schedules pause nightly`,
	}
	app.DatabaseFlag(c.PersistentFlags(), "")
	c.AddCommand(x.listCommand(), x.showCommand(), x.nextCommand())
	for _, change := range []*cobra.Command{
		x.addCommand(), x.editCommand(), x.pauseCommand(), x.resumeCommand(), x.fireCommand(), x.deleteCommand(),
	} {
		x.RegisterActor(change.Flags())
		c.AddCommand(change)
	}
	return c
}

// each does something with every name. One that fails does not hold up the
// others, and has a line of its own on standard error.
func (x *schedules) each(ctx context.Context, names []string, do func(ctx context.Context, s *app.Store, name string) error) error {
	return x.WithStore(ctx, func(ctx context.Context, s *app.Store) error {
		code := program.ExitOK
		for _, name := range names {
			if err := do(ctx, s, name); err != nil {
				if errors.Is(err, schedule.ErrNoSchedule) {
					err = fmt.Errorf("%w; \"rabbitdelay schedules list\" shows those there are", err)
				}
				code = program.ExitError
				x.PrintError(err)
			}
		}
		return program.Exit(code)
	})
}

// changeEach is each for a change, which is recorded.
func (x *schedules) changeEach(c *cobra.Command, names []string, do func(ctx context.Context, s *app.Store, name string) error) error {
	return x.each(c.Context(), names, func(ctx context.Context, s *app.Store, name string) error {
		return x.Audited(ctx, s.DB, "recurring."+c.Name(), name, "", func() error { return do(ctx, s, name) })
	})
}

// someSchedules is an argument check.
func someSchedules(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no name of a recurring task; give one or more; see %s --help", c.CommandPath())
	}
	return nil
}

// oneSchedule is an argument check.
func oneSchedule(c *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("expected one name of a recurring task, got %q; see %s --help", strings.Join(args, " "), c.CommandPath())
	}
	return nil
}
