package schedules

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/tasks"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
)

type schedules struct {
	*app.App
	app.Actor
}

// Command returns the schedules command, which lists and changes recurring tasks.
func Command(a *app.App) *cobra.Command {
	x := &schedules{App: a}
	c := &cobra.Command{
		Use:   "schedules",
		Short: "List and change recurring tasks",
		Long: `List and change the recurring tasks of a business database. Changing a recurring
task withdraws its tasks that are not due yet, and it then continues from now.`,
		Example: `  rabbitdelay schedules add nightly --cron "30 2 * * *" --queue reports
  rabbitdelay schedules next nightly
  rabbitdelay schedules pause nightly`,
	}
	app.DatabaseFlag(c.PersistentFlags(), "")
	c.AddCommand(x.listCommand(), x.showCommand(), x.nextCommand())
	for _, command := range []*cobra.Command{
		x.addCommand(), x.editCommand(),
		x.changeCommand("pause", "Pause recurring tasks",
			"Pause recurring tasks by name. Their tasks that are not due yet are withdrawn,\nand no more are created until \"schedules resume\".", change.Operator.PauseRecurring),
		x.changeCommand("resume", "Resume paused recurring tasks",
			"Continue paused recurring tasks from now. Occurrences that were due during\nthe pause are skipped.", change.Operator.ResumeRecurring),
		x.runCommand(), x.deleteCommand(),
	} {
		x.RegisterActor(command.Flags())
		c.AddCommand(command)
	}
	return c
}

// each calls do for every name. If do fails for a name, the error is printed as a line on standard error, and the other
// names are still processed.
func (x *schedules) each(ctx context.Context, names []string, do func(ctx context.Context, s *app.Store, name string) error) error {
	return x.WithStore(ctx, func(ctx context.Context, s *app.Store) error {
		code := program.ExitOK
		for _, name := range names {
			if err := do(ctx, s, name); err != nil {
				if errors.Is(err, schedule.ErrNoSchedule) {
					err = fmt.Errorf("%w; \"rabbitdelay schedules list\" shows the existing ones", err)
				}
				code = program.ExitError
				x.PrintError(err)
			}
		}
		return program.Exit(code)
	})
}

func someSchedules(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no name was given; give the names of one or more recurring tasks; see %s --help", c.CommandPath())
	}
	return nil
}

func oneSchedule(c *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("expected the name of one recurring task, got %q; see %s --help", strings.Join(args, " "), c.CommandPath())
	}
	return nil
}

// nextCount is the number of occurrences that show and next print.
const nextCount = 10

func (x *schedules) listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List recurring tasks, sorted by name",
		Example: `  rabbitdelay schedules list
  rabbitdelay schedules list --json | jq -r 'select(.state == "invalid").name'`,
		RunE: func(c *cobra.Command, _ []string) error { return x.WithStore(c.Context(), x.list) },
	}
}

func (x *schedules) list(ctx context.Context, s *app.Store) error {
	now := time.Now()
	head := []string{"NAME", "TIMETABLE", "DESTINATION", "STATE", "NEXT", "", "SKIPPED", "LAST ERROR"}
	n, err := term.List(x.Terminal, head, s.Recurring().List(ctx, schedule.NoTx), func(r schedule.Recurring) (any, []string) {
		at, away := "", ""
		if next := taskview.Upcoming(r, now, 1); len(next) > 0 {
			at, away = shown.Instant(next[0].DueAt), shown.FromNow(next[0].DueAt, now)
		}
		return asjson.RecurringOf(r, now, 1), []string{
			shown.Line(r.Name), shown.Line(taskview.Timetable(r)), shown.Line(r.Task.Destination().String()), string(taskview.StateOf(r, now)), at, away,
			asjson.Instant(r.SkippedAt), term.ShortError(r.LastError),
		}
	})
	if err == nil && n == 0 {
		x.Notef("no recurring tasks")
	}
	return err
}

