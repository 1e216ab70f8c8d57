package messages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/deadletters"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// peekTimeout is the timeout for peeking at a queue.
const peekTimeout = time.Minute

// PeekCommand returns the peek command, which shows the first messages of a queue and puts them back.
func PeekCommand(a *app.App) *cobra.Command {
	queue, limit := "", inspect.DefaultPeek
	c := &cobra.Command{
		Use:   "peek --queue QUEUE",
		Short: "Show the first messages of a queue and put them back",
		Long: `Show the first messages of a queue and put them back. For dead letters and
parked messages it shows the reason, the errors and the destination.`,
		Example: `  rabbitdelay peek --queue orders.expire.dead
  rabbitdelay peek --queue delay.parked --limit 100 --json | jq -r .id`,
		RunE: func(c *cobra.Command, _ []string) error { return peek(c.Context(), a, queue, limit) },
	}
	c.Flags().StringVar(&queue, "queue", "", "the queue to inspect")
	c.Flags().IntVar(&limit, "limit", inspect.DefaultPeek, "maximum number of messages to show")
	return c
}

func peek(ctx context.Context, a *app.App, queue string, limit int) error {
	switch {
	case queue == "":
		return errors.New("no queue was given; give --queue")
	case limit < 1 || limit > inspect.MaxPeek:
		return fmt.Errorf("--limit: %d; expected 1 to %d", limit, inspect.MaxPeek)
	}
	c, err := a.Load(nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, peekTimeout)
	defer cancel()
	conn, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	defer app.Close(conn)
	m, err := a.ManagementIfThere(ctx, c, conn)
	if err != nil {
		return err
	}
	p, err := inspect.Peek(ctx, conn, queue, inspect.PeekOptions{Limit: limit, Prefix: c.Delay.Prefix, Management: m})
	if err != nil {
		return err
	}
	for i, message := range p.Messages {
		if err := printMessage(a, i+1, message); err != nil {
			return err
		}
	}
	switch {
	case len(p.Messages) == 0:
		a.Notef("no message is ready in %s; unacknowledged messages of consumers are not visible", shown.Line(queue))
	case p.More > 0:
		a.Notef("%d more messages are ready; --limit shows up to %d", p.More, inspect.MaxPeek)
	}
	for _, n := range p.Notes {
		a.Notef("note: %s", n)
	}
	return nil
}

// maxBodyShown is the maximum number of characters of a body in the human-readable output.
const maxBodyShown = 200

func printMessage(a *app.App, position int, m inspect.DeadLetter) error {
	if a.JSON {
		return a.PrintJSON(asjson.MessageOf(position, m))
	}
	now := time.Now()
	table := a.Table()
	a.Printf("%d. %s\n", position, shown.Line(cmp.Or(m.ID, "(no message id)")))
	table.Field("   reason", m.Reason)
	table.Field("   destination", m.Destination.String())
	table.When("   due", m.DueSince(), now)
	if m.Reason != "" {
		table.When("   since", m.Died, now)
	}
	table.Row("   attempt", strconv.Itoa(m.Attempt))
	table.Field("   error", m.Error)
	for _, attempt := range m.Attempts {
		table.Field("   failed", attempt)
	}
	table.When("   requeued", m.Requeued, now)
	for _, k := range slices.Sorted(maps.Keys(m.Headers)) {
		if !strings.HasPrefix(k, naming.HeaderPrefix) && !strings.HasPrefix(k, "x-") {
			table.Field("   header", fmt.Sprintf("%s=%v", k, m.Headers[k]))
		}
	}
	table.Field("   body", shown.Shorten(app.BodyText(m.Body), maxBodyShown))
	return table.Flush()
}

type errorsRun struct {
	*app.App

	queue  string
	parked bool
	order  string
	o      deadletters.GroupOptions
}

