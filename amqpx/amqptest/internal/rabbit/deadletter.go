package rabbit

import (
	"maps"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
)

// What the dead-letter worker of an at-least-once queue works on at a time, and
// how long it waits before it tries again what could not be routed, in ms.
const (
	deadLetterPrefetch = 32
	deadLetterRetry    = 180_000
)

// deadLetter waits in its at-least-once queue until it is safe elsewhere.
type deadLetter struct {
	message *Message
	reason  string
	retry   int64 // when it is tried again; 0: it has not been tried
}

// giveUp dead-letters a message, or drops it.
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

// targets are where a dead letter goes, and how it looks. Queues where it would
// go round for ever are left out.
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

// without are headers without one of them; those of a message never change.
func without(headers amqp.Table, name string) amqp.Table {
	if _, ok := headers[name]; !ok {
		return headers
	}
	rest := maps.Clone(headers)
	delete(rest, name)
	return rest
}

// forwardDead forwards the dead letters of an at-least-once queue in their order.
// Those that no queue takes stay and are tried again; when as many of them have
// gathered as the worker takes, what is behind them waits too.
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

// safe tells whether all queues will take the message, and there is one.
func safe(queues []*Queue, m *Message) bool {
	for _, q := range queues {
		if q.overflow == "reject-publish" && q.full(m) {
			return false
		}
	}
	return len(queues) > 0
}
