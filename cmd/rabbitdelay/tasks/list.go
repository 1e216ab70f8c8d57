package tasks

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
)

// listLimit is how many tasks list shows people who do not say how many.
const listLimit = 100

func (x *tasks) listCommand() *cobra.Command {
	var flags filterFlags
	limit, sort := 0, ""
	c := &cobra.Command{
		Use:   "list",
		Short: "List tasks in the order of their due instants, or of --sort",
		Long: `list prints tasks in the order of their due instants, or of --sort, with --json one
object a line. The column AT says where a pending task is: in the table only, or with
the broker. Bodies are not listed; see "tasks show".`,
		Example: `  rabbitdelay tasks list --queue orders.expire --status pending --due-to 1h
  rabbitdelay tasks list --status failed --sort ended-last --limit 20`,
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := flags.filter()
			if err != nil {
				return err
			}
			if limit < 0 {
				return fmt.Errorf("--limit: %d; expected 0 (no limit) or more", limit)
			}
			if !x.Given("limit") && !x.JSON {
				limit = listLimit
			}
			f.Limit, f.Sort, f.WithoutBody = limit, schedule.Sort(sort), true
			return x.WithStore(c.Context(), func(ctx context.Context, s *app.Store) error { return x.list(ctx, s, f) })
		},
	}
	flags.register(c)
	program.Choice(c, &sort, "sort", "", "another order, -last with the last one first", string(schedule.SortDueLast), string(schedule.SortEnded), string(schedule.SortEndedLast))
	c.Flags().IntVar(&limit, "limit", 0, "the most tasks to list, 0 for all; default 100, with --json all")
	return c
}

func (x *tasks) list(ctx context.Context, s *app.Store, f schedule.Filter) error {
	limit, more := f.Limit, false
	if limit > 0 {
		f.Limit++ // to see whether there are more
	}
	now := time.Now()
	head := []string{"ID", "DESTINATION", "STATUS", "DUE", "", "AT", "VERSION", "ATTEMPTS", "LAST ERROR"}
	n, err := term.List(x.Terminal, head, first(s.List(ctx, schedule.NoTx, f), limit, &more), func(t schedule.Task) (any, []string) {
		return asjson.TaskOf(t), []string{
			shown.Line(t.ID), shown.Line(t.Destination().String()), string(t.Status), shown.Instant(t.DeliverAt), shown.FromNow(t.DeliverAt, now), place(t),
			strconv.FormatInt(t.Version, 10), strconv.Itoa(t.Attempts), term.ShortError(t.LastError),
		}
	})
	switch {
	case err != nil:
		return err
	case n == 0:
		x.Notef("no such tasks")
	case more && !x.JSON:
		x.Notef("there are more than %d; --limit 0 lists all", limit)
	}
	return nil
}

// first yields the first items, up to limit unless that is 0, and then sets more
// if there are others.
func first[T any](items iter.Seq2[T, error], limit int, more *bool) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		n := 0
		for item, err := range items {
			if *more = limit > 0 && n == limit; *more {
				return
			}
			n++
			if !yield(item, err) {
				return
			}
		}
	}
}

// place returns where a pending task is: in the table only, or with the broker too.
func place(t schedule.Task) string {
	switch {
	case t.Status != schedule.StatusPending:
		return ""
	case t.SentAt.IsZero():
		return "table"
	}
	return "broker"
}

func (x *tasks) showCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show ID...",
		Short:   "Show all fields of tasks",
		Example: `  rabbitdelay tasks show order-42-expire --json`,
		Args:    someTasks,
		RunE: func(c *cobra.Command, ids []string) error {
			return x.WithStore(c.Context(), func(ctx context.Context, s *app.Store) error {
				return x.each(ids, func(id string) (schedule.Task, error) { return s.Get(ctx, schedule.NoTx, id) }, func(t schedule.Task) error { return Show(x.Terminal, t) })
			})
		},
	}
}

// Show prints a task with all its fields.
func Show(on *term.Terminal, t schedule.Task) error {
	if on.JSON {
		return on.PrintJSON(asjson.TaskOf(t))
	}
	now := time.Now()
	table := on.Table()
	table.Field("id", t.ID)
	table.Field("destination", t.Destination().String())
	table.Field("status", string(t.Status))
	table.When("due", t.DeliverAt, now)
	table.Row("version", strconv.FormatInt(t.Version, 10))
	table.Row("attempts", strconv.Itoa(t.Attempts))
	table.Field("last error", t.LastError)
	table.Row("sends", strconv.Itoa(t.Sends))
	table.When("sent", t.SentAt, now)
	table.When("created", t.CreatedAt, now)
	table.When("updated", t.UpdatedAt, now)
	table.When("finished", t.FinishedAt, now)
	if t.ExpiresAfter > 0 {
		table.When("expires", t.DeliverAt.Add(t.ExpiresAfter), now)
	}
	table.Field("unique key", t.UniqueKey)
	MessageRows(table, t)
	table.Row("")
	return table.Flush()
}

// MessageRows adds the rows of what a task or a recurring task sends.
func MessageRows(table *term.Table, t schedule.Task) {
	table.Field("content type", t.ContentType)
	table.Field("type", t.Type)
	table.Field("correlation id", t.CorrelationID)
	if t.Priority > 0 {
		table.Row("priority", strconv.Itoa(int(t.Priority)))
	}
	for _, k := range slices.Sorted(maps.Keys(t.Headers)) {
		table.Row("header", shown.Line(k)+"="+shown.Line(t.Headers[k]))
	}
	for _, tag := range t.Tags {
		table.Field("tag", tag)
	}
	table.Row("body", shown.Line(app.BodyText(t.Body)))
}
