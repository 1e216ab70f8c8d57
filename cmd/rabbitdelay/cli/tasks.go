package cli

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// tasks is one run of a subcommand of tasks.
type tasks struct {
	a  *app
	db string
}

const databaseUsage = "database: postgres://…, mysql://… or sqlite:path; default database.url, RABBITDELAY_DATABASE_URL"

func (a *app) tasksCommand() *cobra.Command {
	x := &tasks{a: a}
	c := &cobra.Command{
		Use:   "tasks",
		Short: "Look at, cancel, move, fire and revive scheduled tasks",
		Long: `tasks works on the table rabbitdelay_tasks of a business database. The row decides,
wherever the task's message is, and a relay does the sending: only revive talks to
the broker, to remove dead letters.

list and count select tasks by destination, status, due instant, id prefix, tag
and header. cancel, reschedule, fire and revive take ids and change each in its own
transaction, or take the same filters: they then count the tasks, ask, and change
them in batches. delete takes filters only. The exit code is 1 if a task does not
exist or its status does not allow the change.`,
		Example: `  rabbitdelay tasks list --db postgres://user:password@host/shop --status failed
  rabbitdelay tasks reschedule order-42-expire --delay 30m
  rabbitdelay tasks cancel --queue mail --tag campaign-7
  rabbitdelay tasks reschedule --queue mail --at "tomorrow 08:00 Europe/Berlin" --spread 10m`,
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.PersistentFlags().StringVar(&x.db, "db", "", databaseUsage)
	c.AddCommand(
		x.listCommand(), x.showCommand(), x.countCommand(), x.addCommand(),
		x.cancelCommand(), x.rescheduleCommand(), x.fireCommand(), x.reviveCommand(), x.deleteCommand(),
	)
	return c
}

// on runs do on the tasks of the database.
func (x *tasks) on(ctx context.Context, do func(ctx context.Context, db *sql.DB, s *schedule.Store) error) error {
	cfg, err := x.a.Load(x.a.Database(x.db), nil)
	if err != nil {
		return err
	}
	db, err := openTasksDB(cfg)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // nothing is under way
	s, err := schedule.New(db, nil, schedule.Config{Destination: cfg.Listed, Logger: x.a.Logger()})
	if err != nil {
		return err
	}
	if err := checkTasks(ctx, s); err != nil {
		return err
	}
	return do(ctx, db, s)
}

var errNoDatabase = errors.New("no database; give --db, database.url in the file, or RABBITDELAY_DATABASE_URL")

// openTasksDB opens a database that is there already: a file of SQLite that does
// not exist is a mistake here, and not a new database.
func openTasksDB(cfg *config.Config) (*sql.DB, error) {
	u := cfg.Database.URL
	if u == "" {
		return nil, errNoDatabase
	}
	if d, err := config.Dialect(u); err == nil && d == idempotency.SQLite && !strings.Contains(string(u), "mode=") {
		separator := config.URL("?")
		if strings.Contains(string(u), "?") {
			separator = "&"
		}
		u += separator + "mode=rw"
	}
	db, _, err := config.OpenDB(u)
	if err != nil {
		return nil, fmt.Errorf("--db: %w", err)
	}
	return db, nil
}

// answering is how long a database may take to answer at all: some have to be woken.
// Tests have less patience.
var answering = 10 * time.Second

// checkDatabase returns why a database does not answer.
func checkDatabase(ctx context.Context, s *schedule.Store) error {
	if err := s.Ping(ctx, answering); err != nil {
		if text := err.Error(); strings.Contains(text, "unable to open database file") || strings.Contains(text, "readonly database") { // SQLite's; it says no more
			err = fmt.Errorf("%w; expected a file that is there, and the right to write it and its directory; \"rabbitdelay migrate\" makes a new one", err)
		}
		return fmt.Errorf("connecting to the database: %w", err)
	}
	return nil
}

// checkTasks returns why a database cannot be used, before anything is begun.
func checkTasks(ctx context.Context, s *schedule.Store) error {
	if err := checkDatabase(ctx, s); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	for _, err := range s.List(ctx, nil, schedule.Filter{Status: schedule.StatusPending, Limit: 1, WithoutBody: true}) {
		return err
	}
	return nil
}

// place is where a pending task is: in the table only, or with the broker too.
func place(t schedule.Task) string {
	switch {
	case t.Status != schedule.StatusPending:
		return ""
	case t.SentAt.IsZero():
		return "table"
	}
	return "broker"
}

// moment is a flag that reads RFC 3339, or a duration from now on.
type moment struct {
	at   time.Time
	text string
}

func (m *moment) String() string { return m.text }
func (m *moment) Type() string   { return "time" }

func (m *moment) Set(s string) error {
	if s == "now" {
		*m = moment{time.Now(), s}
		return nil
	}
	var i instant
	if s != "" && s[0] != '+' && s[0] != '-' && i.Set(s) == nil {
		*m = moment{time.Time(i), s}
		return nil
	}
	var d duration
	digits := strings.TrimPrefix(s, "+")
	if digits == s {
		digits = strings.TrimPrefix(s, "-")
	}
	if err := d.Set(digits); err != nil || d < 0 || strings.HasPrefix(digits, "+") {
		return fmt.Errorf("expected an instant such as 2026-01-31T08:00:00Z, now, or a duration from now such as 2h or -7d, got %q", s)
	}
	if strings.HasPrefix(s, "-") {
		d = -d
	}
	*m = moment{time.Now().Add(time.Duration(d)), s}
	return nil
}

var taskStatuses = []string{string(schedule.StatusPending), string(schedule.StatusRunning), string(schedule.StatusDone), string(schedule.StatusCancelled), string(schedule.StatusExpired), string(schedule.StatusFailed)}

// filterFlags are those of list and count.
type filterFlags struct {
	queue, exchange, status, prefix, tag, header string
	from, to                                     moment
}

// filterNames are the flags that choose tasks.
var filterNames = []string{"queue", "exchange", "status", "due-from", "due-to", "id-prefix", "tag", "header"}

func (x *filterFlags) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&x.queue, "queue", "", "tasks for this queue")
	f.StringVar(&x.exchange, "exchange", "", "tasks for this exchange")
	f.StringVar(&x.tag, "tag", "", "tasks with this tag")
	f.StringVar(&x.header, "header", "", "tasks with this header, `name=value`")
	f.StringVar(&x.status, "status", "", "pending, running, done, cancelled, expired or failed")
	f.Var(&x.from, "due-from", "tasks due at or after this instant, or this long from now, such as 2h or -7d")
	f.Var(&x.to, "due-to", "tasks due before this instant, or before this long from now")
	f.StringVar(&x.prefix, "id-prefix", "", "tasks whose id has this prefix")
	_ = c.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(taskStatuses, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
}

func (x *filterFlags) filter() (schedule.Filter, error) {
	f := schedule.Filter{Queue: x.queue, Exchange: x.exchange, Status: schedule.Status(x.status), DueFrom: x.from.at, DueTo: x.to.at, IDPrefix: x.prefix, Tag: x.tag}
	if x.header != "" {
		var ok bool
		if f.Header, f.HeaderValue, ok = strings.Cut(x.header, "="); !ok || f.Header == "" {
			return f, fmt.Errorf("--header: expected name=value, got %q", x.header)
		}
	}
	if x.status != "" && !slices.Contains(taskStatuses, x.status) {
		return f, fmt.Errorf("--status: %q; expected pending, running, done, cancelled, expired or failed", x.status)
	}
	if !f.DueFrom.IsZero() && !f.DueTo.IsZero() && !f.DueFrom.Before(f.DueTo) {
		return f, fmt.Errorf("--due-to: %s; expected an instant after --due-from, %s", shown.Instant(f.DueTo), shown.Instant(f.DueFrom))
	}
	return f, nil
}
