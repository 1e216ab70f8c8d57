package tasks

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// listLimit is the default number of tasks in the human-readable output of list.
const listLimit = 100

func (x *tasks) listCommand() *cobra.Command {
	var flags filterFlags
	limit, sort := 0, ""
	c := &cobra.Command{
		Use:   "list",
		Short: "List tasks in the order in which they are due",
		Long: `List tasks in the order in which they are due, or in the order of --sort. The
column AT shows whether a pending task is only in the table, or on the broker.`,
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
	program.Choice(c, &sort, "sort", "", "order of the list; default: by due time, earliest first (-last means latest first)", string(schedule.SortDueLast), string(schedule.SortEnded), string(schedule.SortEndedLast))
	c.Flags().IntVar(&limit, "limit", 0, "maximum number of tasks to list, 0 for all; default: 100, or all with --json")
	return c
}

func (x *tasks) list(ctx context.Context, s *app.Store, f schedule.Filter) error {
	limit, more := f.Limit, false
	if limit > 0 {
		f.Limit++ // to find out whether there are more
	}
	now := time.Now()
	head := []string{"ID", "DESTINATION", "STATUS", "DUE", "", "AT", "VERSION", "ATTEMPTS", "LAST ERROR"}
	n, err := term.List(x.Terminal, head, first(s.List(ctx, schedule.NoTx, f), limit, &more), func(t schedule.TaskRow) (any, []string) {
		return asjson.TaskOf(t), []string{
			shown.Line(t.ID), shown.Line(t.Destination().String()), string(t.Status), shown.Instant(t.DueSince()), shown.FromNow(t.DueSince(), now), place(t),
			strconv.FormatInt(t.Version, 10), strconv.Itoa(t.Attempts), term.ShortError(t.LastError),
		}
	})
	switch {
	case err != nil:
		return err
	case n == 0:
		x.Notef("no matching tasks")
	case more && !x.JSON:
		x.Notef("there are more than %d; --limit 0 lists all", limit)
	}
	return nil
}

// first yields at most limit items, or all items if limit is 0. It sets more if there are more items.
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

func place(t schedule.TaskRow) string {
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
				return x.each(ids, func(id string) (schedule.TaskRow, error) { return s.Get(ctx, schedule.NoTx, id) }, func(t schedule.TaskRow) error { return Show(x.Terminal, t) })
			})
		},
	}
}

// Show prints a task with all its fields.
func Show(on *term.Terminal, t schedule.TaskRow) error {
	if on.JSON {
		return on.PrintJSON(asjson.TaskOf(t))
	}
	now := time.Now()
	table := on.Table()
	table.Field("id", t.ID)
	table.Field("destination", t.Destination().String())
	table.Field("status", string(t.Status))
	table.When("due", t.DueSince(), now)
	table.Row("version", strconv.FormatInt(t.Version, 10))
	table.Row("attempts", strconv.Itoa(t.Attempts))
	table.Field("last error", t.LastError)
	table.Row("sends", strconv.Itoa(t.Sends))
	table.When("sent", t.SentAt, now)
	if !t.ResendAt.IsZero() && t.Status == schedule.StatusPending {
		table.Row("resend", shown.Instant(t.ResendAt)+" ("+shown.FromNow(t.ResendAt, now)+") at the earliest, if its message is lost")
	}
	table.When("created", t.CreatedAt, now)
	table.When("updated", t.UpdatedAt, now)
	table.When("finished", t.FinishedAt, now)
	if t.ExpiresAfter > 0 {
		table.When("expires", t.DueSince().Add(t.ExpiresAfter), now)
	}
	table.Field("unique key", t.UniqueKey)
	MessageRows(table, t.Task)
	table.Row("")
	return table.Flush()
}

// MessageRows adds the rows for the message of a task or a recurring task.
func MessageRows(table *term.Table, t schedule.Task) {
	for _, p := range taskview.Properties {
		table.Field(p.Words(), p.Of(t))
	}
	for _, k := range slices.Sorted(maps.Keys(t.Headers)) {
		table.Row("header", shown.Line(k)+"="+shown.Line(t.Headers[k]))
	}
	for _, tag := range t.Tags {
		table.Field("tag", tag)
	}
	table.Row("body", shown.Line(app.BodyText(t.Body)))
}

