// Package interpret carries messages through a declared topology the way a
// broker does: exchange routing, alternate exchanges, bindings between
// exchanges, message TTL and dead-lettering. It lets tests prove where a delayed
// message ends, when, and by which queues, without a broker and for a year of
// delay in no time.
package interpret

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Errors of Add and Publish.
var (
	// ErrConflict: an object is declared twice with different properties.
	ErrConflict = errors.New("declared differently before")
	// ErrMissing: a binding or a publish names what is not declared.
	ErrMissing = errors.New("not declared")
	// ErrName: a name or key that AMQP cannot carry.
	ErrName = errors.New("not a name or key of AMQP")
	// ErrForever: a message that never comes to rest.
	ErrForever = errors.New("message goes round for ever")
)

// Broker holds what was declared.
type Broker struct {
	exchanges map[string]*exchange
	queues    map[string]topology.Queue
}

type exchange struct {
	topology.Exchange
	bindings []topology.Binding
	words    map[string][]node // of topic exchanges, by the first word; "" for patterns that begin with a wildcard
}

type node struct {
	pattern []string
	binding topology.Binding
}

// New is a broker with nothing but what every broker has.
func New() *Broker {
	b := &Broker{exchanges: map[string]*exchange{}, queues: map[string]topology.Queue{}}
	for name, kind := range map[string]string{
		"amq.direct": "direct", "amq.topic": "topic", "amq.fanout": "fanout", "amq.headers": "headers", "": "direct",
	} {
		b.exchanges[name] = &exchange{Exchange: topology.Exchange{Name: name, Kind: kind}, words: map[string][]node{}}
	}
	return b
}

// Add declares a topology as a broker would: what is there already must be the
// same, names and keys must fit, and both ends of a binding must exist.
func (b *Broker) Add(t topology.Topology) error {
	for _, e := range t.Exchanges {
		if err := name(e.Name); err != nil {
			return err
		}
		if have, ok := b.exchanges[e.Name]; ok {
			if have.Kind != e.Kind || have.AlternateExchange != e.AlternateExchange || have.Internal != e.Internal {
				return fmt.Errorf("exchange %q: %w", e.Name, ErrConflict)
			}
			continue
		}
		b.exchanges[e.Name] = &exchange{Exchange: e, words: map[string][]node{}}
	}
	for _, q := range t.Queues {
		if err := name(q.Name); err != nil {
			return err
		}
		if have, ok := b.queues[q.Name]; ok {
			if !maps.EqualFunc(have.Table(), q.Table(), func(x, y any) bool { return x == y }) {
				return fmt.Errorf("queue %q: %w", q.Name, ErrConflict)
			}
			continue
		}
		b.queues[q.Name] = q
	}
	for _, bind := range t.Bindings {
		if err := b.bind(bind); err != nil {
			return err
		}
	}
	return nil
}

// DeleteQueue removes a queue and its bindings.
func (b *Broker) DeleteQueue(q string) {
	delete(b.queues, q)
	for _, e := range b.exchanges {
		e.bindings = slices.DeleteFunc(e.bindings, func(x topology.Binding) bool { return x.Queue == q })
		for w, nodes := range e.words {
			e.words[w] = slices.DeleteFunc(nodes, func(n node) bool { return n.binding.Queue == q })
		}
	}
}

func name(s string) error {
	if s == "" || len(s) > topology.MaxRoutingKey {
		return fmt.Errorf("%q (%d bytes): %w", s, len(s), ErrName)
	}
	return nil
}

func (b *Broker) bind(x topology.Binding) error {
	e, ok := b.exchanges[x.Exchange]
	if !ok {
		return fmt.Errorf("exchange %q of a binding: %w", x.Exchange, ErrMissing)
	}
	if len(x.RoutingKey) > topology.MaxRoutingKey {
		return fmt.Errorf("binding key %q: %w", x.RoutingKey, ErrName)
	}
	_, toQueue := b.queues[x.Queue]
	_, toExchange := b.exchanges[x.ToExchange]
	if x.Queue != "" && !toQueue || x.ToExchange != "" && !toExchange || (x.Queue == "") == (x.ToExchange == "") {
		return fmt.Errorf("destination of binding %+v: %w", x, ErrMissing)
	}
	e.bindings = append(e.bindings, x)
	if e.Kind == "topic" {
		p := words(x.RoutingKey)
		first := ""
		if len(p) > 0 && p[0] != "*" && p[0] != "#" {
			first = p[0]
		}
		e.words[first] = append(e.words[first], node{p, x})
	}
	return nil
}

// words splits a routing key as RabbitMQ does: an empty key has no words, and
// any other has one more than dots.
func words(key string) []string {
	if key == "" {
		return nil
	}
	return strings.Split(key, ".")
}

// Match tells whether a topic binding matches a routing key: "*" is one word,
// "#" any number of words.
func Match(pattern, key string) bool { return match(words(pattern), words(key)) }

