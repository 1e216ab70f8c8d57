package header

import (
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/table"
)

// Keys of the header Carried, in addition to CC and Delay.
const (
	carriedExpiration = "expiration"
	carriedUserID     = "user-id"
	carriedMode       = "delivery-mode"
	carriedTimestamp  = "timestamp"
)

// Properties holds a message's headers and the properties that must not be set on the message while it is delayed. An
// expiration would end the wait early, a transient delivery mode could lose the message, the broker compares a user-id
// with the connection's user, and CC and x-delay would change the route.
type Properties struct {
	Expiration, UserID string
	DeliveryMode       uint8 // 0 if unset
	Timestamp          time.Time
	Headers            amqp.Table
}

// Of returns the properties of a received message, including the ones that were carried in a header.
func Of(raw *amqp.Delivery) Properties {
	p := Properties{raw.Expiration, raw.UserId, raw.DeliveryMode, raw.Timestamp, raw.Headers}
	t, ok := raw.Headers[Carried].(amqp.Table)
	if !ok {
		return p
	}
	p.Expiration, _ = t[carriedExpiration].(string)
	p.UserID, _ = t[carriedUserID].(string)
	if n, ok := Integer(t, carriedMode); ok && n == int64(amqp.Transient) {
		p.DeliveryMode = amqp.Transient
	}
	p.Timestamp, _ = t[carriedTimestamp].(time.Time)
	p.Headers = maps.Clone(p.Headers) // copy, because the received headers may be published again unchanged
	for _, name := range []string{CC, Delay} {
		if v, ok := t[name]; ok {
			p.Headers[name] = v
		}
	}
	return p
}

// Apply sets the properties on a message that is about to be published. The headers of pub do not change.
func (p *Properties) Apply(pub *amqp.Publishing) {
	pub.Expiration, pub.UserId, pub.Timestamp = p.Expiration, p.UserID, p.Timestamp
	if p.DeliveryMode != 0 {
		pub.DeliveryMode = p.DeliveryMode
	}
}

// Carry adds the properties of another publisher's message to own, the headers with which the message will be
// published. It adds nothing for a message that a rabbitdelay client published, unless that message already carries
// properties.
func (p *Properties) Carry(own amqp.Table) {
	_, ours := p.Headers[Due] // the message is rabbitdelay's own, because its client writes this header on every message
	_, carried := p.Headers[Carried]
	if ours && !carried {
		return
	}
	if t := p.Carried(); len(t) > 0 {
		own[Carried] = t
	}
}

// Carried returns the header Carried for the properties, no matter who published the message.
func (p *Properties) Carried() amqp.Table {
	t := amqp.Table{}
	if p.Expiration != "" {
		t[carriedExpiration] = p.Expiration
	}
	if p.UserID != "" {
		t[carriedUserID] = p.UserID
	}
	if p.DeliveryMode == amqp.Transient {
		t[carriedMode] = int64(p.DeliveryMode)
	}
	if !p.Timestamp.IsZero() {
		t[carriedTimestamp] = p.Timestamp
	}
	p.CarryRouting(t)
	return t
}

// CarryRouting adds the headers CC and x-delay to t if they can be written again.
func (p *Properties) CarryRouting(t amqp.Table) {
	for _, name := range []string{CC, Delay} {
		v, ok := p.Headers[name]
		m := table.Measure{Most: MaxOfAll}
		m.Value(v, 1) // the table that carries the value adds a level
		if ok && m.Err == nil {
			t[name] = table.Wide(v)
		}
	}
}
