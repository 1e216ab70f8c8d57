package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/amqpx/trace"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// traceRun is one run of trace.
type traceRun struct {
	a      *app
	db     string
	limit  int
	queues []string
	scopes []string
}

func (a *app) traceCommand() *cobra.Command {
	r := &traceRun{a: a}
	c := &cobra.Command{
		Use:   "trace ID",
		Short: "Tell what has become of one message or task",
		Long: `trace says in a sentence whether a message or task has happened, or why nothing has,
and shows what it knows: the task's row, attempts and errors, what handlers have
recorded of it, and where it lies dead or parked. The records of idempotency are
looked for under the names of the destinations' queues; --scope adds others.

It looks through the dead-letter queues of the destinations and the parked queue
from their heads, up to --limit messages each, as "rabbitdelay peek" does, and says
how far it came. It does not look into delay queues, where it would make messages
late: it names those that are not empty. Nor does it look into destinations' queues,
whose consumers would wait; use "rabbitdelay peek".

Exit code: 0 something is known of the id; 1 nothing is, and the broker has it
nowhere, or an error; 2 not everything could be seen, or nothing is known of the id
and not every place was searched in which it may be.`,
		Example: `  rabbitdelay trace order-42-expire -f delays.yaml
  rabbitdelay trace order-42-expire -f delays.yaml --json | jq -r .why`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("expected one message id or task id, got %d; see %s --help", len(args), c.CommandPath())
			}
			if args[0] == "" {
				return fmt.Errorf("the id is empty; expected that of a message or task; see %s --help", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if r.limit < 1 || r.limit > amqpx.MaxPeek {
				return fmt.Errorf("--limit: %d; expected 1 to %d", r.limit, amqpx.MaxPeek)
			}
			return r.run(c.Context(), args[0])
		},
	}
	f := c.Flags()
	f.StringVar(&r.db, "db", "", databaseUsage+"; without it only the broker is searched")
	f.IntVar(&r.limit, "limit", amqpx.MaxPeek, "how many messages of each dead-letter queue to search")
	f.StringSliceVar(&r.queues, "queue", nil, "search this queue too")
	f.StringSliceVar(&r.scopes, "scope", nil, "look for a record of idempotency in this scope too")
	return c
}

func (r *traceRun) run(ctx context.Context, id string) error {
	c, err := r.a.Load(r.a.Database(r.db), nil)
	if err != nil {
		return err
	}
	src := trace.Source{Status: status.Source{Peek: r.limit}, Queues: r.queues, Scopes: r.scopes}
	if c.Database.URL != "" {
		db, err := openTasksDB(c)
		if err != nil {
			return err
		}
		defer func() { _ = db.Close() }() // nothing is under way
		src.DB = db
		if src.Status.Tasks, err = schedule.New(db, nil, schedule.Config{Logger: r.a.Logger()}); err != nil {
			return err
		}
	}
	defer r.a.Waiting("looking at the broker")()
	if err := r.a.examined(ctx, c, &src.Status.Want, &src.Status.Broker, "rabbitdelay trace"); err != nil {
		return err
	}
	t, err := trace.Take(ctx, id, src)
	if err != nil {
		return err
	}
	if r.a.JSON {
		err = r.a.PrintJSON(asjson.TraceOf(t))
	} else {
		err = r.print(t)
	}
	switch {
	case err != nil:
		return err
	case !t.Complete(), !t.Found() && !t.Everywhere():
		return program.Exit(exitBlind)
	case !t.Found():
		return program.Exit(program.ExitError)
	}
	return nil
}

func (r *traceRun) print(t trace.Trace) error {
	r.a.Printf("%s: %s\n", shown.Line(t.ID), shown.Line(t.Why))
	if t.Task != nil {
		r.a.Printf("\nits row\n")
		tasks := &tasks{a: r.a}
		if err := tasks.show(*t.Task); err != nil {
			return err
		}
	}
	table := tabwriter.NewWriter(r.a.Stdout, 0, 0, 2, ' ', 0)
	if len(t.Effects) > 0 {
		row(table, "HANDLER OF", "VERSION", "EFFECT", "RECORDED ATTEMPTS", "LEASE UNTIL")
		for _, e := range t.Effects {
			row(table, shown.Line(e.Queue), strconv.FormatInt(e.Version, 10), orNone(e.DoneAt), strconv.Itoa(e.Attempts), orNone(e.LeaseUntil))
		}
		row(table, "")
	}
	for _, x := range t.Records {
		outcome := "its effect was committed at"
		if x.Guarded {
			outcome = "a guard left the effect out at"
		}
		row(table, "recorded in "+shown.Line(x.Scope)+": "+outcome+" "+shown.Instant(x.ProcessedAt))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i, m := range t.Lying {
		r.a.Printf("\nin %s\n", shown.Line(m.Queue))
		if err := r.a.printMessage(i+1, m); err != nil {
			return err
		}
	}
	r.printSearch(t)
	return nil
}

func orNone(t time.Time) string {
	if t.IsZero() {
		return "none"
	}
	return shown.Instant(t)
}

// printSearch says where was looked, and where not.
func (r *traceRun) printSearch(t trace.Trace) {
	r.a.Printf("\nlooked at\n")
	switch {
	case t.Task != nil:
	case t.TasksKnown:
		r.a.Printf("- the table of tasks: no such id\n")
	default:
		r.a.Printf("- no table of tasks\n")
	}
	if t.RecordsKnown && len(t.Records) == 0 {
		r.a.Printf("- the records of idempotency in %s: no such id\n", shown.Line(orNothing(strings.Join(t.Scopes, ", "))))
	}
	for _, s := range t.Searched {
		switch {
		case s.Messages == 0:
			r.a.Printf("- %s: it is empty\n", shown.Line(s.Queue))
		case s.All():
			r.a.Printf("- %s: all %s\n", shown.Line(s.Queue), counted(s.Messages, "message"))
		default:
			r.a.Printf("- %s: only the first %d of %s\n", shown.Line(s.Queue), s.Looked, counted(s.Messages, "message"))
		}
	}
	if len(t.Searched) == 0 {
		r.a.Printf("- no dead-letter queue, and not the parked one: they could not be seen\n")
	}
	if len(t.Waiting) > 0 {
		r.a.Printf("\nnot looked into, because a message would be late: %s\n", delayNames(t.Waiting))
	}
	if len(t.Unsearched) > 0 {
		r.a.Printf("\nnot looked into, because consumers would wait: %s\n", shown.Line(strings.Join(t.Unsearched, ", ")))
	}
	for _, u := range t.Unseen {
		r.a.Printf("not seen: %s: %s\n", u.Area, shown.Line(u.Why))
	}
	for _, n := range t.Notes {
		r.a.Notef("note: %s", n)
	}
}

func orNothing(s string) string {
	if s == "" {
		return "no scope (give --scope)"
	}
	return s
}

// maxDelaysNamed is how many delay queues are named.
const maxDelaysNamed = 8

func delayNames(delays []status.Delay) string {
	var names []string
	for _, d := range delays[:min(len(delays), maxDelaysNamed)] {
		names = append(names, fmt.Sprintf("%s (%d, at most %s)", d.Queue, d.Waiting.Total(), topology.FormatDuration(time.Duration(d.Latest))))
	}
	if more := len(delays) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}