func match(p, k []string) bool {
	for len(p) > 0 {
		switch {
		case p[0] == "#":
			if len(p) == 1 {
				return true
			}
			for i := 0; i <= len(k); i++ {
				if match(p[1:], k[i:]) {
					return true
				}
			}
			return false
		case len(k) == 0 || p[0] != "*" && p[0] != k[0]:
			return false
		}
		p, k = p[1:], k[1:]
	}
	return len(k) == 0
}

// matching are the destinations that an exchange itself has for a key, without
// its alternate exchange.
func (e *exchange) matching(key string) []topology.Binding {
	var hits []topology.Binding
	switch e.Kind {
	case "topic":
		k := words(key)
		for _, n := range e.words[""] {
			if match(n.pattern, k) {
				hits = append(hits, n.binding)
			}
		}
		if len(k) > 0 && k[0] != "" {
			for _, n := range e.words[k[0]] {
				if match(n.pattern, k) {
					hits = append(hits, n.binding)
				}
			}
		}
	case "fanout":
		hits = e.bindings
	case "direct":
		for _, x := range e.bindings {
			if x.RoutingKey == key {
				hits = append(hits, x)
			}
		}
	case "headers": // with no arguments a binding matches every message
		for _, x := range e.bindings {
			if len(x.Arguments) == 0 {
				hits = append(hits, x)
			}
		}
	}
	return hits
}

// route gives the queues that a message published to an exchange goes to, each
// once. An exchange with no match of its own hands the message to its alternate
// exchange; an exchange is visited once.
func (b *Broker) route(exchangeName, key string) ([]string, error) {
	if exchangeName == "" {
		if _, ok := b.queues[key]; ok {
			return []string{key}, nil
		}
		return nil, nil
	}
	if _, ok := b.exchanges[exchangeName]; !ok {
		return nil, fmt.Errorf("exchange %q: %w", exchangeName, ErrMissing)
	}
	work := []string{exchangeName}
	seen := map[string]bool{exchangeName: true}
	var queues []string
	for len(work) > 0 {
		e, ok := b.exchanges[work[0]]
		work = work[1:]
		if !ok {
			continue // an alternate exchange may be missing
		}
		var next []string
		hits := e.matching(key)
		for _, x := range hits {
			if x.Queue != "" && !slices.Contains(queues, x.Queue) {
				queues = append(queues, x.Queue)
			}
			if x.ToExchange != "" {
				next = append(next, x.ToExchange)
			}
		}
		if len(hits) == 0 && e.AlternateExchange != "" {
			next = append(next, e.AlternateExchange)
		}
		for _, n := range next {
			if !seen[n] {
				seen[n] = true
				work = append(work, n)
			}
		}
	}
	return queues, nil
}

// Rest is where one copy of a message came to rest.
type Rest struct {
	Queue      string        // empty where a dead letter was dropped
	RoutingKey string        // with which it got there
	After      time.Duration // the sum of the TTLs on the way
	Visited    []string      // the queues it expired in, in order
}

// maxVisits is far above what any layout needs.
const maxVisits = 1000

// Publish gives all the places where the copies of a message come to rest, and
// whether the first exchange routed it at all (which the mandatory flag reports).
func (b *Broker) Publish(exchangeName, key string) (rests []Rest, routed bool, err error) {
	if len(key) > topology.MaxRoutingKey {
		return nil, false, fmt.Errorf("routing key %q: %w", key, ErrName)
	}
	queues, err := b.route(exchangeName, key)
	if err != nil {
		return nil, false, err
	}
	var open []Rest
	for _, q := range queues {
		open = append(open, Rest{Queue: q, RoutingKey: key})
	}
	for len(open) > 0 {
		m := open[0]
		open = open[1:]
		q := b.queues[m.Queue]
		if q.MessageTTL == nil {
			rests = append(rests, m)
			continue
		}
		if len(m.Visited) >= maxVisits {
			return nil, true, fmt.Errorf("by %v: %w", m.Visited[:10], ErrForever)
		}
		next := Rest{RoutingKey: m.RoutingKey, After: m.After + *q.MessageTTL, Visited: append(slices.Clone(m.Visited), m.Queue)}
		if q.DeadLetter == nil {
			rests = append(rests, next)
			continue
		}
		if k := q.DeadLetter.RoutingKey; k != nil {
			next.RoutingKey = *k
		}
		queues, err := b.route(q.DeadLetter.Exchange, next.RoutingKey)
		if err != nil && !errors.Is(err, ErrMissing) {
			return nil, true, err
		}
		if len(queues) == 0 {
			rests = append(rests, next)
		}
		for _, to := range queues {
			n := next
			n.Queue = to
			open = append(open, n)
		}
	}
	return rests, len(queues) > 0, nil
}
