package topology

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
)

// DeliveryExchange returns the name of the topic exchange at the end of every strategy. Its routing keys have the
// form "<tag>.<strategy's own words>.<destination key>".
func DeliveryExchange(prefix string) string { return prefix + ".deliver" }

// ParkedQueue returns the name of the queue for messages whose destination no longer exists. A fanout exchange with the
// same name routes to it.
func ParkedQueue(prefix string) string { return prefix + ".parked" }

// DeliveryTopology returns the objects that all strategies share: the delivery exchange, and the parked queue for
// messages that it cannot route. They do not depend on the queue type or the strategy, and the parked queue is always a
// quorum queue. As a result, two configurations with the same prefix never conflict over these objects.
func DeliveryTopology(prefix string) Topology {
	t := ParkedTopology(prefix)
	t.Exchanges = append(t.Exchanges, Exchange{Name: DeliveryExchange(prefix), Kind: "topic", AlternateExchange: ParkedQueue(prefix)})
	return t
}

// ParkedTopology returns the parked queue with its exchange.
func ParkedTopology(prefix string) Topology {
	parked := ParkedQueue(prefix)
	return Topology{
		Exchanges: []Exchange{{Name: parked, Kind: "fanout"}},
		Queues:    []Queue{Queue{Name: parked, Type: Quorum}.unlimited()},
		Bindings:  []Binding{{Exchange: parked, Queue: parked}},
	}
}

// RouteQueue returns the queue that forwards messages to the exchange of an exchange destination. Messages expire in
// it immediately and are dead-lettered to the exchange with the destination's routing key. It is always a quorum
// queue with at-least-once dead-lettering, because a classic queue would silently drop messages that the exchange
// cannot route.
func (d Destination) RouteQueue(prefix string) Queue {
	ttl := time.Duration(0)
	key := d.RoutingKey
	return Queue{
		Name:       d.TargetQueue(prefix),
		Type:       Quorum,
		MessageTTL: &ttl,
		DeadLetter: &DeadLetter{Exchange: d.Exchange, RoutingKey: &key, AtLeastOnce: true},
		Overflow:   argument.RejectPublish,
	}.unlimited()
}

// maxRouteName limits a route queue's name, so that the 255 bytes of a routing key also have space for a strategy's
// own words.
const maxRouteName = 160

// routeNameEscape is a package variable because a Replacer is built on its first use, which would take too long in
// every publish.
var routeNameEscape = strings.NewReplacer("%", "%25", ":", "%3A")

func routeQueueName(prefix, exchange, key string) string {
	// The name is unique because ':' and '%' in the exchange's own name are escaped.
	esc := routeNameEscape.Replace(exchange)
	name := prefix + ".route." + esc + ":" + key
	if len(name) <= maxRouteName {
		return name
	}
	sum := sha256.Sum256([]byte(esc + ":" + key))
	return prefix + ".route.sha256." + base64.RawURLEncoding.EncodeToString(sum[:])
}
