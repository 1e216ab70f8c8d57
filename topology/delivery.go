package topology

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology/argument"
)

// DeliveryExchange is the topic exchange in which every strategy ends. Its
// routing keys are "<tag>.<strategy's own words>.<destination key>".
func DeliveryExchange(prefix string) string { return prefix + ".deliver" }

// ParkedQueue holds messages whose destination is gone. The fanout exchange of
// the same name feeds it.
func ParkedQueue(prefix string) string { return prefix + ".parked" }

// DeliveryTopology returns the objects that all strategies share: the delivery exchange
// and, as its alternate, the parked queue. They depend on neither the queue
// type nor the strategy (the parked queue is always a quorum queue), so two
// configurations with one prefix never conflict in them.
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

// RouteQueue returns the queue that forwards to the exchange of an exchange
// destination: messages expire in it at once and are dead-lettered to the
// exchange with the destination's routing key. It is always a quorum queue with
// at-least-once dead-lettering, because a classic one would silently drop
// messages that the exchange cannot route.
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

// maxRouteName leaves room in the 255 bytes of a routing key for a strategy's
// own words.
const maxRouteName = 160

// routeNameEscape is shared because it is built on its first use, which costs
// more than a publish may.
var routeNameEscape = strings.NewReplacer("%", "%25", ":", "%3A")

func routeQueueName(prefix, exchange, key string) string {
	// Injective: a ':' or '%' of the exchange's own name is escaped.
	esc := routeNameEscape.Replace(exchange)
	name := prefix + ".route." + esc + ":" + key
	if len(name) <= maxRouteName {
		return name
	}
	sum := sha256.Sum256([]byte(esc + ":" + key))
	return prefix + ".route.sha256." + base64.RawURLEncoding.EncodeToString(sum[:])
}
