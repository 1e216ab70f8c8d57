package cli

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// schedules is one run of a subcommand of schedules.
type schedules struct{ tasks }

func (a *app) schedulesCommand() *cobra.Command {
	x := &schedules{tasks{a: a}}
	c := &cobra.Command{
		Use:   "schedules",
		Short: "Look at, add, change, pause, fire and delete recurring tasks",
		Long: `schedules works on recurring tasks, the table rabbitdelay_schedules of a business
database. Each occurrence is a task of its own, NAME@INSTANT, which a relay makes
ahead; see "rabbitdelay tasks list --id-prefix NAME@". A change withdraws the tasks
that are not due yet, in the same transaction, and goes on from now.

Those of a file's section schedules are written by "rabbitdelay migrate" and by
"rabbitdelay relay" at their start, which undoes what was changed here. Neither
pauses, resumes or deletes any.`,
		Example: `  rabbitdelay schedules add nightly --cron "30 2 * * *" --time-zone Europe/Berlin --queue reports
  rabbitdelay schedules next nightly
  rabbitdelay schedules pause nightly`,
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.PersistentFlags().StringVar(&x.db, "db", "", databaseUsage)
	c.AddCommand(
		x.listCommand(), x.showCommand(), x.nextCommand(), x.addCommand(), x.editCommand(),
		x.pauseCommand(), x.resumeCommand(), x.fireCommand(), x.deleteCommand(),
	)
	return c
}

// scheduleLine is a recurring task as --json has it.
type scheduleLine struct {
	Name         string            `json:"name"`
	State        string            `json:"state"`
	Cron         string            `json:"cron,omitempty"`
	TimeZone     string            `json:"time_zone,omitempty"`
	Every        string            `json:"every,omitempty"`
	Start        string            `json:"start,omitempty"`
	End          string            `json:"end,omitempty"`
	Jitter       string            `json:"jitter,omitempty"`
	Misfire      schedule.Misfire  `json:"misfire"`
	MisfireLimit int               `json:"misfire_limit,omitempty"`
	Overlap      schedule.Overlap  `json:"overlap"`
	Queue        string            `json:"queue,omitempty"`
	Exchange     string            `json:"exchange,omitempty"`
	RoutingKey   string            `json:"routing_key,omitempty"`
	Type         string            `json:"type,omitempty"`
	Correlation  string            `json:"correlation_id,omitempty"`
	Priority     uint8             `json:"priority,omitempty"`
	ContentType  string            `json:"content_type,omitempty"`
	Expires      string            `json:"expires_after,omitempty"`
	Headers      map[string]string `json:"headers,omitempty"`
	Tags         []string          `json:"tags,omitempty"`
	Body         string            `json:"body,omitempty"`
	Binary       []byte            `json:"body_base64,omitempty"` // instead of body when that is not UTF-8
	Next         []string          `json:"next,omitempty"`
	Skipped      string            `json:"skipped,omitempty"`
	LastError    string            `json:"last_error,omitempty"`
	Origin       string            `json:"origin,omitempty"`
	Version      int64             `json:"version"`
	Created      string            `json:"created"`
	Updated      string            `json:"updated"`
}

func scheduleLineOf(r schedule.Recurring, next []schedule.Occurrence) scheduleLine {
	t := r.Task
	l := scheduleLine{
		Name: r.Name, State: stateOf(r, next), Cron: r.Cron, Start: optionalMilli(r.Start), End: optionalMilli(r.End),
		Misfire: r.Misfire, Overlap: r.Overlap, Queue: t.Queue, Exchange: t.Exchange, RoutingKey: t.RoutingKey,
		Type: t.Type, Correlation: t.CorrelationID, Priority: t.Priority, ContentType: t.ContentType, Headers: t.Headers, Tags: t.Tags,
		Skipped: optionalMilli(r.SkippedAt), LastError: r.LastError, Origin: r.Origin, Version: r.Version,
		Created: milli(r.CreatedAt), Updated: milli(r.UpdatedAt),
	}
	if r.Cron != "" {
		l.TimeZone = r.TimeZone
	} else {
		l.Every = topology.FormatDuration(r.Every)
	}
	if r.Jitter > 0 {
		l.Jitter = topology.FormatDuration(r.Jitter)
	}
	if t.ExpiresAfter > 0 {
		l.Expires = topology.FormatDuration(t.ExpiresAfter)
	}
	if r.Misfire == schedule.MisfireAll {
		l.MisfireLimit = r.MisfireLimit
	}
	for _, o := range next {
		l.Next = append(l.Next, milli(o.DeliverAt))
	}
	l.Body, l.Binary = textOrBinary(t.Body)
	return l
}

// stateOf is what a recurring task is at.
func stateOf(r schedule.Recurring, next []schedule.Occurrence) string {
	switch {
	case r.LastError != "":
		return "wrong"
	case r.Paused:
		return "paused"
	case len(next) == 0:
		return "ended"
	}
	return "active"
}

// timetableOf says in words when it recurs.
func timetableOf(r schedule.Recurring) string {
	if r.Cron == "" {
		return "every " + topology.FormatDuration(r.Every)
	}
	return r.Cron + " " + r.TimeZone
}

// upcoming are its next occurrences, none if it is paused or wrong.
func upcoming(r schedule.Recurring, n int) []schedule.Occurrence {
	if r.Paused || r.LastError != "" {
		return nil
	}
	list, err := r.Next(time.Now(), n)
	if err != nil { // this machine may not know the time zone
		return nil
	}
	return list
}

// eachOf does something with every name. One that fails does not hold up the
// others, and has a line of its own on standard error.
func (x *schedules) eachOf(ctx context.Context, names []string, do func(ctx context.Context, db *sql.DB, s schedule.Schedules, name string) error) error {
	return x.on(ctx, func(ctx context.Context, db *sql.DB, s *schedule.Store) error {
		code := program.ExitOK
		for _, name := range names {
			if err := do(ctx, db, s.Schedules(), name); err != nil {
				if errors.Is(err, schedule.ErrNoSchedule) {
					err = fmt.Errorf("%w; \"rabbitdelay schedules list\" shows those there are", err)
				}
				code = program.ExitError
				x.a.PrintError(err)
			}
		}
		return program.Exit(code)
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
