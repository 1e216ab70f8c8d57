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
	// Prefix begins the names of all broker objects. Default "delay".
	Prefix string
	// Queues is how many holding queues there are, 1 to 64, default 4. Each hands on
	// about 4,000 messages a second on two cores. Messages of one destination with
	// one delay are all in one of them, which keeps their order. Two configurations
	// that differ in it share the queues that both have.
	Queues int
	// TopicPermissions: see BucketConfig.TopicPermissions.
	TopicPermissions bool
}

// DefaultNativeQueues is NativeConfig.Queues where nobody sets it.
const DefaultNativeQueues = 4

const maxNativeQueues = 64

// WithDefaults fills in what is not set.
func (c NativeConfig) WithDefaults() NativeConfig {
	c.Prefix = cmp.Or(c.Prefix, topology.DefaultPrefix)
	c.Queues = cmp.Or(c.Queues, DefaultNativeQueues)
	return c
}

// Validate checks the configuration after WithDefaults. It finds every wrong
// field; each is a *topology.FieldError in the joined error.
func (c NativeConfig) Validate() error {
	c = c.WithDefaults()
	err := checkNames(nativeTag, c.Prefix, topology.Quorum)
	if c.Queues < 1 || c.Queues > maxNativeQueues {
		err = errors.Join(err, &topology.FieldError{
			Of: nativeTag, Field: "Queues", Value: c.Queues, Want: fmt.Sprintf("1 to %d", maxNativeQueues),
		})
	}
	return err
}

const nativeTag = "native"

// maxNativeDelay is far below the 292 years beyond which an instant takes a queue
// down for good.
const maxNativeDelay = topology.MaxTTL

// Native delays by an instant in a header, for which RabbitMQ 4.4 and later hold a
// message in a quorum queue. The queues have a TTL of 0: a message expires in them
// as soon as it is ready, and is dead-lettered to its destination. It implements
// amqpx.Strategy and is safe for concurrent use.
//
// An older broker, a classic queue and a stream ignore the header, and would hand
// every message on at once. amqpx.Client therefore sends nothing through the
// strategy before a canary has proven each of its queues; see Canary.
type Native struct {
	prefix  string
	deliver string
	queues  []string
	through string // exchange before all queues; empty where each has one of its name
}

// NewNative makes the native strategy from a configuration, after WithDefaults and
// Validate.
func NewNative(c NativeConfig) (*Native, error) {
	c = c.WithDefaults()
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

// Name is "native".
func (n *Native) Name() string { return nativeTag }

// Prefix begins the names of all broker objects.
func (n *Native) Prefix() string { return n.prefix }

// MaxDelay is ten years.
func (n *Native) MaxDelay() time.Duration { return maxNativeDelay }

// Topology is the delivery exchange, and the holding queues with their entry
// exchanges. They have no length limit: with one and drop-head, a queue in which
// only delayed messages wait is busy for ever.
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

// key is a routing key through holding queue number, from 1 on; 0 is for none.
func (n *Native) key(number int, dest string) string {
	return nativeTag + "." + strconv.Itoa(number) + "." + dest
}

// Bindings connect the delivery exchange with the destination's target queue.
// Route checks whether the destination is possible at all.
func (n *Native) Bindings(dest topology.Destination) []topology.Binding {
	return []topology.Binding{{
		Exchange: n.deliver, Queue: dest.TargetQueue(n.prefix), RoutingKey: nativeTag + ".*." + dest.Key(n.prefix),
	}}
}

// Route returns the way through one of the holding queues, with the name of the
// header that is to carry the instant at which delay ends, rounded up to whole
// milliseconds. A tolerance changes nothing: there is one hop for every delay.
//
// Errors (those about the destination do not depend on the delay):
// *topology.DelayError for a negative delay or tolerance and for one over
// MaxDelay; *topology.DestinationError for an invalid destination or one that
// belongs to a strategy; *topology.KeyError for a destination whose name is too
// long for a routing key.
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
			Strategy: n.Name(), Delay: delay, Max: n.MaxDelay(), Reason: "is longer than ten years",
			Hint: "keep the message in a durable schedule until it is nearer",
		}
	case delay == 0:
		return topology.Route{Exchange: n.deliver, RoutingKey: n.key(0, key), Mandatory: true}, nil
	}
	ms := int64((delay-1)/time.Millisecond) + 1
	r := n.routeBy(spread(key, ms)%uint64(len(n.queues)), key)
	r.Delay = time.Duration(ms) * time.Millisecond
	return r, nil
}

// routeBy is the way through a holding queue.
func (n *Native) routeBy(i uint64, key string) topology.Route {
	return topology.Route{
		Exchange: cmp.Or(n.through, n.queues[i]), Queue: n.queues[i], RoutingKey: n.key(int(i)+1, key),
		InstantHeader: topology.HeaderInstant, Hops: 1, Mandatory: true,
	}
}

// spread is the same number in every process for a destination and a delay: FNV-1a,
// folded, because the low bits alone depend on few others.
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

// Canary returns what proves that a broker delays: the bindings to a queue that a
// client declares for it, named naming.CanaryQueue and something of its own, and
// a way through each holding queue to there. A message whose header has an instant
// to come must arrive after one without the header that was published behind it.
func (n *Native) Canary(queue string) ([]topology.Binding, []topology.Route) {
	dest := topology.Destination{Queue: queue}
	routes := make([]topology.Route, len(n.queues))
	for i := range n.queues {
		routes[i] = n.routeBy(uint64(i), dest.Key(n.prefix))
	}
	return n.Bindings(dest), routes
}