type queueLine struct {
	Queue  string          `json:"queue"`
	Status schedule.Status `json:"status"`
	Count  int64           `json:"count"`
}

type binLine struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Count int64  `json:"count"`
}

type totalLine struct {
	Total int64 `json:"total"`
}

// maxBins is the maximum number of intervals of a histogram. It keeps the histogram readable and its SQL statement
// short.
const maxBins = 1000

func (x *tasks) countCommand() *cobra.Command {
	var flags filterFlags
	var per app.Duration
	c := &cobra.Command{
		Use:   "count",
		Short: "Count tasks by queue and status, or by due time",
		Long:  `Count tasks by queue and status, or by due time with --per.`,
		Example: `  rabbitdelay tasks count
  rabbitdelay tasks count --status pending --per 1h --due-to 1d`,
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := flags.filter()
			if err != nil {
				return err
			}
			if !x.Given("per") {
				return x.WithStore(c.Context(), func(ctx context.Context, s *app.Store) error { return x.count(ctx, s, f) })
			}
			from, n, err := bins(f, time.Duration(per))
			if err != nil {
				return err
			}
			return x.WithStore(c.Context(), func(ctx context.Context, s *app.Store) error {
				return x.histogram(ctx, s, f, from, time.Duration(per), n)
			})
		},
	}
	flags.register(c)
	c.Flags().Var(&per, "per", "count by due time in intervals of this length, such as 1h")
	return c
}

type numberLine struct {
	object any
	cells  []string
}

func (x *tasks) printNumbers(head []string, lines []numberLine) error {
	_, err := term.List(x.Terminal, head, term.Each(lines), func(l numberLine) (any, []string) { return l.object, l.cells })
	return err
}

func (x *tasks) count(ctx context.Context, s *app.Store, f schedule.Filter) error {
	counts, err := s.Count(ctx, schedule.NoTx, f)
	if err != nil {
		return err
	}
	var head []string
	var lines []numberLine
	var total int64
	for _, c := range counts {
		head = []string{"QUEUE", "STATUS", "TASKS"}
		lines = append(lines, numberLine{queueLine(c), []string{shown.Line(cmp.Or(c.Queue, "(exchanges)")), string(c.Status), strconv.FormatInt(c.Count, 10)}})
		total += c.Count
	}
	return x.printNumbers(head, append(lines, numberLine{totalLine{total}, []string{"total", "", strconv.FormatInt(total, 10)}}))
}

// bins returns the start of a histogram and its number of intervals.
func bins(f schedule.Filter, width time.Duration) (from time.Time, n int, err error) {
	if width < time.Millisecond {
		return from, 0, fmt.Errorf("--per: %s; expected 1ms or more", topology.FormatDuration(width))
	}
	from, n = f.DueFrom, 24
	if from.IsZero() {
		from = time.Now().Truncate(time.Second)
	}
	if f.DueTo.IsZero() {
		return from, n, nil
	}
	span := f.DueTo.Sub(from)
	if span <= 0 {
		return from, 0, fmt.Errorf("--due-to: %s; expected a time after --due-from, which is %s", shown.Instant(f.DueTo), shown.Instant(from))
	}
	steps := (span-1)/width + 1
	if steps > maxBins {
		return from, 0, fmt.Errorf("--per: %s results in %d intervals up to --due-to; expected at most %d", topology.FormatDuration(width), steps, maxBins)
	}
	return from, int(steps), nil
}

func (x *tasks) histogram(ctx context.Context, s *app.Store, f schedule.Filter, from time.Time, width time.Duration, steps int) error {
	list, err := s.Histogram(ctx, f, from, width, steps)
	if err != nil {
		return err
	}
	var total, most int64
	for _, b := range list {
		total += b.Count
		most = max(most, b.Count)
	}
	const columns = 40
	var lines []numberLine
	for _, b := range list {
		from, bar := shown.Instant(b.From), int((b.Count*columns+most-1)/max(most, 1))
		lines = append(lines, numberLine{binLine{from, shown.Instant(b.To), b.Count}, []string{from, strconv.FormatInt(b.Count, 10), strings.Repeat("#", bar)}})
	}
	return x.printNumbers(nil, append(lines, numberLine{totalLine{total}, []string{"total", strconv.FormatInt(total, 10)}}))
}
