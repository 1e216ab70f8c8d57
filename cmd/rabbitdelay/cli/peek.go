package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// peekTimeout bounds one look into a queue.
const peekTimeout = time.Minute

func (a *app) peekCommand() *cobra.Command {
	queue, limit := "", amqpx.DefaultPeek
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
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case queue == "":
				return errors.New("no queue; give --queue")
			case limit < 1 || limit > amqpx.MaxPeek:
				return fmt.Errorf("--limit: %d; expected 1 to %d", limit, amqpx.MaxPeek)
			}
			return a.peek(c.Context(), queue, limit)
		},
	}
	c.Flags().StringVar(&queue, "queue", "", "the queue to look into")
	c.Flags().IntVar(&limit, "limit", amqpx.DefaultPeek, "the most messages to show")
	return c
}

func (a *app) peek(ctx context.Context, queue string, limit int) error {
	c, err := a.Load(nil, nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, peekTimeout)
	defer cancel()
	conn, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(2 * time.Second)) }() // the work is done
	m, err := a.managementIfThere(ctx, c, conn)
	if err != nil {
		return err
	}
	p, err := amqpx.Peek(ctx, conn, queue, amqpx.PeekOptions{Limit: limit, Prefix: c.Delay.Prefix, Management: m})
	if err != nil {
		return err
	}
	for i, message := range p.Messages {
		if err := a.printMessage(i+1, message); err != nil {
			return err
		}
	}
	switch {
	case len(p.Messages) == 0:
		a.Notef("nothing is ready in %s; messages that a consumer holds are not seen", shown.Line(queue))
	case p.More > 0:
		a.Notef("%d more are ready; --limit shows up to %d", p.More, amqpx.MaxPeek)
	}
	for _, n := range p.Notes {
		a.Notef("note: %s", n)
	}
	return nil
}

// managementIfThere is the management API of the broker, nil if it does not answer;
// what needs it says so.
func (a *app) managementIfThere(ctx context.Context, c *config.Config, conn *amqp.Connection) (*live.Management, error) {
	m, err := c.Management()
	if errors.Is(err, config.ErrNoManagement) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = m.SameCluster(ctx, conn)
	if foreign, ok := errors.AsType[*live.ClusterError](err); ok {
		return nil, foreign
	}
	if err == nil {
		return m, nil
	}
	if c.Broker.ManagementURL != "" {
		a.Notef("note: the management API at %s does not answer: %v", m.Endpoint(), err)
	}
	return nil, nil
}

// maxBodyShown is how many characters of a body people are shown.
const maxBodyShown = 200

func (a *app) printMessage(position int, m amqpx.DeadLetter) error {
	if a.JSON {
		return a.PrintJSON(asjson.MessageOf(position, m))
	}
	now := time.Now()
	table := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	text := func(name, value string) {
		if value != "" {
			row(table, "   "+name, shown.Line(value))
		}
	}
	when := func(name string, at time.Time) {
		if !at.IsZero() {
			text(name, shown.Instant(at)+" ("+shown.FromNow(at, now)+")")
		}
	}
	id := m.ID
	if id == "" {
		id = "(no message id)"
	}
	a.Printf("%d. %s\n", position, shown.Line(id))
	text("reason", m.Reason)
	text("destination", m.Destination.String())
	when("due", m.DueAt)
	if m.Reason != "" {
		when("since", m.Died)
	}
	row(table, "   attempt", strconv.Itoa(m.Attempt))
	text("error", m.Error)
	for _, attempt := range m.Attempts {
		text("failed", attempt)
	}
	when("requeued", m.Requeued)
	for _, k := range slices.Sorted(maps.Keys(m.Headers)) {
		if !strings.HasPrefix(k, "rabbitdelay-") && !strings.HasPrefix(k, "x-") {
			text("header", fmt.Sprintf("%s=%v", k, m.Headers[k]))
		}
	}
	text("body", shown.Shorten(bodyText(m.Body), maxBodyShown))
	return table.Flush()
}
