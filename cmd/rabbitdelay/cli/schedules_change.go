package cli

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
)

// definition is what flags say about a recurring task.
type definition struct {
	cron, zone       string
	every, jitter    duration
	expires          duration
	start, end       bound
	misfire, overlap string
	misfireLimit     int
	task             schedule.Task
	body             string
	headers          []string
}

// bound is an instant, or none.
type bound struct {
	instant

	none bool
}

func (b *bound) String() string {
	if b.none {
		return "none"
	}
	return b.instant.String()
}

func (b *bound) Set(s string) error {
	if s == "none" {
		*b = bound{none: true}
		return nil
	}
	b.none = false
	return b.instant.Set(s)
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
	t := &d.task
	d.registerTimetable(f)
	f.StringVar(&d.misfire, "misfire", "", "what happens with those that were missed in an outage: skip, once (the last of them) or all; default once")
	f.IntVar(&d.misfireLimit, "misfire-limit", 0, "the most that --misfire all makes; default 100")
	f.StringVar(&d.overlap, "overlap", "", "while the last one is pending: allow or skip; default allow")
	f.StringVar(&t.Queue, "queue", "", "destination queue")
	f.StringVar(&t.Exchange, "exchange", "", "destination exchange, with --routing-key")
	f.StringVar(&t.RoutingKey, "routing-key", "", "routing key of --exchange")
	f.StringVar(&d.body, "body", "", "the body; @file reads a file, - reads standard input")
	f.StringVar(&t.ContentType, "content-type", "", "content type of the body")
	f.StringVar(&t.Type, "type", "", "the message's type")
	f.StringVar(&t.CorrelationID, "correlation-id", "", "the message's correlation id")
	f.Uint8Var(&t.Priority, "priority", 0, "the message's priority, 0 to 255")
	f.Var(&d.expires, "expires-after", "how long after its due instant an occurrence is no longer worth doing; default never")
	f.StringArrayVar(&d.headers, "header", nil, "a header, `name=value`; repeatable; edit: in place of all")
	f.StringArrayVar(&t.Tags, "tag", nil, "a `tag` of the tasks; repeatable; edit: in place of all")
}

// apply changes what flags were given for.
func (d *definition) apply(a *app, r *schedule.Recurring) error {
	if a.Given("cron") && a.Given("every") {
		return errors.New("both --cron and --every; give one")
	}
	if a.Given("queue") && a.Given("exchange") {
		return errors.New("both --queue and --exchange; give one")
	}
	t := &r.Task
	for flag, set := range map[string]func() error{
		"cron":           func() error { r.Cron, r.Every = d.cron, 0; return nil },
		"every":          func() error { r.Cron, r.Every = "", time.Duration(d.every); return nil },
		"time-zone":      func() error { r.TimeZone = d.zone; return nil },
		"start":          func() error { r.Start = time.Time(d.start.instant); return nil },
		"end":            func() error { r.End = time.Time(d.end.instant); return nil },
		"jitter":         func() error { r.Jitter = time.Duration(d.jitter); return nil },
		"misfire":        func() error { r.Misfire = schedule.Misfire(d.misfire); return nil },
		"misfire-limit":  func() error { r.MisfireLimit = d.misfireLimit; return nil },
		"overlap":        func() error { r.Overlap = schedule.Overlap(d.overlap); return nil },
		"queue":          func() error { t.Queue, t.Exchange, t.RoutingKey = d.task.Queue, "", ""; return nil },
		"exchange":       func() error { t.Queue, t.Exchange = "", d.task.Exchange; return nil },
		"routing-key":    func() error { t.RoutingKey = d.task.RoutingKey; return nil },
		"body":           func() (err error) { t.Body, err = readBody(d.body, a.Stdin); return err },
		"content-type":   func() error { t.ContentType = d.task.ContentType; return nil },
		"type":           func() error { t.Type = d.task.Type; return nil },
		"correlation-id": func() error { t.CorrelationID = d.task.CorrelationID; return nil },
		"priority":       func() error { t.Priority = d.task.Priority; return nil },
		"expires-after":  func() error { t.ExpiresAfter = time.Duration(d.expires); return nil },
		"header":         func() (err error) { t.Headers, err = textHeaders(d.headers); return err },
		"tag":            func() error { t.Tags = d.task.Tags; return nil },
	} {
		if a.Given(flag) {
			if err := set(); err != nil {
				return err
			}
		}
	}
	return nil
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
			if err := d.apply(x.a, &r); err != nil {
				return err
			}
			if err := r.Validate(); err != nil {
				return err
			}
			return x.change(c.Context(), names, func(ctx context.Context, s schedule.Schedules, tx *sql.Tx, _ string) error { return s.Add(ctx, tx, r) })
		},
	}
	d.register(c.Flags())
	return c
}

