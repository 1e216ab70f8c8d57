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

	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// peekTimeout is the timeout for peeking at a queue.
const peekTimeout = time.Minute

// PeekCommand returns the command peek.
func PeekCommand(a *app.App) *cobra.Command {
	queue, limit := "", inspect.DefaultPeek
	c := &cobra.Command{
		Use:   "peek --queue QUEUE",
		Short: "Show the messages at the head of a queue, and leave them there",
		Long: `peek reads the first messages of a queue and puts them back: nothing is taken and
no delivery limit is spent. It shows what rabbitdelay's headers say: when the
message was due, its attempts and errors, why it is a dead letter or parked, and
where it belongs. With --json it prints one object for each message.

Before RabbitMQ 4.3 each look counts towards the delivery limit of a quorum queue,
20 by default from 4.0 on. There peek needs the management API, which tells the
limit, and refuses queues that have one; it says what to do instead. Queues that
rabbitdelay declared have none that is ever reached.

For some milliseconds consumers do not get the messages, and after it they have the
redelivered flag. Before 4.0 a quorum queue puts them at its end. peek does not
look into delay queues, where it would make messages late; see "rabbitdelay status".

Exit code: 0 shown, also when the queue is empty; 1 refused, or an error.`,
		Example: `  rabbitdelay peek --queue orders.expire.dead
  rabbitdelay peek --queue delay.parked --limit 100 --json | jq -r .id`,
		RunE: func(c *cobra.Command, _ []string) error { return peek(c.Context(), a, queue, limit) },
	}
	c.Flags().StringVar(&queue, "queue", "", "the queue to look into")
	c.Flags().IntVar(&limit, "limit", inspect.DefaultPeek, "the most messages to show")
	return c
}

func peek(ctx context.Context, a *app.App, queue string, limit int) error {
	switch {
	case queue == "":
		return errors.New("no queue; give --queue")
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
		a.Notef("nothing is ready in %s; messages that a consumer holds are not seen", shown.Line(queue))
	case p.More > 0:
		a.Notef("%d more are ready; --limit shows up to %d", p.More, inspect.MaxPeek)
	}
	for _, n := range p.Notes {
		a.Notef("note: %s", n)
	}
	return nil
}

// maxBodyShown is the maximum number of characters of a body in the output for people.
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
		if !strings.HasPrefix(k, "rabbitdelay-") && !strings.HasPrefix(k, "x-") {
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
	o      inspect.GroupOptions
}

// ErrorsCommand returns the command errors.
func ErrorsCommand(a *app.App) *cobra.Command {
	r := &errorsRun{App: a}
	c := &cobra.Command{
		Use:   "errors",
		Short: "Group the messages of a whole dead-letter queue by their errors",
		Long: `errors looks through a whole dead-letter queue, or the parked queue, and groups its
messages by destination, reason and error. Errors count as the same if they differ
only in numbers, ids and quoted parts. Each group has how many there are, when the
first and the last came, and an example. "rabbitdelay requeue" and "rabbitdelay
discard" take the text of a group with --error-like.

It takes no message away and spends no delivery limit. It holds all messages until it
has seen the last, and puts them back in their order; meanwhile consumers do not get
them, "status" counts them as held, and the broker remembers each. Afterwards they
have the redelivered flag. Before RabbitMQ 4.3 the look counts a delivery for each
message, so it needs the management API there, and refuses queues with a delivery
limit, as peek does.

Exit code: 0 shown, also when the queue is empty; 1 refused, or an error.`,
		Example: `  rabbitdelay errors --queue orders.expire.dead
  rabbitdelay errors --queue orders.expire.dead --order most --limit 5
  rabbitdelay errors --parked --json | jq -r '.groups[].error_like'`,
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c.Context()) },
	}
	f := c.Flags()
	f.StringVar(&r.queue, "queue", "", "the dead-letter queue")
	f.BoolVar(&r.parked, "parked", false, "the parked queue instead")
	f.IntVar(&r.o.Limit, "limit", inspect.DefaultGroups, "the most groups to show; the messages of the others are counted")
	program.Choice(c, &r.order, "order", string(inspect.GroupsNewest), "which groups come first: those with the newest dead letters, the oldest, or the most",
		string(inspect.GroupsNewest), string(inspect.GroupsOldest), string(inspect.GroupsMost))
	return c
}

func (r *errorsRun) run(ctx context.Context) error {
	switch {
	case !oneOf(r.queue != "", r.parked):
		return errors.New("give one of --queue and --parked")
	case r.o.Limit < 1 || r.o.Limit > inspect.MaxGroups:
		return fmt.Errorf("--limit: %d; expected 1 to %d", r.o.Limit, inspect.MaxGroups)
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
	r.o.Order, r.o.Prefix = inspect.GroupOrder(r.order), c.Delay.Prefix
	var bar *term.Progress
	r.o.Progress = func(looked, total int) {
		if bar == nil {
			bar = new(r.Progress(total, "looked at"))
		}
		bar.Set(looked, "looked at")
	}
	began := time.Now()
	g, err := inspect.GroupErrors(ctx, conn, r.queue, r.o)
	if bar != nil {
		bar.Clear()
	}
	if err != nil {
		return err
	}
	return r.printGroups(g, time.Since(began))
}

func (r *errorsRun) printGroups(g inspect.ErrorGroups, took time.Duration) error {
	if r.JSON {
		return r.PrintJSON(struct {
			inspect.ErrorGroups
			Seconds float64 `json:"seconds"`
		}{g, app.Seconds(took)})
	}
	r.Printf("%s: %s of %s in %.2f s\n", shown.Line(g.Queue), shown.Number(g.Looked), shown.Count(g.Total, "message", "messages"), took.Seconds())
	now := time.Now()
	for i, x := range g.Groups {
		r.Printf("%d. %s\n", i+1, shown.Line(cmp.Or(x.ErrorLike, "(no error is known)")))
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
		r.Notef("note: there are more than %d groups, so that those shown may have some of the others too", inspect.MaxGroups)
	}
	for _, n := range g.Notes {
		r.Notef("note: %s", n)
	}
	return nil
}
