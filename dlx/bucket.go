package dlx

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// BucketConfig configures the bucket strategy.
type BucketConfig struct {
	// Prefix is the start of the names of all broker objects. Default "delay".
	Prefix string
	// Layout is "clock" (the default), "hex" or "binary". Leave it empty if you set Radices.
	Layout string
	// Radices is an explicit layout with the lowest position first: 1 to 28 numbers from 2 to 1000. A position of radix
	// r needs r-1 queues. The layout may have at most 1000 queues in total, and no queue may have a TTL over ten years.
	Radices []int
	// Resolution is the smallest step of a delay, in whole milliseconds from 10ms to 1h. With the clock layout it must
	// divide the next larger unit of 1s, 1m and 1h. The default is 10ms for clock, 100ms for hex and Radices, and 1s
	// for binary. A delay is rounded up to the resolution, so messages with arbitrary due times are late by up to one
	// step. A finer resolution costs the broker CPU time and queues: the clock layout has 283 queues with 10ms and 193
	// with 100ms. Set 100ms for more than about 2,000 messages a second on two cores, or if 283 queues are too many.
	Resolution time.Duration
	// QueueType is the type of the delay queues. The default is topology.Quorum, which dead-letters at least once
	// (RabbitMQ 3.10 or later). Classic queues are faster but can lose messages when a broker dies between two hops.
	QueueType topology.QueueType
	// TopicPermissions makes messages enter through one topic exchange, where the broker checks each routing key
	// against the user's topic permissions. By default messages enter through one fanout exchange per queue, which is
	// faster and only requires write permission on that exchange.
	TopicPermissions bool
}

// WithDefaults returns the configuration with defaults for unset fields.
func (c BucketConfig) WithDefaults() BucketConfig {
	c.Prefix = cmp.Or(c.Prefix, topology.DefaultPrefix)
	if c.Layout == "" && len(c.Radices) == 0 {
		c.Layout = LayoutClock
	}
	c.Resolution = cmp.Or(c.Resolution, defaultResolution(c.Layout))
	c.QueueType = cmp.Or(c.QueueType, topology.Quorum)
	return c
}

