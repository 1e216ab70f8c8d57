package rabbit

import (
	"maps"
	"slices"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Message is a message in a queue, or on its way there. What it carries is
// shared by its copies in other queues and never changed.
type Message struct {
	amqp.Publishing
	Exchange    string
	RoutingKeys []string // the routing key, then those of CC and BCC

	deaths     []death // the latest first
	first      death   // the first of all
	deliveries int64   // how often its delivery failed, in a quorum queue
	acquired   int64   // how often it came back, in a quorum queue
	returned   bool    // it has been delivered before
	quorum     bool    // its queue is one
	seq        uint64  // its place in the queue
	expires    int64   // ms of the epoch, 0 for never
	queued     int64   // when it came into the queue
}

// death is a queue that gave up a message for a reason, as often as it did.
type death struct {
	queue, reason, exchange string
	count                   int64
	at                      time.Time
	keys                    []any
	expiration              string
}

// Reasons of dead letters.
const (
	reasonExpired       = "expired"
	reasonRejected      = "rejected"
	reasonMaxLen        = "maxlen"
	reasonDeliveryLimit = "delivery_limit"
)

// newMessage is what was published, with the keys of CC and BCC. The broker
// removes BCC.
func (v *VHost) newMessage(exchange, key string, p amqp.Publishing) (*Message, *Error) {
	m := &Message{Publishing: p, Exchange: exchange, RoutingKeys: []string{key}}
	for _, h := range []string{"CC", "BCC"} {
		list, ok := p.Headers[h]
		if !ok {
			continue
		}
		more, ok := list.([]any)
		if !ok {
			return nil, precondition("invalid message: {unacceptable_type_in_header,\"%s\",%s}", h, typeName(list))
		}
		for _, k := range more {
			if s, ok := k.(string); ok && !slices.Contains(m.RoutingKeys, s) {
				m.RoutingKeys = append(m.RoutingKeys, s)
			}
		}
	}
	m.Headers = without(p.Headers, "BCC")
	if _, err := expiration(p.Expiration); err != nil {
		return nil, err
	}
	// What a client publishes as x-death counts as deaths before 4.0.1.
	if !v.is(4, 0, 1) {
		m.deaths = readDeaths(p.Headers)
		if len(m.deaths) > 0 {
			m.first = m.deaths[len(m.deaths)-1]
		}
	}
	return m, nil
}

// expiration reads the property, in ms; -1 is none.
func expiration(s string) (int64, *Error) {
	if s == "" {
		return -1, nil
	}
	ms, err := strconv.ParseInt(s, 10, 64)
	switch {
	case err != nil:
		return 0, precondition("invalid expiration '%s': no_integer", s)
	case ms < 0:
		return 0, precondition("invalid expiration '%s': {value_negative,%d}", s, ms)
	case ms > maxTTL:
		return 0, precondition("invalid expiration '%s': {value_too_large,%d}", s, ms)
	}
	return ms, nil
}

func readDeaths(headers amqp.Table) []death {
	list, _ := headers["x-death"].([]any)
	var ds []death
	for _, e := range list {
		t, ok := e.(amqp.Table)
		if !ok {
			continue
		}
		var d death
		d.queue, _ = t["queue"].(string)
		d.reason, _ = t["reason"].(string)
		d.exchange, _ = t["exchange"].(string)
		d.count, _ = integer(t["count"])
		d.at, _ = t["time"].(time.Time)
		d.keys, _ = t["routing-keys"].([]any)
		d.expiration, _ = t["original-expiration"].(string)
		ds = append(ds, d)
	}
	return ds
}

// died is the message after it died in a queue: with the death on record, and
// without its expiration.
func (m *Message) died(queue, reason string, now int64) *Message {
	d := death{queue: queue, reason: reason, exchange: m.Exchange, count: 1, at: time.Unix(now/1000, 0), expiration: m.Expiration}
	for _, k := range m.RoutingKeys {
		d.keys = append(d.keys, k)
	}
	rest := make([]death, 0, len(m.deaths)+1)
	rest = append(rest, d)
	for _, old := range m.deaths {
		if old.queue == queue && old.reason == reason {
			old.count++
			rest[0] = old
			continue
		}
		rest = append(rest, old)
	}
	dead := &Message{Publishing: m.Publishing, Exchange: m.Exchange, RoutingKeys: m.RoutingKeys, deaths: rest, first: m.first}
	dead.Expiration = ""
	if dead.first.queue == "" {
		dead.first = d
	}
	return dead
}

// cycle tells whether a dead letter for a queue would go round without anybody
// having rejected it.
func (m *Message) cycle(queue string) bool {
	for _, d := range m.deaths {
		if d.reason == reasonRejected {
			return false
		}
		if d.queue == queue {
			return true
		}
	}
	return false
}

// Delivered are the headers with which the message is delivered: its own and
// the broker's.
func (m *Message) Delivered(v Version) amqp.Table {
	counted := m.deliveries > 0 || m.quorum && !v.AtLeast(4, 0, 0)
	if len(m.deaths) == 0 && !counted && m.acquired == 0 {
		return m.Headers
	}
	h := maps.Clone(m.Headers)
	if h == nil {
		h = amqp.Table{}
	}
	if counted {
		h["x-delivery-count"] = m.deliveries
	}
	if m.acquired > 0 && v.AtLeast(4, 3, 0) {
		h["x-acquired-count"] = m.acquired
	}
	if len(m.deaths) == 0 {
		return h
	}
	list := make([]any, len(m.deaths))
	for i, d := range m.deaths {
		list[i] = d.table()
	}
	h["x-death"] = list
	h["x-first-death-queue"], h["x-first-death-reason"], h["x-first-death-exchange"] = m.first.queue, m.first.reason, m.first.exchange
	if v.AtLeast(3, 13, 0) {
		last := m.deaths[0]
		h["x-last-death-queue"], h["x-last-death-reason"], h["x-last-death-exchange"] = last.queue, last.reason, last.exchange
	}
	return h
}

func (d death) table() amqp.Table {
	t := amqp.Table{
		"queue": d.queue, "reason": d.reason, "exchange": d.exchange,
		"count": d.count, "time": d.at, "routing-keys": d.keys,
	}
	if d.expiration != "" {
		t["original-expiration"] = d.expiration
	}
	return t
}

// RoutingKey is the one that it was published or dead-lettered with.
func (m *Message) RoutingKey() string { return m.RoutingKeys[0] }

// Expires is when it expires, zero if it does not.
func (m *Message) Expires() time.Time {
	if m.expires == 0 {
		return time.Time{}
	}
	return time.UnixMilli(m.expires)
}
