package dlx

import "github.com/rabbitdelay/rabbitdelay/topology"

// A message enters a strategy through an exchange that has the name of its first
// queue and feeds nothing else.
//
// A topic exchange could find the queue by the routing key (and does with
// BucketConfig.TopicPermissions), but doubles the broker's cost of a publish:
// it walks the words of the key, and the broker checks the key of every message
// that a client publishes into a topic exchange against the user's topic
// permissions, set or not. A channel remembers the outcome for a dozen keys
// only, and delays are part of the key, so that nearly every message has a key
// of its own.

// addQueue adds a delay queue with the way into it. An entry exchange has no
// alternate exchange, so that a missing queue makes a mandatory message come back
// to its publisher.
func addQueue(t *topology.Topology, q topology.Queue, checked bool) {
	t.Queues = append(t.Queues, q)
	if checked {
		return
	}
	t.Exchanges = append(t.Exchanges, topology.Exchange{Name: q.Name, Kind: "fanout"})
	t.Bindings = append(t.Bindings, topology.Binding{Exchange: q.Name, Queue: q.Name})
}
