package messages

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/tasks"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/trace"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

type traceRun struct {
	*app.App

	limit  int
	queues []string
	scopes []string
}

// TraceCommand returns the trace command, which shows what happened to one message or task.
func TraceCommand(a *app.App) *cobra.Command {
	r := &traceRun{App: a}
	c := &cobra.Command{
		Use:   "trace ID",
		Short: "Show what happened to one message or task",
		Long: `Explain in one sentence whether a message or task was handled, or why not, and
show what is known about it: its row, attempts and errors, what handlers
recorded, and dead or parked messages.`,
		Example: `  rabbitdelay trace order-42-expire -f delays.yaml
  rabbitdelay trace order-42-expire -f delays.yaml --json | jq -r .why`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("expected one message id or task id, got %d; see %s --help", len(args), c.CommandPath())
			}
			if args[0] == "" {
				return fmt.Errorf("the id is empty; expected the id of a message or task; see %s --help", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if r.limit < 1 || r.limit > inspect.MaxPeek {
				return fmt.Errorf("--limit: %d; expected 1 to %d", r.limit, inspect.MaxPeek)
			}
			return r.trace(c.Context(), args[0])
		},
	}
	f := c.Flags()
	app.DatabaseFlag(f, "; without a database, only the broker is searched")
	f.IntVar(&r.limit, "limit", inspect.MaxPeek, "maximum number of messages to search in each dead-letter queue")
	f.StringSliceVar(&r.queues, "queue", nil, "also search these queues")
	f.StringSliceVar(&r.scopes, "scope", nil, "also search these scopes for idempotency records")
	return c
}

func (r *traceRun) trace(ctx context.Context, id string) error {
	c, err := r.Load(nil)
	if err != nil {
		return err
	}
	src := trace.Source{Status: status.Source{Peek: r.limit}, Queues: r.queues, Scopes: r.scopes}
	if c.Database.URL != "" {
		s, err := r.OpenStore(c)
		if err != nil {
			return err
		}
		defer s.Close()
		src.DB, src.Status.Tasks = s.DB, s.Store
	}
	defer r.Waiting("inspecting the broker")()
	if err := r.Examined(ctx, c, &src.Status.Want, &src.Status.Broker, "rabbitdelay trace"); err != nil {
		return err
	}
	t, err := trace.Take(ctx, id, src)
	if err != nil {
		return err
	}
	if r.JSON {
		err = r.PrintJSON(asjson.TraceOf(t))
	} else {
		err = r.print(t)
	}
	switch {
	case err != nil:
		return err
	case !t.Complete(), !t.Found() && !t.Everywhere():
		return program.Exit(app.ExitUnseen)
	case !t.Found():
		return program.Exit(program.ExitError)
	}
	return nil
}

func (r *traceRun) print(t trace.Trace) error {
	r.Printf("%s: %s\n", shown.Line(t.ID), shown.Line(t.Why))
	if t.Task != nil {
		r.Printf("\nits row\n")
		if err := tasks.Show(r.Terminal, *t.Task); err != nil {
			return err
		}
	}
	table := r.Table()
	if len(t.Effects) > 0 {
		table.Row("HANDLER OF", "VERSION", "EFFECT", "RECORDED ATTEMPTS", "LEASE UNTIL")
		for _, e := range t.Effects {
			table.Row(shown.Line(e.Queue), strconv.FormatInt(e.Version, 10), orNone(e.DoneAt), strconv.Itoa(e.Attempts), orNone(e.LeaseUntil))
		}
		table.Row("")
	}
	for _, x := range t.Records {
		outcome := "its effect was committed at"
		if x.Guarded {
			outcome = "a guard skipped the effect at"
		}
		table.Row("recorded in " + shown.Line(x.Scope) + ": " + outcome + " " + shown.Instant(x.ProcessedAt))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i, m := range t.DeadLetters {
		r.Printf("\nin %s\n", shown.Line(m.Queue))
		if err := printMessage(r.App, i+1, m); err != nil {
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

func (r *traceRun) printSearch(t trace.Trace) {
	r.Printf("\nsearched\n")
	switch {
	case t.Task != nil:
	case t.TasksKnown:
		r.Printf("- the task table: no such id\n")
	case slices.ContainsFunc(t.Unchecked, func(u doctor.Unchecked) bool { return u.Area == doctor.AreaDatabase }):
		r.Printf("- not the task table, because the database could not be read\n")
	default:
		r.Printf("- no task table\n")
	}
	if t.RecordsKnown && len(t.Records) == 0 {
		r.Printf("- the idempotency records in %s: no such id\n", shown.Line(cmp.Or(strings.Join(t.Scopes, ", "), "no scope (give --scope)")))
	}
	for _, s := range t.Searched {
		ready := shown.Count(s.Messages, "ready message", "ready messages")
		switch {
		case s.ReadyOnly && s.Messages == 0:
			r.Printf("- %s: no ready message; others were not counted\n", shown.Line(s.Queue))
		case s.ReadyOnly && s.AllReady():
			r.Printf("- %s: %s; others were not counted\n", shown.Line(s.Queue), ready)
		case s.ReadyOnly:
			r.Printf("- %s: only the first %d of %s; others were not counted\n", shown.Line(s.Queue), s.Sampled, ready)
		case s.Messages == 0:
			r.Printf("- %s: it is empty\n", shown.Line(s.Queue))
		case s.All():
			r.Printf("- %s: %s\n", shown.Line(s.Queue), shown.Count(s.Messages, "message", "messages, all of them"))
		default:
			r.Printf("- %s: only the first %d of %s\n", shown.Line(s.Queue), s.Sampled, shown.Count(s.Messages, "message", "messages"))
		}
	}
	if t.Searched == nil {
		r.Printf("- neither dead-letter queues nor the parked queue, because they could not be inspected\n")
	}
	if t.Searched != nil && len(t.Searched) == 0 {
		r.Printf("- neither dead-letter queues nor the parked queue, because none is available\n")
	}
	if len(t.Waiting) > 0 {
		r.Printf("\nnot searched, because that would make messages late: %s\n", delayNames(t.Waiting))
	}
	if len(t.Unsearched) > 0 {
		r.Printf("\nnot searched, because consumers would have to wait: %s\n", shown.Line(strings.Join(t.Unsearched, ", ")))
	}
	for _, d := range t.Stuck {
		r.Printf("\nnot searched, because no client can read there: %s (%d, for which the exchange has no route)\n", shown.Line(d.Queue), d.Waiting.Total())
	}
	for _, u := range t.Unchecked {
		r.Printf("not checked: %s: %s\n", u.Area, shown.Line(u.Why))
	}
	for _, n := range t.Notes {
		r.Notef("note: %s", n)
	}
}

// maxDelaysNamed is the maximum number of delay queues that trace names.
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
