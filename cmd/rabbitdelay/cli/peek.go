package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/topology"
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
	m, err := managementIfThere(ctx, c, conn)
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
		a.Notef("nothing is ready in %s; messages that a consumer holds are not seen", printable(queue))
	case p.More > 0:
		a.Notef("%d more are ready; --limit shows up to %d", p.More, amqpx.MaxPeek)
	}
	for _, n := range p.Notes {
		a.Notef("note: %s", n)
	}
	return nil
}

// managementIfThere is the management API of the broker, nil if it does not answer.
func managementIfThere(ctx context.Context, c *config.Config, conn *amqp.Connection) (*live.Management, error) {
	m, err := c.Management()
	if err != nil {
		return nil, err
	}
	err = m.SameCluster(ctx, conn)
	if foreign, ok := errors.AsType[*live.ClusterError](err); ok {
		return nil, foreign
	}
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // what needs it says so
	}
	return m, nil
}

// lyingMessage is a message in a queue, as --json has it.
type lyingMessage struct {
	Position    int            `json:"position"`
	Queue       string         `json:"queue"`
	ID          string         `json:"id"`
	Due         string         `json:"due,omitempty"`
	Attempt     int            `json:"attempt"`
	Snoozes     int            `json:"snoozes,omitempty"`
	Version     int64          `json:"version,omitempty"`
	Reason      string         `json:"reason,omitempty"`
	Error       string         `json:"error,omitempty"`
	Attempts    []string       `json:"attempts,omitempty"`
	Died        string         `json:"died,omitempty"`
	Destination string         `json:"destination,omitempty"`
	Exchange    string         `json:"exchange,omitempty"`
	RoutingKey  string         `json:"routing_key,omitempty"`
	Requeued    string         `json:"requeued,omitempty"`
	Redelivered bool           `json:"redelivered"`
	ContentType string         `json:"content_type,omitempty"`
	Headers     map[string]any `json:"headers,omitempty"`
	Body        string         `json:"body,omitempty"`
	Binary      []byte         `json:"body_base64,omitempty"` // instead of body when that is not UTF-8
}

func lyingLine(position int, m amqpx.DeadLetter) lyingMessage {
	l := lyingMessage{
		Position: position, Queue: m.Queue, ID: m.ID, Due: optionalMilli(m.DueAt), Attempt: m.Attempt, Snoozes: m.Snoozes, Version: m.Version,
		Reason: m.Reason, Error: m.Error, Attempts: m.Attempts, Destination: destinationText(m.Destination),
		Exchange: m.Exchange, RoutingKey: m.RoutingKey, Requeued: optionalMilli(m.Requeued), Redelivered: m.Redelivered,
		ContentType: m.ContentType,
	}
	if m.Reason != "" {
		l.Died = optionalMilli(m.Died)
	}
	l.Body, l.Binary = textOrBinary(m.Body)
	if len(m.Headers) > 0 {
		l.Headers, _ = forJSON(map[string]any(m.Headers)).(map[string]any)
	}
	return l
}

// forJSON replaces the numbers that JSON does not have by their names.
func forJSON(v any) any {
	switch v := v.(type) {
	case float32:
		return forJSON(float64(v))
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Sprint(v)
		}
	case amqp.Table:
		return forJSON(map[string]any(v))
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, value := range v {
			out[name] = forJSON(value)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, value := range v {
			out[i] = forJSON(value)
		}
		return out
	}
	return v
}

// destinationText is a destination as people write it; empty for none.
func destinationText(d topology.Destination) string {
	if d.ToExchange() && d.Exchange+d.RoutingKey != "" {
		return d.Exchange + ":" + d.RoutingKey
	}
	return d.Queue
}

// maxBodyShown is how many characters of a body people are shown.
const maxBodyShown = 200

func (a *app) printMessage(position int, m amqpx.DeadLetter) error {
	if a.JSON {
		return a.PrintJSON(lyingLine(position, m))
	}
	now := time.Now()
	table := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	text := func(name, value string) {
		if value != "" {
			row(table, "   "+name, printable(value))
		}
	}
	when := func(name string, at time.Time) {
		if !at.IsZero() {
			text(name, milli(at)+" ("+fromNow(at, now)+")")
		}
	}
	id := m.ID
	if id == "" {
		id = "(no message id)"
	}
	a.Printf("%d. %s\n", position, printable(id))
	text("reason", m.Reason)
	text("destination", destinationText(m.Destination))
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
	body, binary := textOrBinary(m.Body)
	if binary != nil {
		body = fmt.Sprintf("(%d bytes)", len(binary))
	}
	text("body", shorten(body, maxBodyShown))
	return table.Flush()
}
