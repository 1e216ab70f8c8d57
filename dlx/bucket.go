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
	// Prefix begins the names of all broker objects. Default "delay".
	Prefix string
	// Layout is "clock" (the default), "hex" or "binary". With explicit Radices
	// it is empty.
	Layout string
	// Radices is an explicit layout, the lowest position first: 1 to 28 numbers
	// from 2 to 1000. A position of radix r needs r-1 queues; there may be at
	// most 1000 in all, and none with a TTL over ten years.
	Radices []int
	// Resolution is the smallest step of a delay: whole milliseconds from 10ms
	// to 1h. With the clock it divides the next larger one of 1s, 1m and 1h.
	// Default 10ms for clock, 100ms for hex and Radices, 1s for binary. A delay is
	// rounded up to it, so that messages at arbitrary instants are late by up to
	// one step. A finer one costs the broker processor time and queues: the clock
	// has 283 with 10ms and 193 with 100ms. Set 100ms for more than about 2,000
	// messages a second on two cores, or where 283 queues are too many.
	Resolution time.Duration
	// QueueType is the type of the delay queues. Default topology.Quorum, which
	// dead-letters at least once (RabbitMQ 3.10 or later). Classic queues are
	// faster, and can lose messages when a broker dies between two hops.
	QueueType topology.QueueType
	// TopicPermissions has messages enter through one topic exchange, where
	// the broker holds each routing key against the user's topic permissions.
	// Without it they enter through a fanout exchange per queue, which is
	// faster and needs only the right to write to it.
	TopicPermissions bool
}

// WithDefaults fills in what is not set.
func (c BucketConfig) WithDefaults() BucketConfig {
	c.Prefix = cmp.Or(c.Prefix, topology.DefaultPrefix)
	if c.Layout == "" && len(c.Radices) == 0 {
		c.Layout = LayoutClock
	}
	c.Resolution = cmp.Or(c.Resolution, defaultResolution(c.Layout))
	c.QueueType = cmp.Or(c.QueueType, topology.Quorum)
	return c
}

// Validate checks the configuration after WithDefaults. It finds every wrong
// field; each is a *topology.FieldError in the joined error.
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

// Bucket delays by any duration: it writes the delay as digits, and each value
// of each digit is a queue of constant TTL. It implements amqpx.Strategy and is
// safe for concurrent use.
type Bucket struct {
	positional
	base      string // of the names of exchanges and queues
	queueType topology.QueueType
}

// NewBucket makes the bucket strategy from a configuration, after WithDefaults
// and Validate.
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

// Name is "bucket".
func (b *Bucket) Name() string { return b.strategy }

// Prefix begins the names of all broker objects.
func (b *Bucket) Prefix() string { return b.prefix }

// MaxDelay returns the longest delay: all digits at their largest.
func (b *Bucket) MaxDelay() time.Duration { return b.layout.longest() }

// Resolution returns the step to which delays are rounded up.
func (b *Bucket) Resolution() time.Duration { return b.layout.resolution }

// Bindings connect the delivery exchange with the destination's target queue.
// They match the exact number of digits; with "#" a message for "a.b" would
// reach "b" too. Bindings does not check the destination; Route does.
func (b *Bucket) Bindings(dest topology.Destination) []topology.Binding {
	return b.bindings(dest)
}

// Route returns the exchange and the routing key for delay, rounded up to the
// resolution. With a tolerance it returns the delay up to delay+tolerance that
// needs the fewest hops.
//
// Errors (those about the destination do not depend on the delay):
// *topology.DelayError for a negative delay or tolerance and for one over
// MaxDelay; *topology.DestinationError for an invalid destination or one that
// belongs to a strategy; *topology.KeyError for a destination whose name is too
// long for a routing key.
func (b *Bucket) Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error) {
	return b.route(dest, delay, tolerance)
}

// Topology is the delivery exchange, a queue with its entry exchange for each
// value of each digit, and an exchange for each position except the highest.
//
// A message enters the queue of its highest digit that is not 0. From there on it
// is dead-lettered to the exchange of the next lower position, which puts it into
// the queue of the next digit that is not 0, or hands it to the delivery exchange
// when there is none. Each exchange knows all positions below it: to pass a
// message on from exchange to exchange, one for each 0, would cost the broker as
// much again as routing it to its queue, and round delays are mostly zeros.
//
// The exchanges of the positions have the parked queue as their alternate, so
// that a missing queue never blocks the at-least-once queue above it.
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
	for i := top - 1; i >= 0; i-- { // nothing is dead-lettered into the highest position
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

// bindDigits binds the queues of the positions from i down to an exchange, each
// by the digit of its own after zeros.
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

// level is the exchange for messages that come from a higher position.
func (b *Bucket) level(i int) string { return b.base + ".level-" + strconv.Itoa(i) }
