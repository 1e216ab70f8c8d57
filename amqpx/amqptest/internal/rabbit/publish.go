package rabbit

import (
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Outcome is the result of publishing a message.
type Outcome struct {
	Routed   bool // the message was routed to at least one queue
	Rejected bool // a full queue rejected the message
}

// Prepare checks a message and finds its queues. It returns an error if the exchange or the message is invalid.
func (v *VHost) Prepare(exchange, key string, p amqp.Publishing) (*Message, []*Queue, *Error) {
	e := v.exchanges[exchange]
	if e == nil {
		return nil, nil, missing("exchange", exchange, v.name)
	}
	if e.Internal {
		return nil, nil, Refusal(amqp.AccessRefused, "cannot publish to internal %s", e.of())
	}
	m, err := v.newMessage(exchange, key, p)
	if err != nil {
		return nil, nil, err
	}
	return m, v.route(exchange, m.keys(), m.Headers), nil
}

// Publish puts a message into the queues that Prepare found, or passes it to the plugin.
func (v *VHost) Publish(m *Message, queues []*Queue) Outcome {
	if v.delay(m) {
		return Outcome{}
	}
	out := Outcome{Routed: len(queues) > 0}
	for _, q := range queues {
		out.Rejected = !q.enqueue(m) || out.Rejected
	}
	return out
}

// delay passes a message to the plugin, and reports whether the plugin delays it.
func (v *VHost) delay(m *Message) bool {
	e := v.exchanges[m.Exchange]
	ms, ok := integer(m.Headers["x-delay"])
	if e == nil || e.Kind != delayedKind || !ok || ms <= 0 || ms > maxPluginDelay {
		return false
	}
	b := v.broker
	v.delayed[m] = true
	b.at(b.now+ms, func() {
		delete(v.delayed, m)
		h := maps.Clone(m.Headers)
		h["x-delay"] = negative(m.Headers["x-delay"])
		m.Headers = h
		for _, q := range v.route(m.Exchange, m.keys(), m.Headers) {
			q.enqueue(m)
		}
	})
	return true
}

// maxPluginDelay is the plugin's longest delay in ms. The plugin delivers a message with a longer delay immediately.
const maxPluginDelay = 1<<32 - 1

func negative(v any) any {
	switch n := v.(type) {
	case int16:
		return -n
	case int32:
		return -n
	case int64:
		return -n
	}
	n, _ := integer(v)
	return -n
}

// full reports whether one more message would exceed the queue's limits.
func (q *Queue) full(m *Message) bool {
	return q.maxLen >= 0 && int64(q.Ready()+len(q.delayed)) >= q.maxLen || q.maxBytes >= 0 && q.lines.bytes+size(m) > q.maxBytes
}

// enqueue adds a copy of a message. It returns false if the queue rejects the message.
func (q *Queue) enqueue(m *Message) bool {
	if q.gone {
		return true
	}
	if q.full(m) && (q.overflow == "reject-publish" || q.overflow == "reject-publish-dlx") {
		if q.overflow == "reject-publish-dlx" {
			q.giveUp(m, reasonMaxLen)
		}
		return false
	}
	b := q.vhost.broker
	b.seq++
	own := *m
	own.seq, own.queued, own.expires, own.quorum = b.seq, b.now, 0, q.quorum
	own.returned = m.carried > 0 && (q.quorum || q.vhost.is(4, 3, 0))
	q.scheduleExpiry(&own)
	if !q.delayNatively(&own) {
		q.take(&own)
	}
	return true
}

// take adds a message to the ready messages of the queue.
func (q *Queue) take(m *Message) {
	q.lines.put(m)
	q.pump()
	q.dropOverflow()
	q.expire()
}

// scheduleExpiry makes a message expire after the shorter of the queue's TTL and its own.
func (q *Queue) scheduleExpiry(m *Message) {
	ttl := q.ttl
	if own, _ := expiration(m.Expiration); own >= 0 && (ttl < 0 || own < ttl) {
		ttl = own
	}
	if ttl < 0 {
		return
	}
	b := q.vhost.broker
	m.expires = b.now + ttl
	if ttl > 0 {
		b.at(m.expires, q.expire)
	}
}

// expire dead-letters the expired messages at the heads of the lines.
func (q *Queue) expire() {
	now := q.vhost.broker.now
	for again := true; again; {
		again = false
		var due []*Message
		q.lines.heads(func(l *line) {
			for m := l.first(); m != nil && m.expires != 0 && m.expires <= now; m = l.first() {
				due = append(due, q.lines.popFirst(l))
				again = q.lines.merged
				if again {
					return // the next message may be in another line
				}
			}
		})
		for _, m := range due {
			q.giveUp(m, reasonExpired)
		}
	}
}

// dropOverflow dead-letters the messages that would be delivered next until the queue is within its limits.
func (q *Queue) dropOverflow() {
	if q.overflow == "reject-publish" || q.overflow == "reject-publish-dlx" {
		return
	}
	for q.maxLen >= 0 && int64(q.Ready()) > q.maxLen || q.maxBytes >= 0 && q.lines.bytes > q.maxBytes {
		l := q.lines.nextLine()
		if l == nil {
			return
		}
		q.giveUp(q.lines.popFirst(l), reasonMaxLen)
	}
}

// delayNatively holds a message in a quorum queue until the time in its header x-opt-delivery-time, as RabbitMQ 4.4
// does. It returns false, and does not hold the message, if the value is not a time in the future. The TTL runs during
// the delay, and takes effect when the message becomes ready.
func (q *Queue) delayNatively(m *Message) bool {
	at, ok := m.Headers["x-opt-delivery-time"].(int64)
	if t, isTime := m.Headers["x-opt-delivery-time"].(time.Time); isTime {
		at, ok = t.Unix()*1000, true
	}
	b := q.vhost.broker
	if !q.quorum || !q.vhost.is(4, 4, 0) || !ok || at <= b.now {
		return false
	}
	q.delayed[m] = true
	purges := q.purges
	b.at(at, func() {
		if !q.gone && purges == q.purges {
			delete(q.delayed, m)
			q.take(m)
		}
	})
	return true
}
