package schedules

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/tasks"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
)

// definition contains the flags that define a recurring task.
type definition struct {
	cron, zone       string
	every, jitter    app.Duration
	start, end       bound
	misfire, overlap string
	misfireLimit     int
	message          tasks.MessageFlags
}

type bound struct {
	app.Instant

	none bool
}

func (b *bound) String() string {
	if b.none {
		return "none"
	}
	return b.Instant.String()
}

func (b *bound) Set(s string) error {
	if s == "none" {
		*b = bound{none: true}
		return nil
	}
	b.none = false
	return b.Instant.Set(s)
}

func (d *definition) registerTimetable(f *pflag.FlagSet) {
	f.StringVar(&d.cron, "cron", "", "five fields (minute hour day month weekday), six with seconds in front, or @hourly, @daily, @weekly, @monthly, @yearly")
	f.StringVar(&d.zone, "time-zone", "", "time zone of --cron, such as Europe/Berlin; default: UTC")
	f.Var(&d.every, "every", "an interval in whole seconds instead of --cron, such as 15m; it starts at --start, or else now")
	f.Var(&d.start, "start", "no occurrence is before this time; \"none\" removes the limit")
	f.Var(&d.end, "end", "no occurrence is at or after this time; \"none\" removes the limit")
	f.Var(&d.jitter, "jitter", "delay each occurrence by up to this duration, at most 1d")
}

// register adds the flags of a recurring task. The text list ends the descriptions of flags that build a list.
func (d *definition) register(f *pflag.FlagSet, list string) {
	d.registerTimetable(f)
	f.StringVar(&d.misfire, "misfire", "", "what happens to occurrences that were missed in an outage: skip, once (the last of them) or all; default: once")
	f.IntVar(&d.misfireLimit, "misfire-limit", 0, "with --misfire all, the maximum number of missed occurrences that still run; default: 100")
	f.StringVar(&d.overlap, "overlap", "", "what happens to an occurrence while the previous one is pending: allow or skip; default: allow")
	d.message.Register(f, list)
}

func (d *definition) apply(a *app.App, r *schedule.Recurring) error {
	if err := a.Exclusive("cron", "every"); err != nil {
		return err
	}
	for flag, set := range map[string]func(){
		"cron":          func() { r.Cron, r.Every = d.cron, 0 },
		"every":         func() { r.Cron, r.Every = "", time.Duration(d.every) },
		"time-zone":     func() { r.TimeZone = d.zone },
		"start":         func() { r.Start = time.Time(d.start.Instant) },
		"end":           func() { r.End = time.Time(d.end.Instant) },
		"jitter":        func() { r.Jitter = time.Duration(d.jitter) },
		"misfire":       func() { r.Misfire = schedule.Misfire(d.misfire) },
		"misfire-limit": func() { r.MisfireLimit = d.misfireLimit },
		"overlap":       func() { r.Overlap = schedule.Overlap(d.overlap) },
	} {
		if a.Given(flag) {
			set()
		}
	}
	return d.message.Apply(a, &r.Task)
}

func (x *schedules) addCommand() *cobra.Command {
	d := &definition{}
	c := &cobra.Command{
		Use:   "add NAME",
		Short: "Add a recurring task",
		Long: `Add a recurring task, and create the task of its next occurrence. It is an error
if the name already exists.`,
		Example: `  rabbitdelay schedules add nightly --cron "30 2 * * *" \
    --time-zone Europe/Berlin --queue reports --body '{"kind":"full"}'
  rabbitdelay schedules add pulse --every 15m --queue pulses --overlap skip`,
		Args: oneSchedule,
		RunE: func(c *cobra.Command, names []string) error {
			r := schedule.Recurring{Name: names[0]}
			if err := d.apply(x.App, &r); err != nil {
				return err
			}
			if err := r.Validate(); err != nil {
				return err
			}
			return x.change(c, names, func(o change.Operator, ctx context.Context, _ string) error { return o.AddRecurring(ctx, r) })
		},
	}
	d.register(c.Flags(), "")
	return c
}

