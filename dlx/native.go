package dlx

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// NativeConfig configures the native strategy.
type NativeConfig struct {
	// Prefix is the start of the names of all broker objects. Default "delay".
	Prefix string
	// Queues is the number of holding queues, 1 to 64. Default 4. Each queue forwards about 4,000 messages a second on
	// two cores. All messages with the same destination and the same delay go through the same queue, which keeps their
	// order. Two configurations that differ only in Queues share the queues that both of them have.
	Queues int
	// TopicPermissions has the same meaning as BucketConfig.TopicPermissions.
	TopicPermissions bool
}

// DefaultNativeQueues is the default of NativeConfig.Queues.
const DefaultNativeQueues = 4

const maxNativeQueues = 64

// withDefaults returns the configuration with defaults for unset fields.
func (c NativeConfig) withDefaults() NativeConfig {
	c.Prefix = cmp.Or(c.Prefix, topology.DefaultPrefix)
	c.Queues = cmp.Or(c.Queues, DefaultNativeQueues)
	return c
}

// Validate applies the defaults and checks the configuration. It reports every invalid field as a *topology.FieldError
// in the joined error.
func (c NativeConfig) Validate() error {
	c = c.withDefaults()
	err := checkNames(nativeTag, c.Prefix, topology.Quorum)
	if c.Queues < 1 || c.Queues > maxNativeQueues {
		err = errors.Join(err, &topology.FieldError{
			Of: nativeTag, Field: "Queues", Value: c.Queues, Want: fmt.Sprintf("1 to %d", maxNativeQueues),
		})
	}
	return err
}

const nativeTag = "native"

// maxNativeDelay is far below 292 years, because a delivery time further away makes the broker's queue fail
// permanently.
const maxNativeDelay = topology.MaxTTL

// Native is a strategy that writes the delivery time into a header. RabbitMQ 4.4 and later hold a message with this
// header in a quorum queue until that time. The queues have a TTL of 0, so a message expires as soon as it is ready and
// is dead-lettered to its destination. Native implements amqpx.Strategy and is safe for concurrent use. The zero value
// is not usable; use NewNative.
//
// Older brokers, classic queues and streams ignore the header and would forward every message immediately. amqpx.Client
// therefore sends nothing through the strategy until a canary has verified each of its queues; see Canary.
type Native struct {
	prefix  string
	deliver string
	queues  []string
	through string // the exchange in front of all queues; empty if each has an entry exchange
}

// NewNative returns the native strategy for a configuration. It applies the defaults and returns Validate's error.
func NewNative(c NativeConfig) (*Native, error) {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	base := c.Prefix + "." + nativeTag
	n := &Native{prefix: c.Prefix, deliver: topology.DeliveryExchange(c.Prefix)}
	if c.TopicPermissions {
		n.through = base
	}
	for i := range c.Queues {
		n.queues = append(n.queues, base+"."+strconv.Itoa(i+1))
	}
	return n, nil
}

// Name returns "native".
func (n *Native) Name() string { return nativeTag }

// Prefix returns the start of the names of all broker objects.
func (n *Native) Prefix() string { return n.prefix }

// MaxDelay returns ten years.
func (n *Native) MaxDelay() time.Duration { return maxNativeDelay }

// Topology returns the delivery exchange, and the holding queues with their entry exchanges. The queues have no length
// limit, because a queue with a limit and drop-head keeps the broker permanently busy while it contains only delayed
// messages.
func (n *Native) Topology() topology.Topology {
	t := topology.DeliveryTopology(n.prefix)
	if n.through != "" {
		t.Exchanges = append(t.Exchanges, topology.Exchange{Name: n.through, Kind: "topic"})
	}
	for i, q := range n.queues {
		addQueue(&t, delayQueue(q, 0, n.deliver, topology.Quorum), n.through)
		if n.through != "" {
			t.Bindings = append(t.Bindings, topology.Binding{Exchange: n.through, Queue: q, RoutingKey: n.key(i+1, "#")})
		}
	}
	return t
}

// key returns a routing key through the holding queue with the given number, counted from 1. The number 0 is used for a
// message that passes through no holding queue.
func (n *Native) key(number int, dest string) string {
	return nativeTag + "." + strconv.Itoa(number) + "." + dest
}

// Bindings returns the binding of the destination's target queue to the delivery exchange. Bindings does not check the
// destination; Route does.
func (n *Native) Bindings(dest topology.Destination) []topology.Binding {
	return []topology.Binding{{
		Exchange: n.deliver, Queue: dest.TargetQueue(n.prefix), RoutingKey: nativeTag + ".*." + dest.Key(n.prefix),
	}}
}

// Route returns the route through one of the holding queues. It includes the name of the header in which the caller
// must write the delivery time, which is when delay ends, rounded up to whole milliseconds. A tolerance has no effect,
// because every delay takes one hop.
//
// It returns a *topology.DelayError for a negative delay or tolerance and for a delay over MaxDelay, a
// *topology.DestinationError for an invalid destination or one that belongs to a strategy, and a *topology.KeyError for
// a destination whose name is too long for a routing key. Errors about the destination do not depend on the delay.
func (n *Native) Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error) {
	overhead := len(n.key(len(n.queues), ""))
	key, err := destinationKey(n.Name(), dest, n.prefix, overhead)
	switch {
	case err != nil:
		return topology.Route{}, err
	case delay < 0 || tolerance < 0:
		return topology.Route{}, negative(n.Name(), delay, tolerance, n.MaxDelay())
	case delay > n.MaxDelay():
		return topology.Route{}, &topology.DelayError{
			Strategy: n.Name(), Delay: delay, Max: n.MaxDelay(), Reason: "exceeds ten years",
			Hint: "keep the message as a task (package schedule) until it is due sooner",
		}
	case delay == 0:
		return topology.Route{Exchange: n.deliver, RoutingKey: n.key(0, key), Mandatory: true}, nil
	}
	ms := int64((delay-1)/time.Millisecond) + 1
	r := n.routeBy(spread(key, ms)%uint64(len(n.queues)), key)
	r.Delay = time.Duration(ms) * time.Millisecond
	return r, nil
}

// routeBy returns the route through the holding queue with index i.
func (n *Native) routeBy(i uint64, key string) topology.Route {
	return topology.Route{
		Exchange: cmp.Or(n.through, n.queues[i]), Queue: n.queues[i], RoutingKey: n.key(int(i)+1, key),
		InstantHeader: topology.HeaderInstant, Hops: 1, Mandatory: true,
	}
}

// spread hashes a destination and a delay to a number that is the same in every process. It uses FNV-1a and folds the
// result, because the low bits alone depend on too few of the other bits.
func spread(key string, ms int64) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * prime
	}
	for range 8 {
		h = (h ^ uint64(ms&0xff)) * prime
		ms >>= 8
	}
	return h>>32 ^ h>>11
}

// Canary returns the bindings and routes for testing whether the broker delays messages. The caller declares a queue
// for the test, whose name is naming.CanaryQueue plus a unique suffix. The bindings connect that queue to the delivery
// exchange, and there is one route to it through each holding queue.
//
// To test a route, send a message whose header contains a future time, and then a message without the header. The
// broker passes the test if the first message arrives after the second one.
func (n *Native) Canary(queue string) ([]topology.Binding, []topology.Route) {
	dest := topology.Destination{Queue: queue}
	routes := make([]topology.Route, len(n.queues))
	for i := range n.queues {
		routes[i] = n.routeBy(uint64(i), dest.Key(n.prefix))
	}
	return n.Bindings(dest), routes
}
