package rabbit

import (
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
)

// route returns the queues of a message with these routing keys, each once. An exchange with no match of its own hands the message to its alternate
// exchange; an exchange is visited once.
func (v *VHost) route(exchange string, keys []string, headers amqp.Table) (queues []*Queue) {
	var work []*Exchange
	seenExchange, seenQueue := map[*Exchange]bool{nil: true}, map[*Queue]bool{nil: true}
	visit := func(e *Exchange) {
		if !seenExchange[e] {
			seenExchange[e] = true
			work = append(work, e)
		}
	}
	visit(v.exchanges[exchange])
	for len(work) > 0 {
		e := work[0]
		work = work[1:]
		found := e.matching(keys, headers)
		if ae, ok := e.Args["alternate-exchange"].(string); ok && len(found) == 0 {
			visit(v.exchanges[ae])
		}
		for _, b := range found {
			if b.ToExchange != "" {
				visit(v.exchanges[b.ToExchange])
			} else if q := v.queues[b.Queue]; !seenQueue[q] {
				seenQueue[q] = true
				queues = append(queues, q)
			}
		}
	}
	return queues
}

// matching returns the bindings by which the exchange itself routes a message.
func (e *Exchange) matching(keys []string, headers amqp.Table) (found []*Binding) {
	switch e.kind() {
	case "fanout":
		found = append(found, e.bindings...)
	case "headers":
		for _, b := range e.bindings {
			if matchHeaders(b.Args, headers) {
				found = append(found, b)
			}
		}
	case "direct":
		for _, k := range keys {
			if e.Name == "" && e.vhost.queues[k] != nil {
				found = append(found, &Binding{Queue: k})
			}
			found = append(found, e.direct[k]...)
		}
	case "topic":
		for _, k := range keys {
			found = e.appendTopic(found, words(k))
		}
	}
	return slices.DeleteFunc(found, func(b *Binding) bool { return b.effective > e.vhost.broker.now })
}

func (e *Exchange) appendTopic(found []*Binding, k []string) []*Binding {
	filed := [][]*Binding{e.topic[""]}
	if first := firstWord(k); first != "" {
		filed = append(filed, e.topic[first])
	}
	for _, bindings := range filed {
		for _, b := range bindings {
			if matchWords(b.pattern, k) {
				found = append(found, b)
			}
		}
	}
	return found
}
