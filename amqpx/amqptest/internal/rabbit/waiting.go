package rabbit

import "slices"

// Waiting is a message that no consumer has, where it is and where it comes to.
type Waiting struct {
	Message *Message
	Queue   string   // in which it is; empty while the plugin has it
	Ends    []string // the queues to which TTLs and dead letters bring it
}

// maxHops ends the search for what goes round in a circle.
const maxHops = 100

// Waiting returns the messages that no consumer has, in the order in which they came. transit
// reports whether a queue is one that messages only pass.
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

// destinations returns where a message in the queue comes to.
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
