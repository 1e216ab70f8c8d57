package cli

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

const (
	bulkHelp = "With filters instead of ids it " + bulkWay
	bulkWay  = `counts the tasks, asks, and changes them in
batches, each in its own transaction. Interrupted, it goes on when it is given
again.`
)

// bulk is one command that changes tasks by their ids or by a filter.
type bulk struct {
	filterFlags

	x     *tasks
	did   string // what it has done, such as "cancelled"
	of    string // to which tasks
	noIDs bool   // it takes filters only
	again string // the flag without which it must not be repeated, if any

	all, yes, dryRun bool
	batch            int
	pause, spread    duration
	limit            int64
	after            string

	changed bool // a task was
}

func (b *bulk) register(c *cobra.Command) {
	b.filterFlags.register(c)
	f := c.Flags()
	f.BoolVar(&b.all, "all", false, "all "+b.of+" tasks, without a filter")
	f.BoolVarP(&b.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&b.dryRun, "dry-run", false, "only count")
	f.IntVar(&b.batch, "batch", 500, "tasks of one transaction, up to 5000")
	f.Var(&b.pause, "pause", "pause between two batches; default none")
	f.Int64Var(&b.limit, "limit", 0, "the most tasks to change, 0 for all")
}

// spreads adds the flag for what gives tasks a new due instant.
func (b *bulk) spreads(c *cobra.Command) {
	c.Flags().Var(&b.spread, "spread", "spread the due instants of many tasks over this long; default all at once")
}

// bulkFlags are those that mean nothing with ids.
var bulkFlags = []string{"all", "yes", "dry-run", "batch", "pause", "limit", "spread", "after"}

// chosen tells whether the tasks are chosen by filters.
func (b *bulk) chosen(ids []string) (bool, error) {
	given := func(names []string) string {
		for _, name := range names {
			if b.x.a.Given(name) {
				return name
			}
		}
		return ""
	}
	filter := given(filterNames)
	switch {
	case len(ids) > 0 && filter != "":
		return false, fmt.Errorf("both task ids and --%s; give either ids or filters", filter)
	case len(ids) > 0 && given(bulkFlags) != "":
		return false, fmt.Errorf("--%s with task ids; it is for filters", given(bulkFlags))
	case len(ids) > 0:
		return false, nil
	case filter != "" && b.all:
		return false, fmt.Errorf("both --all and --%s; give one", filter)
	case filter == "" && !b.all && b.noIDs:
		return false, errors.New("no task; give a filter such as --queue, or --all")
	case filter == "" && !b.all:
		return false, errors.New("no task; give ids, a filter such as --queue, or --all")
	}
	return true, nil
}

// changeLine is the result, and with --dry-run what it would be.
type changeLine struct {
	Changed  int64   `json:"changed"`
	Matching int64   `json:"matching"` // at the beginning
	After    string  `json:"after,omitempty"`
	Seconds  float64 `json:"seconds"`
}

// run does one to each of the ids, or action to what the filter chooses.
func (b *bulk) run(c *cobra.Command, ids []string, action schedule.BulkAction, one change) error {
	many, err := b.chosen(ids)
	if err != nil {
		return err
	}
	if !many {
		return b.x.change(c.Context(), ids, one)
	}
	f, err := b.filter()
	if err != nil {
		return err
	}
	o := schedule.BulkOptions{Batch: b.batch, Pause: time.Duration(b.pause), Spread: time.Duration(b.spread), Limit: b.limit}
	if b.after != "" {
		if o.After, err = schedule.ParseBulkPlace(b.after); err != nil {
			return fmt.Errorf("--after: %w", err)
		}
	}
	if !b.yes && !b.dryRun && !b.x.a.interactive() {
		return errors.New("cannot ask, because standard input is not a terminal; give --yes to change the tasks without asking, or --dry-run to count them")
	}
	return b.x.on(c.Context(), func(ctx context.Context, _ *sql.DB, s *schedule.Store) error {
		n, err := s.BulkCount(ctx, f, action, o)
		if err != nil {
			return err
		}
		if b.dryRun || n == 0 {
			return b.tell(changeLine{Matching: n})
		}
		if !b.yes {
			if err := b.ask(n); err != nil {
				return err
			}
		}
		return b.change(ctx, s, f, action, o, n)
	})
}

func (b *bulk) ask(n int64) error {
	if _, err := fmt.Fprintf(b.x.a.Stderr, "%s tasks will be %s. Type yes to go on: ", grouped(n), b.did); err != nil {
		return err
	}
	line, err := b.x.a.answer()
	if err == nil && line != "yes" {
		err = errors.New("no task was changed")
	}
	return err
}

func (b *bulk) change(ctx context.Context, s *schedule.Store, f schedule.Filter, action schedule.BulkAction, o schedule.BulkOptions, n int64) error {
	began := time.Now()
	bar := b.x.a.Progress(int(n), b.did)
	o.Progress = func(p schedule.BulkProgress) { bar.Set(int(min(p.Changed, n)), b.did) }
	p, err := s.Bulk(ctx, f, action, o)
	bar.Clear()
	b.changed = p.Changed > 0
	line := changeLine{Changed: p.Changed, Matching: n, Seconds: seconds(time.Since(began))}
	if err != nil {
		line.After = p.Place.String()
	}
	if perr := b.tell(line); perr != nil {
		return perr
	}
	switch {
	case err == nil:
		return nil
	case b.again != "" && line.After != "":
		return fmt.Errorf("%w; to go on, give the same command with %s '%s': without it, tasks would be %s twice", err, b.again, line.After, b.did)
	}
	return fmt.Errorf("%w; give the command again to go on", err)
}

func (b *bulk) tell(l changeLine) error {
	switch {
	case b.x.a.JSON:
		return b.x.a.PrintJSON(l)
	case b.dryRun:
		b.x.a.Printf("dry run: %s tasks would be %s\n", grouped(l.Matching), b.did)
	default:
		b.x.a.Printf("%s of %s tasks %s in %.2f s\n", grouped(l.Changed), grouped(l.Matching), b.did, l.Seconds)
	}
	return nil
}

// grouped writes a number with separators.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// counted is "1 message" or "2,000 messages".
func counted(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return grouped(n) + " " + one + "s"
}

// shift is a flag that reads a duration with a sign.
type shift time.Duration

func (s *shift) String() string {
	d := duration(time.Duration(*s).Abs())
	if *s < 0 {
		return "-" + d.String()
	}
	return d.String()
}

func (s *shift) Type() string { return "duration" }

func (s *shift) Set(text string) error {
	var d duration
	digits := strings.TrimLeft(text, "+-")
	if err := d.Set(digits); err != nil || d == 0 || len(text)-len(digits) > 1 {
		return fmt.Errorf("expected a duration other than 0 such as 2h or -1d, got %q", text)
	}
	if strings.HasPrefix(text, "-") {
		d = -d
	}
	*s = shift(d)
	return nil
}