func (x *schedules) editCommand() *cobra.Command {
	d := &definition{}
	changes := pflag.NewFlagSet("", pflag.ContinueOnError)
	d.register(changes, "; replaces all existing ones")
	c := &cobra.Command{
		Use:   "edit NAME",
		Short: "Change a recurring task",
		Long: `Change only what the flags specify. Tasks that are not due yet are withdrawn,
and the recurring task continues from now.`,
		Example: `  rabbitdelay schedules edit nightly --cron "0 3 * * *"
  rabbitdelay schedules edit nightly --end 2026-12-31T00:00:00Z`,
		Args: oneSchedule,
		RunE: func(c *cobra.Command, names []string) error {
			given := false
			changes.VisitAll(func(f *pflag.Flag) { given = given || f.Changed })
			if !given {
				return errors.New("nothing to change; give at least one flag, such as --cron or --end; see rabbitdelay schedules edit --help")
			}
			return x.change(c, names, func(o change.Operator, ctx context.Context, name string) error {
				return o.EditRecurring(ctx, name, func(r *schedule.Recurring) error { return d.apply(x.App, r) })
			})
		},
	}
	c.Flags().AddFlagSet(changes)
	return c
}

// change calls do for every name, and prints each recurring task after the change.
func (x *schedules) change(c *cobra.Command, names []string, do func(o change.Operator, ctx context.Context, name string) error) error {
	return x.each(c.Context(), names, func(ctx context.Context, s *app.Store, name string) error {
		if err := do(x.Operator(s), ctx, name); err != nil {
			return err
		}
		r, err := s.Recurring().Get(ctx, schedule.NoTx, name)
		if err != nil {
			return err
		}
		return x.changed(r)
	})
}

func (x *schedules) changed(r schedule.Recurring) error {
	now := time.Now()
	if x.JSON {
		return x.PrintJSON(asjson.RecurringOf(r, now, 1))
	}
	due := ""
	if next := taskview.Upcoming(r, now, 1); len(next) > 0 {
		due = ", next " + term.When(next[0].DueAt, now)
	}
	_, err := fmt.Fprintf(x.Stdout, "%s: %s%s\n", shown.Line(r.Name), taskview.StateOf(r, now), due)
	if r.Origin == "config" && !r.Paused {
		x.Notef("%s is in a configuration file, so \"rabbitdelay migrate\" and \"rabbitdelay serve\" change it back to the file's definition", shown.Line(r.Name))
	}
	return err
}

func (x *schedules) changeCommand(verb, short, long string, do func(o change.Operator, ctx context.Context, name string) error) *cobra.Command {
	return &cobra.Command{
		Use:     verb + " NAME...",
		Short:   short,
		Long:    long,
		Example: "  rabbitdelay schedules " + verb + " nightly",
		Args:    someSchedules,
		RunE:    func(c *cobra.Command, names []string) error { return x.change(c, names, do) },
	}
}

func (x *schedules) runCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run NAME...",
		Short: "Schedule one more occurrence, due now",
		Long: `Schedule one more occurrence, due now, and print the id of its task. The
timetable does not change.`,
		Example: `  rabbitdelay schedules run nightly`,
		Args:    someSchedules,
		RunE: func(c *cobra.Command, names []string) error {
			return x.each(c.Context(), names, func(ctx context.Context, s *app.Store, name string) error {
				id, err := x.Operator(s).RunRecurring(ctx, name)
				if err != nil {
					return err
				}
				return x.Show(map[string]string{"name": name, "id": id}, "%s\n", shown.Line(id))
			})
		},
	}
}

func (x *schedules) deleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "delete NAME...",
		Short:   "Delete recurring tasks",
		Long:    `Delete recurring tasks, and withdraw their tasks that are not due yet.`,
		Example: `  rabbitdelay schedules delete nightly`,
		Args:    someSchedules,
		RunE: func(c *cobra.Command, names []string) error {
			return x.each(c.Context(), names, func(ctx context.Context, s *app.Store, name string) error {
				if err := x.Operator(s).DeleteRecurring(ctx, name); err != nil {
					return err
				}
				return x.Show(map[string]string{"name": name, "state": "deleted"}, "%s: deleted\n", shown.Line(name))
			})
		},
	}
}
