package schedules

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/tasks"
)

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
		x.addCommand(), x.editCommand(),
		x.changeCommand("pause", "Withdraw the tasks that are not due yet, and make no more", schedule.Schedules.Pause),
		x.changeCommand("resume", "Go on from now; what would have happened meanwhile does not", schedule.Schedules.Resume),
		x.fireCommand(), x.deleteCommand(),
	} {
		x.RegisterActor(change.Flags())
		c.AddCommand(change)
	}
	return c
}

// each calls do for every name. If do fails for a name, each prints its error as a line on standard error and
// continues with the other names.
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

// changeEach is like each for changes, which it records in the audit.
func (x *schedules) changeEach(c *cobra.Command, names []string, do func(ctx context.Context, s *app.Store, name string) error) error {
	return x.each(c.Context(), names, func(ctx context.Context, s *app.Store, name string) error {
		return x.Audited(ctx, s.DB, "recurring."+c.Name(), name, "", func() error { return do(ctx, s, name) })
	})
}

func someSchedules(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no name of a recurring task; give one or more; see %s --help", c.CommandPath())
	}
	return nil
}

func oneSchedule(c *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("expected one name of a recurring task, got %q; see %s --help", strings.Join(args, " "), c.CommandPath())
	}
	return nil
}

// nextCount is the number of occurrences that show and next print.
const nextCount = 10

func (x *schedules) listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List recurring tasks by their names",
		Long: `list prints recurring tasks by their names, with --json one object a line. NEXT
is when the next one is due, jitter included; SKIPPED the last that was left out,
by the misfire policy or because the one before was still pending. A task whose
state is wrong was written by another program; LAST ERROR says what is wrong.`,
		Example: `  rabbitdelay schedules list
  rabbitdelay schedules list --json | jq -r 'select(.state == "wrong") | .name'`,
		RunE: func(c *cobra.Command, _ []string) error { return x.WithStore(c.Context(), x.list) },
	}
}

func (x *schedules) list(ctx context.Context, s *app.Store) error {
	now := time.Now()
	head := []string{"NAME", "TIMETABLE", "DESTINATION", "STATE", "NEXT", "", "SKIPPED", "LAST ERROR"}
	n, err := term.List(x.Terminal, head, s.Schedules().List(ctx, schedule.NoTx), func(r schedule.Recurring) (any, []string) {
		at, away := "", ""
		if next := r.Upcoming(now, 1); len(next) > 0 {
			at, away = shown.Instant(next[0].DeliverAt), shown.FromNow(next[0].DeliverAt, now)
		}
		return asjson.RecurringOf(r, now, 1), []string{
			shown.Line(r.Name), shown.Line(r.Timetable()), shown.Line(r.Task.Destination().String()), string(r.State(now)), at, away,
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
		Short:   "Show recurring tasks with their bodies and next ten occurrences",
		Example: `  rabbitdelay schedules show nightly`,
		Args:    someSchedules,
		RunE: func(c *cobra.Command, names []string) error {
			return x.each(c.Context(), names, func(ctx context.Context, s *app.Store, name string) error {
				r, err := s.Schedules().Get(ctx, schedule.NoTx, name)
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
		{"name", l.Name}, {"timetable", r.Timetable()}, {"start", l.Start}, {"end", l.End}, {"jitter", l.Jitter},
		{"misfire", l.Misfire}, {"overlap", l.Overlap}, {"destination", r.Task.Destination().String()}, {"state", l.State},
		{"last error", l.LastError}, {"skipped", l.Skipped}, {"origin", l.Origin}, {"version", strconv.FormatInt(l.Version, 10)},
		{"created", l.Created}, {"updated", l.Updated}, {"expires after", l.ExpiresAfter},
	} {
		table.Field(p.name, p.value)
	}
	tasks.MessageRows(table, r.Task)
	if err := table.Flush(); err != nil {
		return err
	}
	if err := x.printOccurrences(r.Upcoming(now, nextCount)); err != nil {
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
		Short: "Print when a recurring task, or a timetable, is due next",
		Long: `next prints the next occurrences of a recurring task, whether it is paused or not;
or, without a name, those of the timetable that --cron or --every gives, for which
it needs no database. Each line is the local time, the due instant with jitter, and
the id of the task. Of a local time that comes twice because clocks are set back it
takes the first; one that is left out because they are set forward is the end of
the gap; an expression of every hour goes on through both.`,
		Example: `  rabbitdelay schedules next nightly --count 20
  rabbitdelay schedules next --cron "30 2 * * *" --time-zone Europe/Berlin --from 2026-03-28T00:00:00Z`,
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
					return errors.New("no timetable; give the name of a recurring task, --cron or --every")
				}
				return x.printNext(r, after, count)
			}
			return x.each(c.Context(), names, func(ctx context.Context, s *app.Store, name string) error {
				r, err := s.Schedules().Get(ctx, schedule.NoTx, name)
				if err != nil {
					return err
				}
				return x.printNext(r, after, count)
			})
		},
	}
	f := c.Flags()
	f.IntVar(&count, "count", count, "how many")
	f.Var(&from, "from", "from this instant on, such as 2026-01-31T08:00:00Z; default now")
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
		due := shown.Instant(o.DeliverAt)
		return occurrenceLine{o.At.Format(time.RFC3339), due, o.ID}, []string{o.At.Format("Mon 2006-01-02 15:04:05 MST"), due, shown.Line(o.ID)}
	})
	if len(list) == 0 && !x.JSON {
		x.Notef("no more occurrences")
	}
	return err
}
