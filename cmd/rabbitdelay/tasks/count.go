package tasks

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
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
	var per app.Duration
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
	c.Flags().Var(&per, "per", "count by due instant in steps of this length, such as 1h")
	return c
}

// numberLine is a line of a count.
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

// bins returns where a histogram begins, and how many steps it has.
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

func (x *tasks) histogram(ctx context.Context, s *app.Store, f schedule.Filter, from time.Time, width time.Duration, steps int) error {
	list, err := s.Histogram(ctx, schedule.NoTx, f, from, width, steps)
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