// ErrorsCommand returns the errors command, which groups the messages of a dead-letter queue by error.
func ErrorsCommand(a *app.App) *cobra.Command {
	r := &errorsRun{App: a}
	c := &cobra.Command{
		Use:   "errors",
		Short: "Group the messages of a dead-letter queue by error",
		Long: `Read a whole dead-letter queue, or the parked queue, and group its messages by
destination, reason and error. "requeue" and "discard" select the messages of a
group with --error-like.`,
		Example: `  rabbitdelay errors --queue orders.expire.dead
  rabbitdelay errors --queue orders.expire.dead --order most --limit 5
  rabbitdelay errors --parked --json | jq -r '.groups[].error_like'`,
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c.Context()) },
	}
	f := c.Flags()
	f.StringVar(&r.queue, "queue", "", "the dead-letter queue")
	f.BoolVar(&r.parked, "parked", false, "use the parked queue instead of --queue")
	f.IntVar(&r.o.Limit, "limit", deadletters.DefaultGroups, "maximum number of groups to show; the messages of other groups are only counted")
	program.Choice(c, &r.order, "order", string(deadletters.GroupsNewest), "sort groups by their newest or oldest dead letter, or by size",
		string(deadletters.GroupsNewest), string(deadletters.GroupsOldest), string(deadletters.GroupsMost))
	return c
}

func (r *errorsRun) run(ctx context.Context) error {
	switch {
	case !oneOf(r.queue != "", r.parked):
		return errors.New("expected exactly one of --queue and --parked")
	case r.o.Limit < 1 || r.o.Limit > deadletters.MaxGroups:
		return fmt.Errorf("--limit: %d; expected 1 to %d", r.o.Limit, deadletters.MaxGroups)
	}
	c, err := r.Load(nil)
	if err != nil {
		return err
	}
	if r.parked {
		r.queue = topology.ParkedQueue(c.Delay.Prefix)
	}
	conn, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	defer app.Close(conn)
	if r.o.Management, err = r.ManagementIfThere(ctx, c, conn); err != nil {
		return err
	}
	r.o.Order, r.o.Prefix = deadletters.GroupOrder(r.order), c.Delay.Prefix
	var bar *term.Progress
	r.o.Progress = func(looked, total int) {
		if bar == nil {
			bar = new(r.Progress(total, "examined"))
		}
		bar.Set(looked, "examined")
	}
	began := time.Now()
	g, err := deadletters.GroupErrors(ctx, conn, r.queue, r.o)
	if bar != nil {
		bar.Clear()
	}
	if err != nil {
		return err
	}
	return r.printGroups(g, time.Since(began))
}

func (r *errorsRun) printGroups(g deadletters.ErrorGroups, took time.Duration) error {
	if r.JSON {
		return r.PrintJSON(struct {
			deadletters.ErrorGroups
			Seconds float64 `json:"seconds"`
		}{g, app.Seconds(took)})
	}
	r.Printf("%s: %s of %s in %.2f s\n", shown.Line(g.Queue), shown.Number(g.Sampled), shown.Count(g.Total, "message", "messages"), took.Seconds())
	now := time.Now()
	for i, x := range g.Groups {
		r.Printf("%d. %s\n", i+1, shown.Line(cmp.Or(x.ErrorLike, "(unknown error)")))
		t := r.Table()
		t.Row("   messages", shown.Number(x.Messages))
		t.Field("   reason", x.Reason)
		t.Field("   destination", x.Destination)
		if x.First != nil {
			t.When("   first", *x.First, now)
			t.When("   last", *x.Last, now)
		}
		t.Field("   example", x.ExampleID)
		t.Field("   error", shown.Shorten(x.Example, maxBodyShown))
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if g.Others > 0 {
		r.Printf("%s in other groups\n", shown.Count(g.Others, "message is", "messages are"))
	}
	if g.AtLeast {
		r.Notef("note: there are more than %d groups, so some of the other messages may also belong to the groups shown", deadletters.MaxGroups)
	}
	for _, n := range g.Notes {
		r.Notef("note: %s", n)
	}
	return nil
}
