package dlx

import "github.com/rabbitdelay/rabbitdelay/topology"

// entryExchange is the exchange that messages for the topic exchange base are
// published into.
//
// RabbitMQ checks a user's topic permissions for each message that is published
// into a topic exchange, and remembers only the last dozen routing keys of a
// channel. Delays are part of the routing key, so nearly every message has one
// of its own, and on RabbitMQ 4 looking up permissions, set or not, takes the
// broker as long as all the rest of a publish. A fanout exchange in front has no
// such check and costs next to nothing.
func entryExchange(base string, topicPermissions bool) string {
	if topicPermissions {
		return base
	}
	return base + ".in"
}

// addEntry adds a strategy's topic exchange and the way into it. Neither has an
// alternate exchange, so that a missing queue makes a mandatory message come
// back to its publisher.
func addEntry(t *topology.Topology, base string, topicPermissions bool) {
	t.Exchanges = append(t.Exchanges, topology.Exchange{Name: base, Kind: "topic"})
	entry := entryExchange(base, topicPermissions)
	if entry == base {
		return
	}
	t.Exchanges = append(t.Exchanges, topology.Exchange{Name: entry, Kind: "fanout"})
	t.Bindings = append(t.Bindings, topology.Binding{Exchange: entry, ToExchange: base})
}
