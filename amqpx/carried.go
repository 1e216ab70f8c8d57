package amqpx

import (
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Headers of a foreign publisher that take a message another way when it is
// published with them, and are therefore carried.
const (
	headerCC    = "CC"
	headerDelay = "x-delay"
)

// Keys of HeaderCarried.
const (
	carriedExpiration = "expiration"
	carriedUserID     = "user-id"
	carriedMode       = "delivery-mode"
	carriedTimestamp  = "timestamp"
)

// foreign tells whether somebody else's client published the message first: ours
// writes the due instant on every message.
func (d *Delivery) foreign() bool {
	_, ours := d.Headers[HeaderDue]
	_, carried := d.Headers[HeaderCarried]
	return carried || !ours
}

// carry is what a foreign message cannot keep where it belongs while it waits: an
// expiration would end its wait early, a transient delivery mode would lose it, the
// broker compares a user-id with who is logged in, and CC and x-delay would send it
// another way. nil for nothing.
func (d *Delivery) carry() amqp.Table {
	if !d.foreign() {
		return nil
	}
	if t := d.carried(); len(t) > 0 {
		return t
	}
	return nil
}

// carried is HeaderCarried of a message, whoever published it.
func (d *Delivery) carried() amqp.Table {
	t := amqp.Table{}
	if d.Expiration != "" {
		t[carriedExpiration] = d.Expiration
	}
	if d.UserID != "" {
		t[carriedUserID] = d.UserID
	}
	if d.DeliveryMode == amqp.Transient {
		t[carriedMode] = int64(d.DeliveryMode)
	}
	if !d.Timestamp.IsZero() {
		t[carriedTimestamp] = d.Timestamp
	}
	d.carryHeaders(t)
	return t
}

// carryHeaders adds the headers that can be written again.
func (d *Delivery) carryHeaders(t amqp.Table) {
	for _, name := range []string{headerCC, headerDelay} {
		v, ok := d.Headers[name]
		m := measure{most: maxAllHeaders}
		m.value(v, 1) // the table that carries it is a level
		if ok && m.err == nil {
			t[name] = wide(v)
		}
	}
}

// uncarry gives a message back what was carried for it.
func (d *Delivery) uncarry() {
	t, ok := d.Headers[HeaderCarried].(amqp.Table)
	if !ok {
		return
	}
	d.Expiration, _ = t[carriedExpiration].(string)
	d.UserID, _ = t[carriedUserID].(string)
	if n, ok := headerInt(t, carriedMode); ok && n == int64(amqp.Transient) {
		d.DeliveryMode = amqp.Transient
	}
	d.Timestamp, _ = t[carriedTimestamp].(time.Time)
	d.Headers = maps.Clone(d.Headers) // what was received may be published again as it is
	for _, name := range []string{headerCC, headerDelay} {
		if v, ok := t[name]; ok {
			d.Headers[name] = v
		}
	}
}

// believeUser forgets a user-id that was not carried by a consumer of ours. The
// broker has compared the property with who was logged in; a header anybody may
// write.
func (d *Delivery) believeUser(prefix string, raw *amqp.Delivery) {
	if _, carried := d.Headers[HeaderCarried]; carried && !topology.Reserved(prefix, raw.Exchange) {
		d.UserID = raw.UserId
	}
}

// asReceived are the properties of a message that is forwarded without a delay, or
// passed on.
type asReceived struct {
	expiration, userID string
	mode               uint8
	timestamp          time.Time
}

func (a *asReceived) apply(p *amqp.Publishing) {
	p.Expiration, p.UserId, p.Timestamp = a.expiration, a.userID, a.timestamp
	if a.mode != 0 {
		p.DeliveryMode = a.mode
	}
}
