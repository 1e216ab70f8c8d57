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

// PassOn sends a message that another program published, and that is waiting somewhere other than in a queue, to its
// destination at the given time. The message keeps its id, properties, body, timestamp, user-id and headers, including
// rabbitdelay's own headers. It becomes persistent. The offset is the clock of at minus this process's clock.
// NotCarried returns what is left out.
//
// Errors are those of Client.Send. The broker refuses a user-id that is not the connection's user.
func PassOn(ctx context.Context, c *amqpx.Client, raw amqp.Delivery, to topology.Destination, at time.Time, offset time.Duration) error {
	if c == nil {
		return fmt.Errorf("%w: the client is nil; expected one that amqpx.Open returned", amqpx.ErrConfig)
	}
	return inner.Of(c).Pass(ctx, passing(raw, to, at, offset))
}

// passing returns the message that PassOn sends.
func passing(raw amqp.Delivery, to topology.Destination, at time.Time, offset time.Duration) inner.Parcel {
	p := parcelOf(amqpx.ReadDelivery(raw, to.Queue, topology.DefaultPrefix), to)
	p.DeliverAt, p.ClockOffset = at, offset
	p.As = &header.Properties{UserID: raw.UserId, DeliveryMode: amqp.Persistent, Timestamp: raw.Timestamp}
	anew := []string{header.Due, header.Lead, header.Absolute, header.ClockOffset, header.Attempt, header.Version, header.Created, header.Destination}
	for k, v := range raw.Headers {
		if strings.HasPrefix(k, header.OwnPrefix) && !slices.Contains(anew, k) {
			p.Own[k] = v
		}
	}
	return p
}

// parcelOf returns a parcel that sends a delivery on.
func parcelOf(d *amqpx.Delivery, to topology.Destination) inner.Parcel {
	return inner.Parcel{
		Publishing: amqp.Publishing{
			MessageId: d.ID, Body: d.Body, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding,
			Type: d.Type, CorrelationId: d.CorrelationID, ReplyTo: d.ReplyTo, AppId: d.AppID,
			Priority: d.Priority, Headers: d.Headers,
		},
		To: to, Attempt: d.Attempt, Version: d.Version, Created: d.Created, Own: amqp.Table{},
	}
}

// NotCarried names the parts of a message that PassOn leaves out. These are "expiration", because it would count while
// the message waits, and headers by which the broker routes, such as "CC" and "x-death". The plugin's own header
// x-delay is not listed.
func NotCarried(raw amqp.Delivery) []string {
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

// PluginDestination returns the destination of a message that rabbitdelay's strategy plugin published with the routing
// key. For any other key, ok is false.
func PluginDestination(prefix, key string) (dest topology.Destination, ok bool) {
	rest, ok := strings.CutPrefix(key, "plugin.")
	if !ok {
		return topology.Destination{}, false
	}
	return topology.DestinationOf(prefix, rest)
}

// Rehearsal finds out what a client would refuse without changing anything on the broker. It checks exchanges and
// queues by passive declarations. Whether a user may publish to an exchange shows only when it publishes. It is safe
// for concurrent use.
type Rehearsal struct {
	pass func(context.Context, inner.Parcel) error
}

// Rehearse returns a Rehearsal on the connection for a client with the configuration cfg. It fails if cfg is invalid.
func Rehearse(conn *amqp.Connection, cfg amqpx.Config) (*Rehearsal, error) {
	pass, err := inner.Rehearse(conn, cfg)
	if err != nil {
		return nil, err
	}
	return &Rehearsal{pass: pass}, nil
}

// PassOn returns the error that the function PassOn would return, as far as it can be known before anything is declared
// or published.
func (r *Rehearsal) PassOn(ctx context.Context, raw amqp.Delivery, to topology.Destination, at time.Time, offset time.Duration) error {
	return r.pass(ctx, passing(raw, to, at, offset))
}

// Dial opens one connection in the same way as amqpx.Open. It tries Config.URL and URLs in random order, uses the first
// node that answers, and declares nothing. The caller closes the connection. If no node answers, the error has an
// *amqpx.DialError for each.
func Dial(ctx context.Context, cfg amqpx.Config) (*amqp.Connection, error) {
	return inner.Dial(ctx, cfg)
}
