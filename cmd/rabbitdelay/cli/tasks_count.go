package cli

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
)

// queueLine is the number of tasks of one queue in one status.
type queueLine struct {
	Queue  string          `json:"queue"`
	Status schedule.Status `json:"status"`
	Count  int64           `json:"count"`
}

// binLine is the number of tasks that are due within a while.
type binLine struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Count int64  `json:"count"`
}

// totalLine is the result of count.
type totalLine struct {
	Total int64 `json:"total"`
}

// maxBins keeps a histogram readable and its statement short.
const maxBins = 1000

func (x *tasks) countCommand() *cobra.Command {
	var flags filterFlags
	var per duration
	c := &cobra.Command{
		Use:   "count",
		Short: "Count tasks by queue and status, or by due instant",
		Long: `count counts tasks by queue and status; tasks for exchanges are counted under
an empty queue name. With --per it counts them by due instant: from --due-from,
default now, to --due-to, default 24 steps later.

With --json each number is a line, {"queue":"…","status":"…","count":N} or
{"from":"…","to":"…","count":N}, and the last one is {"total":N}.`,
		Example: `  rabbitdelay tasks count
  rabbitdelay tasks count --status pending --per 1h --due-to 1d`,
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := flags.filter()
			if err != nil {
				return err
			}
			if !x.a.Given("per") {
				return x.on(c.Context(), func(ctx context.Context, _ *sql.DB, s *schedule.Store) error { return x.count(ctx, s, f) })
			}
			from, n, err := bins(f, time.Duration(per))
			if err != nil {
				return err
			}
			return x.on(c.Context(), func(ctx context.Context, _ *sql.DB, s *schedule.Store) error {
				return x.histogram(ctx, s, f, from, time.Duration(per), n)
			})
		},
	}
	flags.register(c)
	c.Flags().Var(&per, "per", "count by due instant in steps of this length, such as 1h")
	return c
}

func (x *tasks) count(ctx context.Context, s *schedule.Store, f schedule.Filter) error {
	counts, err := s.Count(ctx, nil, f)
	if err != nil {
		return err
	}
	var total int64
	table := tabwriter.NewWriter(x.a.Stdout, 0, 0, 2, ' ', 0)
	for i, c := range counts {
		total += c.Count
		if x.a.JSON {
			if err := x.a.PrintJSON(queueLine(c)); err != nil {
				return err
			}
			continue
		}
		if i == 0 {
			row(table, "QUEUE", "STATUS", "TASKS")
		}
		row(table, shown.Line(cmp.Or(c.Queue, "(exchanges)")), string(c.Status), strconv.FormatInt(c.Count, 10))
	}
	if x.a.JSON {
		return x.a.PrintJSON(totalLine{total})
	}
	row(table, "total", "", strconv.FormatInt(total, 10))
	return table.Flush()
}

// bins are where a histogram begins, and how many steps it has.
func bins(f schedule.Filter, width time.Duration) (from time.Time, n int, err error) {
	if width < time.Millisecond {
		return from, 0, fmt.Errorf("--per: %v; expected 1ms or more", width)
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
		return from, 0, fmt.Errorf("--due-to: %s; expected an instant after --due-from, %s", shown.Instant(f.DueTo), shown.Instant(from))
	}
	steps := (span-1)/width + 1
	if steps > maxBins {
		return from, 0, fmt.Errorf("--per: %v; %d steps up to --due-to, expected at most %d", width, steps, maxBins)
	}
	return from, int(steps), nil
}

func (x *tasks) histogram(ctx context.Context, s *schedule.Store, f schedule.Filter, from time.Time, width time.Duration, n int) error {
	list, err := s.Histogram(ctx, nil, f, from, width, n)
	if err != nil {
		return err
	}
	var total, most int64
	for _, b := range list {
		total += b.Count
		most = max(most, b.Count)
	}
	table := tabwriter.NewWriter(x.a.Stdout, 0, 0, 2, ' ', 0)
	for _, b := range list {
		if x.a.JSON {
			if err := x.a.PrintJSON(binLine{shown.Instant(b.From), shown.Instant(b.To), b.Count}); err != nil {
				return err
			}
			continue
		}
		const width = 40
		bar := int((b.Count*width + most - 1) / max(most, 1))
		row(table, shown.Instant(b.From), strconv.FormatInt(b.Count, 10), strings.Repeat("#", bar))
	}
	if x.a.JSON {
		return x.a.PrintJSON(totalLine{total})
	}
	row(table, "total", strconv.FormatInt(total, 10))
	return table.Flush()
}
