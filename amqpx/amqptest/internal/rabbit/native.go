package rabbit

import "time"

// delayNatively holds a message in a quorum queue until the instant of its header
// x-opt-delivery-time, as RabbitMQ 4.4 does, and reports whether it does: not for a value
// that is no instant in the future. The TTL runs meanwhile, and takes effect when the
// message is ready.
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
