package rabbit

import (
	"maps"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
)

// deadLetterPrefetch is how many dead letters the worker of an at-least-once queue handles at a time. deadLetterRetry
// is how many ms the worker waits before it retries a dead letter that could not be routed.
const (
	deadLetterPrefetch = 32
	deadLetterRetry    = 180_000
)

// deadLetter is a message of an at-least-once queue that no target queue has accepted yet.
type deadLetter struct {
	message *Message
	reason  string
	retry   int64 // time of the next attempt; 0 before the first
}

// giveUp dead-letters a message that has left the queue or was not accepted by it. If the queue has no dead-letter
// exchange, the message is dropped.
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

// targets returns the queues to which a message is dead-lettered, without those that would form a cycle, and the
// resulting dead letter.
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

// without returns the headers without the given one. It copies them, because the headers of a message never change.
func without(headers amqp.Table, name string) amqp.Table {
	if _, ok := headers[name]; !ok {
		return headers
	}
	rest := maps.Clone(headers)
	delete(rest, name)
	return rest
}

// forwardDead forwards the dead letters of an at-least-once queue in order. A dead letter that no queue accepts stays
// and is retried. Once deadLetterPrefetch of these have accumulated, they block all later ones.
func (q *Queue) forwardDead() {
	b := q.vhost.broker
	for i := 0; i < len(q.dead) && i < deadLetterPrefetch && !q.gone; {
		d := q.dead[i]
		if d.retry > b.now {
			i++
			continue
		}
		queues, dead := q.targets(d.message, d.reason)
		refuses := func(to *Queue) bool { return to.overflow == "reject-publish" && to.full(dead) }
		if len(queues) == 0 || slices.ContainsFunc(queues, refuses) {
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

// Waiting is a message that no consumer has received, with its current queue and its destinations.
type Waiting struct {
	Message *Message
	Queue   string   // current queue; empty while the plugin holds the message
	Ends    []string // queues in which the message will arrive through TTLs and dead-lettering
}

// maxHops limits the search for destinations, in case the topology contains a cycle.
const maxHops = 100

// Waiting returns the messages that no consumer has received, in order of arrival. The function transit reports whether
// a queue is only a stage of a delay strategy.
func (v *VHost) Waiting(transit func(queue string) bool) (all []Waiting) {
	for _, name := range v.QueueNames() {
		q := v.queues[name]
		add := func(m *Message) {
			all = append(all, Waiting{m, name, q.destinations(m, m.expires != 0, transit, 0)})
		}
		for _, m := range q.lines.all() {
			add(m)
		}
		for m := range q.delayed {
			add(m)
		}
		for _, d := range q.dead {
			add(d.message)
		}
	}
	for m := range v.delayed {
		w := Waiting{Message: m}
		for _, to := range v.route(m.Exchange, m.keys(), m.Headers) {
			w.Ends = append(w.Ends, to.destinations(m, to.ttl >= 0, transit, 0)...)
		}
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b Waiting) int { return int(a.Message.seq) - int(b.Message.seq) })
	return all
}

// destinations returns the queues in which a message in this queue eventually arrives.
func (q *Queue) destinations(m *Message, expires bool, transit func(string) bool, hops int) (names []string) {
	if expires && q.deadLetter != nil && transit(q.Name) && hops < maxHops {
		queues, dead := q.targets(m, reasonExpired)
		for _, to := range queues {
			names = append(names, to.destinations(dead, to.ttl >= 0, transit, hops+1)...)
		}
	}
	if names == nil {
		names = []string{q.Name}
	}
	return names
}
