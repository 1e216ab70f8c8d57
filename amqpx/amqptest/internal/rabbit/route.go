package rabbit

import (
	amqp "github.com/rabbitmq/amqp091-go"
)

// Route gives the queues that a message with these routing keys goes to, each
// once. An exchange with no match of its own hands the message to its alternate
// exchange; an exchange is visited once. ok is false when there is no such
// exchange.
func (v *VHost) route(exchange string, keys []string, headers amqp.Table) (queues []*Queue, ok bool) {
	first := v.exchanges[exchange]
	if first == nil {
		return nil, false
	}
	work := []*Exchange{first}
	seenExchange := map[*Exchange]bool{first: true}
	seenQueue := map[*Queue]bool{}
	for len(work) > 0 {
		e := work[0]
		work = work[1:]
		to, next := e.matching(keys, headers)
		if len(to) == 0 && len(next) == 0 {
			if ae, ok := e.Args["alternate-exchange"].(string); ok {
				next = append(next, ae)
			}
		}
		for _, name := range to {
			if q := v.queues[name]; q != nil && !seenQueue[q] {
				seenQueue[q] = true
				queues = append(queues, q)
			}
		}
		for _, name := range next {
			if x := v.exchanges[name]; x != nil && !seenExchange[x] {
				seenExchange[x] = true
				work = append(work, x)
			}
		}
	}
	return queues, true
}

// matching are the destinations that the exchange itself has, queues and
// exchanges, without the alternate one.
func (e *Exchange) matching(keys []string, headers amqp.Table) (queues, exchanges []string) {
	if e.Name == "" {
		for _, k := range keys {
			if e.vhost.queues[k] != nil {
				queues = append(queues, k)
			}
		}
		return queues, nil
	}
	hit := func(b *Binding) {
		switch {
		case b.effective > e.vhost.broker.now:
		case b.Queue != "":
			queues = append(queues, b.Queue)
		default:
			exchanges = append(exchanges, b.ToExchange)
		}
	}
	switch e.kind() {
	case "fanout":
		for _, b := range e.bindings {
			hit(b)
		}
	case "headers":
		for _, b := range e.bindings {
			if matchHeaders(b.Args, headers) {
				hit(b)
			}
		}
	case "direct":
		for _, k := range keys {
			for _, b := range e.direct[k] {
				hit(b)
			}
		}
	case "topic":
		for _, k := range keys {
			e.matchingTopic(words(k), hit)
		}
	}
	return queues, exchanges
}

func (e *Exchange) matchingTopic(k []string, hit func(*Binding)) {
	for _, b := range e.topic[""] {
		if matchWords(b.pattern, k) {
			hit(b)
		}
	}
	if len(k) == 0 || k[0] == "" {
		return
	}
	for _, b := range e.topic[k[0]] {
		if matchWords(b.pattern, k) {
			hit(b)
		}
	}
}
