package dlx

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
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
	if c.Prefix == "" {
		c.Prefix = topology.DefaultPrefix
	}
	if c.Layout == "" && len(c.Radices) == 0 {
		c.Layout = LayoutClock
	}
	if c.Resolution == 0 {
		c.Resolution = defaultResolution(c.Layout)
	}
	if c.QueueType == "" {
		c.QueueType = topology.Quorum
	}
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

// checkNames checks what the configurations have in common.
func checkNames(of, prefix string, qt topology.QueueType) error {
	var errs []error
	if err := topology.CheckPrefix(prefix); err != nil {
		if f, ok := errors.AsType[*topology.FieldError](err); ok {
			f.Of = of
		}
		errs = append(errs, err)
	}
	if qt != topology.Quorum && qt != topology.Classic {
		errs = append(errs, &topology.FieldError{Of: of, Field: "QueueType", Value: string(qt), Want: "quorum or classic"})
	}
	return errors.Join(errs...)
}

// Bucket delays by any duration: it writes the delay as digits, and each value
// of each digit is a queue of constant TTL. It implements amqpx.Strategy and is
// safe for concurrent use.
type Bucket struct {
	prefix    string
	base      string // of the names of exchanges and queues
	deliver   string
	layout    layout
	queueType topology.QueueType
	checked   bool       // TopicPermissions
	names     [][]string // of queues, by position and digit; "" for the digit 0
	overhead  int        // bytes of a routing key that are not the destination's, at most
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
	b := &Bucket{
		prefix:    c.Prefix,
		base:      c.Prefix + ".bucket" + variant(l.tag, LayoutClock, c.QueueType),
		deliver:   topology.DeliveryExchange(c.Prefix),
		layout:    l,
		queueType: c.QueueType,
		checked:   c.TopicPermissions,
		overhead:  len(l.tag) + 1,
	}
	for i, r := range l.radices {
		names := make([]string, r)
		for v := int64(1); v < r; v++ {
			names[v] = b.base + "." + durationName(l.ttl(i, v))
		}
		b.names = append(b.names, names)
		b.overhead += len(strconv.FormatInt(r-1, 10)) + 1
	}
	return b, nil
}

// variant is what tells the objects of two configurations on one broker apart;
// it is empty for the default one. The queue type shows in it, the tag only
// where it is not the default.
func variant(tag, defaultTag string, qt topology.QueueType) string {
	switch {
	case tag == defaultTag && qt != topology.Classic:
		return ""
	case tag == defaultTag:
		return ".classic"
	case qt != topology.Classic:
		return "." + tag
	}
	return "." + tag + "-classic"
}

// Name is "bucket".
func (b *Bucket) Name() string { return "bucket" }

// Prefix begins the names of all broker objects.
func (b *Bucket) Prefix() string { return b.prefix }

// MaxDelay returns the longest delay: all digits at their largest.
func (b *Bucket) MaxDelay() time.Duration {
	return time.Duration(b.layout.max) * b.layout.resolution
}

// Resolution returns the step to which delays are rounded up.
func (b *Bucket) Resolution() time.Duration { return b.layout.resolution }

// Bindings connect the delivery exchange with the destination's target queue.
// They match the exact number of digits; with "#" a message for "a.b" would
// reach "b" too. Bindings does not check the destination; Route does.
func (b *Bucket) Bindings(dest topology.Destination) []topology.Binding {
	key := []byte(b.layout.tag)
	for range b.layout.radices {
		key = append(key, ".*"...)
	}
	key = append(key, '.')
	key = append(key, dest.Key(b.prefix)...)
	return []topology.Binding{{Exchange: b.deliver, Queue: dest.TargetQueue(b.prefix), RoutingKey: string(key)}}
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
	key, err := destinationKey(b.Name(), dest, b.prefix, b.overhead)
	if err != nil {
		return topology.Route{}, err
	}
	l := &b.layout
	if delay < 0 || tolerance < 0 {
		return topology.Route{}, negative(b.Name(), delay, tolerance, b.MaxDelay())
	}
	n, d, hops, ok := l.number(delay, tolerance)
	if !ok {
		return topology.Route{}, l.tooLong(b.Name(), delay)
	}
	exchange, queue := b.entry(&d)
	return topology.Route{
		Exchange:   exchange,
		Queue:      queue,
		RoutingKey: l.routingKey(&d, key),
		Delay:      time.Duration(n) * l.resolution,
		Hops:       hops,
		Mandatory:  true,
	}, nil
}

// entry is the queue of the highest digit that is not 0 and the exchange before
// it, or the delivery exchange and no queue when all are.
func (b *Bucket) entry(d *digits) (exchange, queue string) {
	for i, names := range slices.Backward(b.names) {
		switch {
		case d[i] == 0:
		case b.checked:
			return b.base, names[d[i]]
		default:
			return names[d[i]], names[d[i]]
		}
	}
	return b.deliver, ""
}

// routingKey is the tag, the digits from the highest to the lowest, and the
// destination, in one allocation.
func (l *layout) routingKey(d *digits, dest string) string {
	var buf [topology.MaxRoutingKey]byte
	k := append(buf[:0], l.tag...)
	for i := range slices.Backward(l.radices) {
		k = append(k, '.')
		k = strconv.AppendInt(k, d[i], 10)
	}
	k = append(k, '.')
	k = append(k, dest...)
	return string(k)
}

// tooLong refuses a delay that has more digits than the layout.
func (l *layout) tooLong(strategy string, delay time.Duration) error {
	return &topology.DelayError{
		Strategy: strategy, Delay: delay, Max: time.Duration(l.max) * l.resolution,
		Reason: "is longer than the layout " + l.tag + " reaches",
		Hint:   "keep the message in a durable schedule until it is nearer, or use a layout that reaches further",
	}
}

// destinationKey is the destination's part of a routing key.
func destinationKey(strategy string, dest topology.Destination, prefix string, overhead int) (string, error) {
	if err := dest.Validate(prefix); err != nil {
		return "", fmt.Errorf("%s strategy: %w", strategy, err)
	}
	key := dest.Key(prefix)
	if len(key)+overhead > topology.MaxRoutingKey {
		return "", &topology.KeyError{Strategy: strategy, Key: key, Overhead: overhead}
	}
	return key, nil
}

func negative(strategy string, delay, tolerance, maximum time.Duration) error {
	e := &topology.DelayError{Strategy: strategy, Delay: delay, Max: maximum, Reason: "is negative", Hint: "send without a delay"}
	if delay >= 0 {
		e.Reason = "has the negative tolerance " + topology.FormatDuration(tolerance)
		e.Hint = "a tolerance says how much later the message may be"
	}
	return e
}
