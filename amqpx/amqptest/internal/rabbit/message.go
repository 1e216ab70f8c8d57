package rabbit

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Message is a message in a queue or on its way to one. Copies in other queues share its content, which never changes.
type Message struct {
	amqp.Publishing
	Exchange    string
	RoutingKeys []string // the routing key, followed by those in the CC header

	hidden     []string // the routing keys in the BCC header
	deaths     []death  // the most recent first
	first      death    // the first death; before 4.0.1, it is empty if the client published deaths
	foreign    bool     // the client published deaths, and the message has not died here yet
	carried    int64    // failed deliveries carried over from the queue where it died
	deliveries int64    // failed deliveries in this queue
	lasting    int64    // failed deliveries in this queue that will be carried over
	acquired   int64    // number of times it was returned to this queue
	returned   bool     // it has been delivered before
	quorum     bool     // its queue is a quorum queue
	seq        uint64   // its position in the queue
	expires    int64    // ms since the epoch, 0 for never
	queued     int64    // when it entered the queue
}

// death is an entry of x-death. It counts how many times a queue dead-lettered the message for one reason.
type death struct {
	queue, reason, exchange string
	count                   int64
	at                      time.Time
	keys                    []any
	expiration              string
	asCame                  amqp.Table // the client's original entry; nil if the broker created the entry
}

// Reasons for dead-lettering.
const (
	reasonExpired       = "expired"
	reasonRejected      = "rejected"
	reasonMaxLen        = "maxlen"
	reasonDeliveryLimit = "delivery_limit"
)

// newMessage checks a published message, and returns it with its routing keys and without its BCC header.
func (v *VHost) newMessage(exchange, key string, p amqp.Publishing) (m *Message, err *Error) {
	m = &Message{Publishing: p, Exchange: exchange, RoutingKeys: []string{key}}
	if m.RoutingKeys, err = appendKeys(m.RoutingKeys, p.Headers, "CC"); err != nil {
		return nil, err
	}
	if m.hidden, err = appendKeys(nil, p.Headers, "BCC"); err != nil {
		return nil, err
	}
	m.Headers = without(p.Headers, "BCC")
	ms, err := expiration(p.Expiration)
	switch {
	case err != nil:
		return nil, err
	case p.DeliveryMode > amqp.Persistent && !v.is(3, 13, 0):
		return nil, precondition("invalid message: {delivery_mode_unknown,%d}", p.DeliveryMode)
	case ms >= 0 && v.is(3, 13, 0):
		m.Expiration = strconv.FormatInt(ms, 10)
	}
	// Before 4.0.1, an x-death header that a client publishes is treated as real deaths.
	if _, m.foreign = p.Headers["x-death"]; m.foreign && !v.is(4, 0, 1) {
		m.deaths = readDeaths(p.Headers)
	} else {
		m.foreign = false
	}
	return m, nil
}

// appendKeys appends the routing keys in the given header (CC or BCC), without duplicates.
func appendKeys(keys []string, headers amqp.Table, name string) ([]string, *Error) {
	v, ok := headers[name]
	if !ok {
		return keys, nil
	}
	list, ok := v.([]any)
	if !ok {
		return nil, precondition("invalid message: {unacceptable_type_in_header,\"%s\",%s}", name, typeName(v))
	}
	for _, k := range list {
		if s, ok := k.(string); ok && !slices.Contains(keys, s) {
			keys = append(keys, s)
		}
	}
	return keys, nil
}

// expiration parses the expiration property. It returns the value in ms, or -1 if the property is empty.
func expiration(s string) (int64, *Error) {
	if s == "" {
		return -1, nil
	}
	digits := strings.TrimLeft(s, "+-")
	rest := strings.TrimLeft(digits, "0123456789")
	ms, err := strconv.ParseInt(strings.TrimSuffix(s, rest), 10, 64)
	switch {
	case err == nil && rest != "":
		return 0, precondition("invalid expiration '%s': {leftover_string,\"%s\"}", s, rest)
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
		d := death{asCame: t}
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

// died returns the dead letter of a message that has died in a queue: a copy with the death recorded and the expiration
// removed.
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
			if old.asCame != nil {
				old.asCame = maps.Clone(old.asCame)
				old.asCame["count"] = old.count
			}
			rest[0] = old
			continue
		}
		rest = append(rest, old)
	}
	dead := &Message{Publishing: m.Publishing, Exchange: m.Exchange, RoutingKeys: m.RoutingKeys, hidden: m.hidden, deaths: rest, first: m.first}
	dead.Expiration = ""
	if dead.first.queue == "" && len(m.deaths) == 0 && !m.foreign {
		dead.first = d
	}
	return dead
}

// cycle reports whether the dead letter has already been in the queue and has not been rejected anywhere since.
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

// Delivered returns the headers of the message as it is delivered, including headers that the broker adds.
func (m *Message) Delivered(v Version) amqp.Table {
	died := len(m.deaths) > 0 && !m.foreign
	if !died && !m.quorum {
		return m.Headers
	}
	h := maps.Clone(m.Headers)
	if h == nil {
		h = amqp.Table{}
	}
	if n := m.failures(v); m.quorum && (n > 0 || !v.AtLeast(4, 0, 0)) {
		h["x-delivery-count"] = n
	}
	if n := cmp.Or(m.acquired, m.carried); m.quorum && n > 0 && v.AtLeast(4, 3, 0) {
		h["x-acquired-count"] = n
	}
	if !died {
		return h
	}
	list := make([]any, len(m.deaths))
	for i, d := range m.deaths {
		list[i] = d.table()
	}
	h["x-death"] = list
	if m.first.queue != "" {
		h["x-first-death-queue"], h["x-first-death-reason"], h["x-first-death-exchange"] = m.first.queue, m.first.reason, m.first.exchange
	}
	if v.AtLeast(3, 13, 0) {
		last := m.deaths[0]
		h["x-last-death-queue"], h["x-last-death-reason"], h["x-last-death-exchange"] = last.queue, last.reason, last.exchange
	}
	return h
}

// failures returns the number of failed deliveries, as in x-delivery-count. Before 4.3, failures in other queues count
// until a delivery fails in this queue.
func (m *Message) failures(v Version) int64 { return cmp.Or(m.counted(v), m.carried) }

// counted returns the number of failures that count towards the delivery limit of the queue.
func (m *Message) counted(v Version) int64 {
	if v.AtLeast(4, 3, 0) {
		return m.carried + m.deliveries
	}
	return m.deliveries
}

func (d death) table() amqp.Table {
	if d.asCame != nil {
		return d.asCame
	}
	t := amqp.Table{
		"queue": d.queue, "reason": d.reason, "exchange": d.exchange,
		"count": d.count, "time": d.at, "routing-keys": d.keys,
	}
	if d.expiration != "" {
		t["original-expiration"] = d.expiration
	}
	return t
}

// keys returns all routing keys, including the BCC keys.
func (m *Message) keys() []string { return append(slices.Clip(m.RoutingKeys), m.hidden...) }

// RoutingKey returns the key with which the message was published or dead-lettered.
func (m *Message) RoutingKey() string { return m.RoutingKeys[0] }

// Expires returns the time at which the message expires, or the zero time if it does not.
func (m *Message) Expires() time.Time {
	if m.expires == 0 {
		return time.Time{}
	}
	return time.UnixMilli(m.expires)
}
