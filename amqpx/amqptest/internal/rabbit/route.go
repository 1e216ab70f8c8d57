package rabbit

import (
	"reflect"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// route returns the queues for a message with these routing keys, each queue once. If nothing matches in an exchange,
// the message is routed to its alternate exchange. Each exchange is visited at most once.
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

// matching returns the exchange's bindings that match a message.
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
		for _, key := range keys {
			k := words(key)
			filed := e.topic[""]
			if first := firstWord(k); first != "" {
				filed = slices.Concat(filed, e.topic[first])
			}
			for _, b := range filed {
				if matchWords(b.pattern, k) {
					found = append(found, b)
				}
			}
		}
	}
	return slices.DeleteFunc(found, func(b *Binding) bool { return b.effective > e.vhost.broker.now })
}

// words splits a routing key as RabbitMQ does. An empty key has no words, and any other key has one more word than
// dots.
func words(key string) []string {
	if key == "" {
		return nil
	}
	return strings.Split(key, ".")
}

// matchWords reports whether a topic pattern matches a routing key. "*" matches one word, and "#" matches any number of
// words. It backtracks only to the last "#", so its running time is at most the product of both lengths.
func matchWords(p, k []string) bool {
	var i, j int
	hash, from := -1, 0
	for j < len(k) {
		switch {
		case i < len(p) && p[i] == "#":
			hash, from = i, j
			i++
		case i < len(p) && (p[i] == "*" || p[i] == k[j]):
			i, j = i+1, j+1
		case hash >= 0:
			from++
			i, j = hash+1, from
		default:
			return false
		}
	}
	for i < len(p) && p[i] == "#" {
		i++
	}
	return i == len(p)
}

// matchHeaders reports whether the headers of a message satisfy the arguments of a binding to a headers exchange.
// Arguments that begin with "x-" are compared only if x-match is all-with-x or any-with-x.
func matchHeaders(args, headers amqp.Table) bool {
	mode, _ := args["x-match"].(string)
	withX := strings.HasSuffix(mode, "-with-x")
	some := strings.HasPrefix(mode, "any")
	matched := 0
	for name, want := range args {
		if name == "x-match" || !withX && strings.HasPrefix(name, "x-") {
			continue
		}
		have, ok := headers[name]
		ok = ok && (want == nil || sameValue(want, have))
		if ok && some {
			return true
		}
		if !ok && !some {
			return false
		}
		if ok {
			matched++
		}
	}
	return !some || matched > 0
}

// sameValue compares table values as RabbitMQ does. Integers are compared by value, regardless of their width.
func sameValue(a, b any) bool {
	if x, ok := integer(a); ok {
		y, ok := integer(b)
		return ok && x == y
	}
	if x, ok := a.([]byte); ok {
		a = string(x)
	}
	if y, ok := b.([]byte); ok {
		b = string(y)
	}
	return reflect.DeepEqual(a, b)
}

// integer converts a value of any integer type to int64. It returns false for other types.
func integer(v any) (int64, bool) {
	switch n := reflect.ValueOf(v); n.Kind() {
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Int:
		return n.Int(), true
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return int64(n.Uint()), true
	default:
		return 0, false
	}
}