// Validate applies WithDefaults and checks the configuration. It reports every invalid field as a *topology.FieldError
// in the joined error.
func (c BucketConfig) Validate() error {
	c = c.WithDefaults()
	errs := []error{checkNames("bucket", c.Prefix, c.QueueType)}
	switch {
	case c.Layout != "" && len(c.Radices) > 0:
		errs = append(errs, &topology.FieldError{
			Of: "bucket", Field: "Radices", Value: c.Radices,
			Want: fmt.Sprintf("empty with Layout %q; set one of the two", c.Layout),
		})
	case c.Layout != "" && c.Layout != LayoutClock && c.Layout != LayoutHex && c.Layout != LayoutBinary:
		errs = append(errs, &topology.FieldError{
			Of: "bucket", Field: "Layout", Value: c.Layout,
			Want: "clock, hex or binary, or empty with Radices",
		})
	default:
		_, err := newLayout(c.Layout, c.Radices, c.Resolution)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Bucket is a strategy that delays by any duration. It writes the delay as digits, and each value of each digit has a
// queue with a fixed TTL. It implements amqpx.Strategy and is safe for concurrent use. The zero value is not usable;
// use NewBucket.
type Bucket struct {
	positional
	base      string // the start of the names of exchanges and queues
	queueType topology.QueueType
}

// NewBucket returns the bucket strategy for a configuration. It applies WithDefaults and returns Validate's error.
func NewBucket(c BucketConfig) (*Bucket, error) {
	c = c.WithDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	l, err := newLayout(c.Layout, c.Radices, c.Resolution)
	if err != nil {
		return nil, err
	}
	b := &Bucket{base: c.Prefix + ".bucket" + variant(l.tag, LayoutClock, c.QueueType), queueType: c.QueueType}
	b.positional = newPositional(positional{
		strategy: "bucket", prefix: c.Prefix, deliver: topology.DeliveryExchange(c.Prefix), layout: l, keyTag: l.tag + ".",
	}, func(i int, v int64) string { return b.base + "." + durationName(l.ttl(i, v)) })
	if c.TopicPermissions {
		b.through = b.base
	}
	return b, nil
}

// Name returns "bucket".
func (b *Bucket) Name() string { return b.strategy }

// Prefix returns the start of the names of all broker objects.
func (b *Bucket) Prefix() string { return b.prefix }

// MaxDelay returns the longest delay, which has every digit at its largest value.
func (b *Bucket) MaxDelay() time.Duration { return b.layout.longest() }

// Resolution returns the step to which delays are rounded up.
func (b *Bucket) Resolution() time.Duration { return b.layout.resolution }

// Bindings returns the binding of the destination's target queue to the delivery exchange. Its key matches the exact
// number of digits. If the key had "#" in place of the digits, a message for "a.b" would also reach "b". Bindings does
// not check the destination; Route does.
func (b *Bucket) Bindings(dest topology.Destination) []topology.Binding {
	return b.bindings(dest)
}

// Route returns the exchange and the routing key for delay, rounded up to the resolution. With a tolerance it picks the
// delay between delay and delay+tolerance that needs the fewest hops.
//
// It returns a *topology.DelayError for a negative delay or tolerance and for a delay over MaxDelay, a
// *topology.DestinationError for an invalid destination or one that belongs to a strategy, and a *topology.KeyError for
// a destination whose name is too long for a routing key. Errors about the destination do not depend on the delay.
func (b *Bucket) Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error) {
	return b.route(dest, delay, tolerance)
}

// Topology returns the delivery exchange, a queue with its entry exchange for each value of each digit, and an exchange
// for each position except the highest.
//
// A message enters the queue of its highest non-zero digit. From there it is dead-lettered to the exchange of the next
// lower position, which routes it to the queue of the next non-zero digit, or to the delivery exchange if all remaining
// digits are 0. Each exchange has bindings for all positions below it, so that zeros are skipped. Without these
// bindings a message would pass through one exchange for each 0. That costs the broker as much as routing the message
// to a queue, and round delays consist mostly of zeros.
//
// The position exchanges have an alternate exchange that routes to the parked queue. A missing queue therefore never
// blocks the at-least-once queue above it.
func (b *Bucket) Topology() topology.Topology {
	t := topology.DeliveryTopology(b.prefix)
	l := &b.layout
	top := len(l.radices) - 1
	for i := top; i >= 0; i-- {
		next := b.deliver
		if i > 0 {
			next = b.level(i - 1)
		}
		for v := int64(1); v < l.radices[i]; v++ {
			addQueue(&t, delayQueue(b.names[i][v], l.ttl(i, v), next, b.queueType), b.through)
		}
	}
	if b.through != "" {
		t.Exchanges = append(t.Exchanges, topology.Exchange{Name: b.through, Kind: "topic"})
		b.bindDigits(&t, b.through, l.tag, top)
	}
	for i := top - 1; i >= 0; i-- { // no queue dead-letters into the highest position
		t.Exchanges = append(t.Exchanges, topology.Exchange{
			Name: b.level(i), Kind: "topic", AlternateExchange: topology.ParkedQueue(b.prefix),
		})
		above := l.tag + strings.Repeat(".*", top-i)
		b.bindDigits(&t, b.level(i), above, i)
		t.Bindings = append(t.Bindings, topology.Binding{
			Exchange: b.level(i), ToExchange: b.deliver, RoutingKey: above + strings.Repeat(".0", i+1) + ".#",
		})
	}
	return t
}

// bindDigits binds the queues of position i and of all lower positions to an exchange. The binding of a queue matches
// its own digit, preceded by zeros at the positions between i and its own.
func (b *Bucket) bindDigits(t *topology.Topology, exchange, above string, i int) {
	l := &b.layout
	for ; i >= 0; i-- {
		for v := int64(1); v < l.radices[i]; v++ {
			t.Bindings = append(t.Bindings, topology.Binding{
				Exchange: exchange, Queue: b.names[i][v], RoutingKey: above + "." + strconv.FormatInt(v, 10) + ".#",
			})
		}
		above += ".0"
	}
}

// level returns the name of the exchange at position i for messages from a higher position.
func (b *Bucket) level(i int) string { return b.base + ".level-" + strconv.Itoa(i) }
