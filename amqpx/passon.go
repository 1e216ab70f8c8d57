package amqpx

import (
	"context"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// PassOn sends a message that another program published, and that waits elsewhere
// than in a queue, to its destination at an instant: with its id, properties, body,
// timestamp, user-id and headers, also those of rabbitdelay. It is persistent from
// then on. Offset is the clock of at minus this process's. NotCarried tells what is
// left out.
//
// Errors are those of Send. A user-id that is not the connection's is refused by the
// broker.
func (c *Client) PassOn(ctx context.Context, raw amqp.Delivery, to topology.Destination, at time.Time, offset time.Duration) error {
	return c.Send(ctx, passing(raw, to, at, offset))
}

// passing is the message that PassOn sends.
func passing(raw amqp.Delivery, to topology.Destination, at time.Time, offset time.Duration) Message {
	d := decode(raw, to.Queue)
	m := d.message()
	m.Queue, m.Exchange, m.RoutingKey = to.Queue, to.Exchange, to.RoutingKey
	m.DeliverAt, m.ClockOffset, m.Attempt = at, offset, d.Attempt
	m.as, m.own = &asReceived{userID: raw.UserId, mode: amqp.Persistent, timestamp: raw.Timestamp}, amqp.Table{}
	for k, v := range raw.Headers {
		if strings.HasPrefix(k, ownPrefix) && !slices.Contains([]string{HeaderDue, HeaderAttempt, HeaderVersion, HeaderCreated, HeaderDestination}, k) {
			m.own[k] = v
		}
	}
	return m
}

// NotCarried names what a message has and PassOn leaves out: "expiration", because it
// would count while the message waits, and headers by which the broker routes, such as
// "CC" and "x-death". The plugin's own header x-delay is not named.
func NotCarried(raw amqp.Delivery) []string {
	var out []string
	if raw.Expiration != "" {
		out = append(out, "expiration")
	}
	for k := range raw.Headers {
		if routingHeader(k) && k != "x-delay" {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// PluginDestination is the destination of a message that rabbitdelay's strategy plugin
// published with a routing key; not ok for any other key.
func PluginDestination(prefix, key string) (dest topology.Destination, ok bool) {
	rest, ok := strings.CutPrefix(key, "plugin.")
	if !ok {
		return topology.Destination{}, false
	}
	return topology.DestinationOf(prefix, rest)
}
