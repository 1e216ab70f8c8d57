package header

import (
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/table"
)

// Keys of Carried beside CC and Delay.
const (
	carriedExpiration = "expiration"
	carriedUserID     = "user-id"
	carriedMode       = "delivery-mode"
	carriedTimestamp  = "timestamp"
)

// Properties are what a message cannot keep where it belongs while it waits, and its
// headers: an expiration would end its wait early, a transient delivery mode would lose it,
// the broker compares a user-id with who is logged in, and CC and x-delay would send it
// another way.
type Properties struct {
	Expiration, UserID string
	DeliveryMode       uint8 // 0 for none
	Timestamp          time.Time
	Headers            amqp.Table
}

// Of returns the properties of a received message, with those that were carried for it.
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
	p.Headers = maps.Clone(p.Headers) // what was received may be published again as it is
	for _, name := range []string{CC, Delay} {
		if v, ok := t[name]; ok {
			p.Headers[name] = v
		}
	}
	return p
}

// Apply has a message published with the properties instead of its own; its headers stay.
func (p *Properties) Apply(pub *amqp.Publishing) {
	pub.Expiration, pub.UserId, pub.Timestamp = p.Expiration, p.UserID, p.Timestamp
	if p.DeliveryMode != 0 {
		pub.DeliveryMode = p.DeliveryMode
	}
}

// Carry adds what a foreign message has to own, the headers that it is published with.
func (p *Properties) Carry(own amqp.Table) {
	_, ours := p.Headers[Due] // which our client writes on every message
	_, carried := p.Headers[Carried]
	if ours && !carried {
		return
	}
	if t := p.Carried(); len(t) > 0 {
		own[Carried] = t
	}
}

// Carried returns the header Carried of a message, whoever published it.
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

// CarryRouting adds the headers CC and x-delay, where they can be written again.
func (p *Properties) CarryRouting(t amqp.Table) {
	for _, name := range []string{CC, Delay} {
		v, ok := p.Headers[name]
		m := table.Measure{Most: MaxOfAll}
		m.Value(v, 1) // the table that carries it is a level
		if ok && m.Err == nil {
			t[name] = table.Wide(v)
		}
	}
}
