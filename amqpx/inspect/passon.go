package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/inner"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Republish sends a message that another program published and that is not in a queue (but in the plugin's table, for
// example), so that it reaches its destination at the given time. The message keeps its id, properties, body,
// timestamp, user-id and headers, including rabbitdelay's own headers. It becomes persistent. UnsupportedProperties
// returns the parts that are left out. The parameter at is the due time. If another clock was used to compute it,
// offset says how far that clock is ahead of this process's.
//
// Errors are the same as for Client.Send. The broker refuses a user-id that is not the connection's user.
func Republish(ctx context.Context, c *amqpx.Client, raw amqp.Delivery, to topology.Destination, at time.Time, offset time.Duration) error {
	if c == nil {
		return fmt.Errorf("%w: the client is nil; expected one that amqpx.Open returned", amqpx.ErrConfig)
	}
	return c.Internals(inner.Access{}).Pass(ctx, passing(raw, to, at, offset))
}

// passing returns the message that Republish sends.
func passing(raw amqp.Delivery, to topology.Destination, at time.Time, offset time.Duration) inner.Copy {
	p := copyOf(read(raw, to.Queue, topology.DefaultPrefix), to)
	p.DeliverAt, p.ClockOffset = at, offset
	p.As = &header.Properties{UserID: raw.UserId, DeliveryMode: amqp.Persistent, Timestamp: raw.Timestamp}
	renewed := []string{header.Due, header.Lead, header.Absolute, header.ClockOffset, header.Attempt, header.Version, header.Created, header.Destination}
	for k, v := range raw.Headers {
		if strings.HasPrefix(k, header.OwnPrefix) && !slices.Contains(renewed, k) {
			p.Own[k] = v
		}
	}
	return p
}

// copyOf returns a copy of a delivery for another destination.
func copyOf(d *amqpx.Delivery, to topology.Destination) inner.Copy {
	return inner.Copy{
		Publishing: amqp.Publishing{
			MessageId: d.ID, Body: d.Body, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding,
			Type: d.Type, CorrelationId: d.CorrelationID, ReplyTo: d.ReplyTo, AppId: d.AppID,
			Priority: d.Priority, Headers: d.Headers,
		},
		To: to, Attempt: d.Attempt, Version: d.Version, Created: d.Created, Own: amqp.Table{},
	}
}

// UnsupportedProperties names the parts of a message that Republish leaves out. These are "expiration", because the TTL
// would run during the delay, and headers by which the broker routes, such as "CC" and "x-death". The plugin's own
// header x-delay is not listed.
func UnsupportedProperties(raw amqp.Delivery) []string {
	var out []string
	if raw.Expiration != "" {
		out = append(out, "expiration")
	}
	for k := range raw.Headers {
		if header.Routing(k) && k != header.Delay {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// Rehearsal finds out which messages a client or the broker would refuse, without changing anything on the broker. It
// checks exchanges and queues with passive declarations. It cannot detect a missing permission to publish to an
// exchange, because the broker checks that only when a message is published. It is safe for concurrent use. The zero
// value is not usable; use Rehearse.
type Rehearsal struct {
	pass func(context.Context, inner.Copy) error
}

// Rehearse returns a Rehearsal on the connection for a client with the configuration cfg. It fails if cfg is invalid.
func Rehearse(conn *amqp.Connection, cfg amqpx.Config) (*Rehearsal, error) {
	pass, err := cfg.Internals(inner.Access{}).Rehearse(conn)
	if err != nil {
		return nil, err
	}
	return &Rehearsal{pass: pass}, nil
}

// Republish returns the error that the function Republish would return, if that error can be predicted without
// declaring or publishing anything.
func (r *Rehearsal) Republish(ctx context.Context, raw amqp.Delivery, to topology.Destination, at time.Time, offset time.Duration) error {
	return r.pass(ctx, passing(raw, to, at, offset))
}

// Dial opens one connection in the same way as amqpx.Open. It tries Config.URL and URLs in random order, uses the first
// node that accepts a connection, and declares nothing. The caller closes the connection. If no node accepts one, the
// error contains an *amqpx.DialError for each.
func Dial(ctx context.Context, cfg amqpx.Config) (*amqp.Connection, error) {
	return cfg.Internals(inner.Access{}).Dial(ctx)
}
