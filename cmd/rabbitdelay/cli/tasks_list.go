package cli

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
)

// listLimit is how many tasks list shows people who do not say how many.
const listLimit = 100

func (x *tasks) listCommand() *cobra.Command {
	var flags filterFlags
	limit := 0
	c := &cobra.Command{
		Use:   "list",
		Short: "List tasks in the order of their due instants",
		Long: `list prints tasks in the order of their due instants, with --json one object a
line. The column AT says where a pending task is: in the table only, or with the
broker. Bodies are not listed; see "tasks show".`,
		Example: `  rabbitdelay tasks list --queue orders.expire --status pending --due-to 1h
  rabbitdelay tasks list --status failed --json`,
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := flags.filter()
			if err != nil {
				return err
			}
			if limit < 0 {
				return fmt.Errorf("--limit: %d; expected 0 (no limit) or more", limit)
			}
			if !x.a.Given("limit") && !x.a.JSON {
				limit = listLimit
			}
			f.Limit, f.WithoutBody = limit, true
			return x.on(c.Context(), func(ctx context.Context, _ *sql.DB, s *schedule.Store) error { return x.list(ctx, s, f) })
		},
	}
	flags.register(c)
	c.Flags().IntVar(&limit, "limit", 0, "the most tasks to list, 0 for all; default 100, with --json all")
	return c
}

func (x *tasks) list(ctx context.Context, s *schedule.Store, f schedule.Filter) error {
	limit := f.Limit
	if limit > 0 {
		f.Limit++ // tells whether there are more
	}
	table := tabwriter.NewWriter(x.a.Stdout, 0, 0, 2, ' ', 0)
	now := time.Now()
	n := 0
	for t, err := range s.List(ctx, nil, f) {
		if err != nil {
			return err
		}
		if n++; limit > 0 && n > limit {
			break
		}
		if x.a.JSON {
			if err := x.a.PrintJSON(asjson.TaskOf(t)); err != nil {
				return err
			}
			continue
		}
		if n == 1 {
			row(table, "ID", "DESTINATION", "STATUS", "DUE", "", "AT", "VERSION", "ATTEMPTS", "LAST ERROR")
		}
		row(table, shown.Line(t.ID), shown.Line(t.Destination().String()), string(t.Status), shown.Instant(t.DeliverAt), shown.FromNow(t.DeliverAt, now), place(t),
			strconv.FormatInt(t.Version, 10), strconv.Itoa(t.Attempts), shown.Line(shown.Shorten(t.LastError, 60)))
		if n%1000 == 0 { // what is shown first need not wait for a million
			if err := table.Flush(); err != nil {
				return err
			}
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	switch {
	case n == 0:
		x.a.Notef("no such tasks")
	case limit > 0 && n > limit && !x.a.JSON:
		x.a.Notef("there are more than %d; --limit 0 lists all", limit)
	}
	return nil
}

// row writes a line of a table.
func row(w io.Writer, cells ...string) {
	_, _ = fmt.Fprintln(w, strings.TrimRight(strings.Join(cells, "\t"), "\t")) // Flush says what went wrong
}

func (x *tasks) showCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show ID...",
		Short:   "Show all fields of tasks",
		Example: `  rabbitdelay tasks show order-42-expire --json`,
		Args:    someTasks,
		RunE: func(c *cobra.Command, ids []string) error {
			return x.on(c.Context(), func(ctx context.Context, _ *sql.DB, s *schedule.Store) error {
				return x.each(ids, func(id string) (schedule.Task, error) { return s.Get(ctx, nil, id) }, x.show)
			})
		},
	}
}

func (x *tasks) show(t schedule.Task) error {
	if x.a.JSON {
		return x.a.PrintJSON(asjson.TaskOf(t))
	}
	now := time.Now()
	table := tabwriter.NewWriter(x.a.Stdout, 0, 0, 2, ' ', 0)
	when := func(name string, at time.Time) {
		if !at.IsZero() {
			row(table, name, fmt.Sprintf("%s (%s)", shown.Instant(at), shown.FromNow(at, now)))
		}
	}
	row(table, "id", shown.Line(t.ID))
	row(table, "destination", shown.Line(t.Destination().String()))
	row(table, "status", string(t.Status))
	when("due", t.DeliverAt)
	row(table, "version", strconv.FormatInt(t.Version, 10))
	row(table, "attempts", strconv.Itoa(t.Attempts))
	if t.LastError != "" {
		row(table, "last error", shown.Line(t.LastError))
	}
	row(table, "sends", strconv.Itoa(t.Sends))
	when("sent", t.SentAt)
	when("created", t.CreatedAt)
	when("updated", t.UpdatedAt)
	when("finished", t.FinishedAt)
	for _, p := range []struct{ name, value string }{
		{"content type", t.ContentType}, {"type", t.Type}, {"correlation id", t.CorrelationID},
	} {
		if p.value != "" {
			row(table, p.name, shown.Line(p.value))
		}
	}
	if t.Priority > 0 {
		row(table, "priority", strconv.Itoa(int(t.Priority)))
	}
	if t.ExpiresAfter > 0 {
		when("expires", t.DeliverAt.Add(t.ExpiresAfter))
	}
	rowsOfTask(table, t)
	if err := table.Flush(); err != nil {
		return err
	}
	x.a.Printf("\n")
	return nil
}

// rowsOfTask are those of what a task and a recurring one have in common.
func rowsOfTask(table io.Writer, t schedule.Task) {
	for _, k := range slices.Sorted(maps.Keys(t.Headers)) {
		row(table, "header", shown.Line(k)+"="+shown.Line(t.Headers[k]))
	}
	for _, tag := range t.Tags {
		row(table, "tag", shown.Line(tag))
	}
	row(table, "body", shown.Line(bodyText(t.Body)))
}

// bodyText is a body for people.
func bodyText(body []byte) string {
	if !utf8.Valid(body) {
		return fmt.Sprintf("(%d bytes)", len(body))
	}
	return string(body)
}

// someTasks is an argument check.
func someTasks(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no task id; give one or more; see %s --help", c.CommandPath())
	}
	return nil
}

// refused is the line of a task that could not be shown or changed.
type refused struct {
	ID    string `json:"id"`
	Error string `json:"error"`
}

// each does something with every id, and prints what became of it. One that
// fails does not hold up the others, and has a line of its own on standard error.
func (x *tasks) each(ids []string, do func(id string) (schedule.Task, error), tell func(schedule.Task) error) error {
	code := program.ExitOK
	for _, id := range ids {
		t, err := do(id)
		if err != nil {
			err = advise(err)
			code = program.ExitError
			x.a.PrintError(err)
			if !x.a.JSON {
				continue
			}
			if err := x.a.PrintJSON(refused{id, err.Error()}); err != nil {
				return err
			}
			continue
		}
		if err := tell(t); err != nil {
			return err
		}
	}
	return program.Exit(code)
}