func (x *schedules) editCommand() *cobra.Command {
	d := &definition{}
	c := &cobra.Command{
		Use:   "edit NAME",
		Short: "Change a recurring task",
		Long: `edit changes what flags are given for, and nothing else. The tasks that are not due
yet are withdrawn in the same transaction; it goes on from now.`,
		Example: `  rabbitdelay schedules edit nightly --cron "0 3 * * *"
  rabbitdelay schedules edit nightly --end 2026-12-31T00:00:00Z`,
		Args: oneSchedule,
		RunE: func(c *cobra.Command, names []string) error {
			return x.change(c.Context(), names, func(ctx context.Context, s schedule.Schedules, tx *sql.Tx, name string) error {
				return s.Edit(ctx, tx, name, func(r *schedule.Recurring) error { return d.apply(x.a, r) })
			})
		},
	}
	d.register(c.Flags())
	return c
}

// change does it to every name, each in a transaction of its own, and prints the
// recurring task as it is then.
func (x *schedules) change(ctx context.Context, names []string, do func(ctx context.Context, s schedule.Schedules, tx *sql.Tx, name string) error) error {
	return x.eachOf(ctx, names, func(ctx context.Context, db *sql.DB, s schedule.Schedules, name string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return fmt.Errorf("recurring task %s: %w", name, err)
		}
		defer func() { _ = tx.Rollback() }() // nothing after the commit
		if err := do(ctx, s, tx, name); err != nil {
			return err
		}
		r, err := s.Get(ctx, tx, name)
		if err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return fmt.Errorf("recurring task %s: committing: %w", name, err)
		}
		return x.changed(r)
	})
}

func (x *schedules) changed(r schedule.Recurring) error {
	now := time.Now()
	if x.a.JSON {
		return x.a.PrintJSON(asjson.RecurringOf(r, now, 1))
	}
	due := ""
	if next := r.Upcoming(now, 1); len(next) > 0 {
		due = fmt.Sprintf(", next %s (%s)", shown.Instant(next[0].DeliverAt), shown.FromNow(next[0].DeliverAt, now))
	}
	_, err := fmt.Fprintf(x.a.Stdout, "%s: %s%s\n", shown.Line(r.Name), r.State(now), due)
	if r.Origin == schedule.OriginConfig && !r.Paused {
		x.a.Notef("%s stands in a configuration file: migrate and relay set it to what that says", shown.Line(r.Name))
	}
	return err
}

func (x *schedules) pauseCommand() *cobra.Command {
	return x.changeCommand("pause", "Withdraw the tasks that are not due yet, and make no more", schedule.Schedules.Pause)
}

func (x *schedules) resumeCommand() *cobra.Command {
	return x.changeCommand("resume", "Go on from now; what would have happened meanwhile does not", schedule.Schedules.Resume)
}

func (x *schedules) changeCommand(verb, short string, change func(schedule.Schedules, context.Context, schedule.Executor, string) error) *cobra.Command {
	return &cobra.Command{
		Use:     verb + " NAME...",
		Short:   short,
		Example: "  rabbitdelay schedules " + verb + " nightly",
		Args:    someSchedules,
		RunE: func(c *cobra.Command, names []string) error {
			return x.change(c.Context(), names, func(ctx context.Context, s schedule.Schedules, tx *sql.Tx, name string) error {
				return change(s, ctx, tx, name)
			})
		},
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
			return x.eachOf(c.Context(), names, func(ctx context.Context, _ *sql.DB, s schedule.Schedules, name string) error {
				id, err := s.Fire(ctx, nil, name)
				if err != nil {
					return err
				}
				if x.a.JSON {
					return x.a.PrintJSON(map[string]string{"name": name, "id": id})
				}
				x.a.Printf("%s\n", shown.Line(id))
				return nil
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
			return x.eachOf(c.Context(), names, func(ctx context.Context, _ *sql.DB, s schedule.Schedules, name string) error {
				if err := s.Delete(ctx, nil, name); err != nil {
					return err
				}
				if x.a.JSON {
					return x.a.PrintJSON(map[string]string{"name": name, "state": "deleted"})
				}
				x.a.Printf("%s: deleted\n", shown.Line(name))
				return nil
			})
		},
	}
}
