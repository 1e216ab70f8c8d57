package rabbit

import (
	"maps"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
)

// deadLetterPrefetch is how many dead letters the worker of an at-least-once queue has at
// a time, deadLetterRetry how many ms it waits before it retries one that could not be
// routed.
const (
	deadLetterPrefetch = 32
	deadLetterRetry    = 180_000
)

// deadLetter is a message in an at-least-once queue that is not yet safe elsewhere.
type deadLetter struct {
	message *Message
	reason  string
	retry   int64 // when it is tried again; 0: it has not been tried
}

// giveUp dead-letters a message, or drops it if the queue has no dead-letter exchange.
func (q *Queue) giveUp(m *Message, reason string) {
	switch {
	case q.deadLetter == nil:
	case q.atLeastOnce:
		q.dead = append(q.dead, &deadLetter{message: m, reason: reason})
		q.forwardDead()
	default:
		queues, dead := q.targets(m, reason)
		for _, to := range queues {
			to.enqueue(dead)
		}
	}
}

// targets returns the queues of a dead letter, without those that would make a cycle, and
// the dead letter.
func (q *Queue) targets(m *Message, reason string) ([]*Queue, *Message) {
	dead := m.died(q.Name, reason, q.vhost.broker.now)
	if q.vhost.is(4, 0, 0) {
		dead.carried = m.carried + m.lasting
	}
	if q.deadKey != nil {
		dead.RoutingKeys, dead.hidden = []string{*q.deadKey}, nil
		if !q.vhost.is(3, 13, 0) {
			dead.Headers = without(dead.Headers, "CC")
		}
	}
	dead.Exchange = *q.deadLetter
	queues := q.vhost.route(dead.Exchange, dead.keys(), dead.Headers)
	return slices.DeleteFunc(queues, func(to *Queue) bool { return reason != reasonRejected && dead.cycle(to.Name) }), dead
}

// without returns a copy of headers that lacks one; the headers of a message never
// change.
func without(headers amqp.Table, name string) amqp.Table {
	if _, ok := headers[name]; !ok {
		return headers
	}
	rest := maps.Clone(headers)
	delete(rest, name)
	return rest
}

// forwardDead forwards the dead letters of an at-least-once queue in their order. One that
// no queue takes stays and is retried. deadLetterPrefetch of those hold up all behind
// them.
func (q *Queue) forwardDead() {
	b := q.vhost.broker
	for i := 0; i < len(q.dead) && i < deadLetterPrefetch && !q.gone; {
		d := q.dead[i]
		if d.retry > b.now {
			i++
			continue
		}
		queues, dead := q.targets(d.message, d.reason)
		if !safe(queues, dead) {
			d.retry = b.now + deadLetterRetry
			b.at(d.retry, q.forwardDead)
			i++
			continue
		}
		q.dead = append(q.dead[:i:i], q.dead[i+1:]...)
		for _, to := range queues {
			to.enqueue(dead)
		}
	}
}

// safe reports whether there are queues, and all of them will take the message.
func safe(queues []*Queue, m *Message) bool {
	for _, q := range queues {
		if q.overflow == "reject-publish" && q.full(m) {
			return false
		}
	}
	return len(queues) > 0
}
