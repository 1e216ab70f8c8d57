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
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
)

// peekTimeout bounds one look into a queue.
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
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case queue == "":
				return errors.New("no queue; give --queue")
			case limit < 1 || limit > inspect.MaxPeek:
				return fmt.Errorf("--limit: %d; expected 1 to %d", limit, inspect.MaxPeek)
			}
			return peek(c.Context(), a, queue, limit)
		},
	}
	c.Flags().StringVar(&queue, "queue", "", "the queue to look into")
	c.Flags().IntVar(&limit, "limit", inspect.DefaultPeek, "the most messages to show")
	return c
}

func peek(ctx context.Context, a *app.App, queue string, limit int) error {
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

// maxBodyShown is how many characters of a body people are shown.
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
	table.When("   due", m.DueAt, now)
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
