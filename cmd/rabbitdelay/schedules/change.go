package schedules

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/tasks"
)

// definition has the flags that define a recurring task.
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
	f.StringVar(&d.cron, "cron", "", `when: five fields (minute hour day month weekday), six with seconds in front, or @hourly, @daily, @weekly, @monthly, @yearly`)
	f.StringVar(&d.zone, "time-zone", "", "time zone of --cron, such as Europe/Berlin; default UTC")
	f.Var(&d.every, "every", "an interval instead, such as 15m, of whole seconds; it counts from --start, or else from now")
	f.Var(&d.start, "start", `the first instant that may be an occurrence, or none`)
	f.Var(&d.end, "end", "the first instant that may not, or none")
	f.Var(&d.jitter, "jitter", "delay each occurrence by up to so much, at most 1d")
}

func (d *definition) register(f *pflag.FlagSet) {
	d.registerTimetable(f)
	f.StringVar(&d.misfire, "misfire", "", "what happens with those that were missed in an outage: skip, once (the last of them) or all; default once")
	f.IntVar(&d.misfireLimit, "misfire-limit", 0, "the most that --misfire all makes; default 100")
	f.StringVar(&d.overlap, "overlap", "", "while the last one is pending: allow or skip; default allow")
	d.message.Register(f, "; edit: in place of all")
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
		Long: `add adds a recurring task, and makes the task of its next occurrence. A name that
exists is an error; see "rabbitdelay schedules edit".`,
		Example: `  rabbitdelay schedules add nightly --cron "30 2 * * *" --time-zone Europe/Berlin --queue reports --body '{"kind":"full"}'
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
			return x.change(c, names, func(s schedule.Schedules, ctx context.Context, tx schedule.Executor, _ string) error {
				return s.Add(ctx, tx, r)
			})
		},
	}
	d.register(c.Flags())
	return c
}

func (x *schedules) editCommand() *cobra.Command {
	d := &definition{}
	changes := pflag.NewFlagSet("", pflag.ContinueOnError)
	d.register(changes)
	c := &cobra.Command{
		Use:   "edit NAME",
		Short: "Change a recurring task",
		Long: `edit changes what flags are given for, and nothing else. The tasks that are not due
yet are withdrawn in the same transaction; it goes on from now.`,
		Example: `  rabbitdelay schedules edit nightly --cron "0 3 * * *"
  rabbitdelay schedules edit nightly --end 2026-12-31T00:00:00Z`,
		Args: oneSchedule,
		RunE: func(c *cobra.Command, names []string) error {
			given := false
			changes.VisitAll(func(f *pflag.Flag) { given = given || f.Changed })
			if !given {
				return errors.New("nothing to change; give what is to change, such as --cron or --end; see rabbitdelay schedules edit --help")
			}
			return x.change(c, names, func(s schedule.Schedules, ctx context.Context, tx schedule.Executor, name string) error {
				return s.Edit(ctx, tx, name, func(r *schedule.Recurring) error { return d.apply(x.App, r) })
			})
		},
	}
	c.Flags().AddFlagSet(changes)
	return c
}

// change is a method of schedule.Schedules that changes one recurring task.
type change func(s schedule.Schedules, ctx context.Context, tx schedule.Executor, name string) error

// change calls do for every name, each in its own transaction, and prints the recurring task as it is after the
// change.
func (x *schedules) change(c *cobra.Command, names []string, do change) error {
	return x.changeEach(c, names, func(ctx context.Context, s *app.Store, name string) (err error) {
		var r schedule.Recurring
		err = s.InTx(ctx, "recurring task "+name, func(tx *sql.Tx) error {
			if err := do(s.Schedules(), ctx, tx, name); err != nil {
				return err
			}
			r, err = s.Schedules().Get(ctx, tx, name)
			return err
		})
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
	if next := r.Upcoming(now, 1); len(next) > 0 {
		due = ", next " + term.When(next[0].DeliverAt, now)
	}
	_, err := fmt.Fprintf(x.Stdout, "%s: %s%s\n", shown.Line(r.Name), r.State(now), due)
	if r.Origin == schedule.OriginConfig && !r.Paused {
		x.Notef("%s stands in a configuration file: migrate and relay set it to what that says", shown.Line(r.Name))
	}
	return err
}

func (x *schedules) changeCommand(verb, short string, do change) *cobra.Command {
	return &cobra.Command{
		Use:     verb + " NAME...",
		Short:   short,
		Example: "  rabbitdelay schedules " + verb + " nightly",
		Args:    someSchedules,
		RunE:    func(c *cobra.Command, names []string) error { return x.change(c, names, do) },
	}
}

func (x *schedules) fireCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "fire NAME...",
		Short: "Schedule one occurrence more, due now",
		Long: `fire schedules one occurrence more, due now, and prints its task's id. The
timetable goes on as it was. It also fires what is paused, and while another
occurrence is pending.`,
		Example: `  rabbitdelay schedules fire nightly`,
		Args:    someSchedules,
		RunE: func(c *cobra.Command, names []string) error {
			return x.changeEach(c, names, func(ctx context.Context, s *app.Store, name string) error {
				id, err := s.Schedules().Fire(ctx, schedule.NoTx, name)
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
		Use:   "delete NAME...",
		Short: "Delete recurring tasks, and withdraw the tasks that are not due yet",
		Long: `delete deletes recurring tasks, and withdraws their tasks that are not due yet.
Tasks that are due, or were fired, happen all the same; see "rabbitdelay tasks
cancel". What stands in a configuration file comes back with the next start of
migrate or relay.`,
		Example: `  rabbitdelay schedules delete nightly`,
		Args:    someSchedules,
		RunE: func(c *cobra.Command, names []string) error {
			return x.changeEach(c, names, func(ctx context.Context, s *app.Store, name string) error {
				if err := s.Schedules().Delete(ctx, schedule.NoTx, name); err != nil {
					return err
				}
				return x.Show(map[string]string{"name": name, "state": "deleted"}, "%s: deleted\n", shown.Line(name))
			})
		},
	}
}
