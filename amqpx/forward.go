package amqpx

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Forward sends a delivery on to another destination, body, properties and headers
// as they were received, and returns when the broker has confirmed it; a Handler
// then returns nil. Without an ID it gets one, which d has from then on.
//
// With a delay, which counts from the call, it goes through the strategy like a
// message of Send. What would disturb it on the way (Expiration, UserID, a transient
// DeliveryMode, the headers CC and x-delay of a foreign publisher) is carried in the
// header rabbitdelay-carried, and the next Delivery has it again, as well as
// Exchange and RoutingKey. Its attempts begin with 1.
//
// Without a delay it goes straight to the exchange with the routing key, or to the
// queue: no route queue is needed, so an exchange may have any number of routing
// keys (Config.MaxRouteQueues does not apply). It then has all of these again. The
// broker routes by CC, counts Expiration from now, and refuses a UserID that is not
// the client's own user unless that has the tag impersonator (an *amqp091.Error with
// code 406). A message that is routed to no queue is an error: ErrUnroutable. While one
// of several queues refuses it, as one does that is full, the others get it at each try,
// and the error is ErrOutcomeUnknown.
//
// The broker's own headers of an earlier death (x-death and the like) and those that
// begin with "rabbitdelay-" are left out. Errors are those of Send.
func (c *Client) Forward(ctx context.Context, d *Delivery, to topology.Destination, delay time.Duration) error {
	if d.ID == "" {
		d.ID = newID(time.Now())
	}
	m := d.message()
	m.Queue, m.Exchange, m.RoutingKey = to.Queue, to.Exchange, to.RoutingKey
	m.own = amqp.Table{}
	if delay != 0 {
		m.Delay = delay
		header.Origin(m.own, d.Exchange, d.RoutingKey)
		if to.ToExchange() {
			delete(m.own, HeaderDestination)
		}
		d.properties().Carry(m.own)
		return c.sendOne(ctx, m, nil)
	}
	if err := to.Validate(c.strategy.Prefix()); err != nil {
		return err
	}
	m.DeliverAt = d.DueAt
	m.as = d.properties()
	m.as.CarryRouting(m.own)
	return c.sendOne(ctx, m, straightTo(to))
}