func (x *schedules) showCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show NAME...",
		Short:   "Show recurring tasks and their next ten occurrences",
		Example: `  rabbitdelay schedules show nightly`,
		Args:    someSchedules,
		RunE: func(c *cobra.Command, names []string) error {
			return x.each(c.Context(), names, func(ctx context.Context, s *app.Store, name string) error {
				r, err := s.Recurring().Get(ctx, schedule.NoTx, name)
				if err != nil {
					return err
				}
				return x.show(r)
			})
		},
	}
}

func (x *schedules) show(r schedule.Recurring) error {
	now := time.Now()
	l := asjson.RecurringOf(r, now, nextCount)
	if x.JSON {
		return x.PrintJSON(l)
	}
	table := x.Table()
	for _, p := range []struct{ name, value string }{
		{"name", l.Name}, {"timetable", taskview.Timetable(r)}, {"start", l.Start}, {"end", l.End}, {"jitter", l.Jitter},
		{"misfire", l.Misfire}, {"overlap", l.Overlap}, {"destination", r.Task.Destination().String()}, {"state", l.State},
		{"last error", l.LastError}, {"skipped", l.Skipped}, {"origin", l.Origin}, {"version", strconv.FormatInt(l.Version, 10)},
		{"created", l.Created}, {"updated", l.Updated},
	} {
		table.Field(p.name, p.value)
	}
	tasks.MessageRows(table, r.Task)
	if err := table.Flush(); err != nil {
		return err
	}
	if err := x.printOccurrences(taskview.Upcoming(r, now, nextCount)); err != nil {
		return err
	}
	x.Printf("\n")
	return nil
}

func (x *schedules) nextCommand() *cobra.Command {
	var from app.Instant
	count := nextCount
	d := &definition{}
	c := &cobra.Command{
		Use:   "next [NAME]",
		Short: "Show the next occurrences of a recurring task",
		Long: `Show the next occurrences of a recurring task, even if it is paused. Without a
name, it shows the occurrences of --cron or --every, and needs no database.`,
		Example: `  rabbitdelay schedules next nightly --count 20
  rabbitdelay schedules next --cron "30 2 * * *" --time-zone Europe/Berlin \
    --from 2026-03-28T00:00:00Z`,
		Args: program.AtMostOneArg,
		RunE: func(c *cobra.Command, names []string) error {
			if count < 1 || count > 10_000 {
				return fmt.Errorf("--count: %d; expected 1 to 10000", count)
			}
			after := time.Now()
			if at := time.Time(from); !at.IsZero() {
				after = at.Add(-1)
			}
			if len(names) == 0 {
				r := schedule.Recurring{Name: "preview", CreatedAt: time.Now()}
				if err := d.apply(x.App, &r); err != nil {
					return err
				}
				if r.Cron == "" && r.Every == 0 {
					return errors.New("no timetable was given; give the name of a recurring task, --cron or --every")
				}
				return x.printNext(r, after, count)
			}
			return x.each(c.Context(), names, func(ctx context.Context, s *app.Store, name string) error {
				r, err := s.Recurring().Get(ctx, schedule.NoTx, name)
				if err != nil {
					return err
				}
				return x.printNext(r, after, count)
			})
		},
	}
	f := c.Flags()
	f.IntVar(&count, "count", count, "how many occurrences to show")
	f.Var(&from, "from", "show occurrences from this time on, such as 2026-01-31T08:00:00Z; default: now")
	d.registerTimetable(f)
	return c
}

type occurrenceLine struct {
	Local string `json:"local"`
	Due   string `json:"due"`
	ID    string `json:"id"`
}

func (x *schedules) printNext(r schedule.Recurring, after time.Time, count int) error {
	list, err := r.Next(after, count)
	if err != nil {
		return err
	}
	return x.printOccurrences(list)
}

func (x *schedules) printOccurrences(list []schedule.Occurrence) error {
	_, err := term.List(x.Terminal, []string{"LOCAL TIME", "DUE", "TASK"}, term.Each(list), func(o schedule.Occurrence) (any, []string) {
		due := shown.Instant(o.DueAt)
		return occurrenceLine{o.At.Format(time.RFC3339), due, o.ID}, []string{o.At.Format("Mon 2006-01-02 15:04:05 MST"), due, shown.Line(o.ID)}
	})
	if len(list) == 0 && !x.JSON {
		x.Notef("no more occurrences")
	}
	return err
}
