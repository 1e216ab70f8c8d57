package dlx

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// TTLConfig configures the ttl strategy.
type TTLConfig struct {
	// Prefix is the start of the names of all broker objects. Default "delay".
	Prefix string
	// Delays lists the supported delays: 1 to 1000 different values in whole milliseconds from 1ms to ten years. The
	// delay 0 is always supported and need not be listed.
	Delays []time.Duration
	// RoundUp replaces a delay that is not declared with the next longer declared delay. By default, such a delay is an
	// error unless the message's tolerance covers the next longer one.
	RoundUp bool
	// QueueType is the type of the delay queues. Default topology.Quorum; see BucketConfig.QueueType.
	QueueType topology.QueueType
	// TopicPermissions has the same meaning as BucketConfig.TopicPermissions.
	TopicPermissions bool
}

// withDefaults returns the configuration with defaults for unset fields. Delays has no default.
func (c TTLConfig) withDefaults() TTLConfig {
	c.Prefix = cmp.Or(c.Prefix, topology.DefaultPrefix)
	c.QueueType = cmp.Or(c.QueueType, topology.Quorum)
	return c
}

// Validate applies the defaults and checks the configuration. It reports every invalid field as a *topology.FieldError
// in the joined error.
func (c TTLConfig) Validate() error {
	c = c.withDefaults()
	errs := []error{checkNames("ttl", c.Prefix, c.QueueType)}
	bad := func(field string, value any, want string) {
		errs = append(errs, &topology.FieldError{Of: "ttl", Field: field, Value: value, Want: want})
	}
	if len(c.Delays) == 0 || len(c.Delays) > maxQueues {
		bad("Delays", fmt.Sprintf("%d delays", len(c.Delays)), fmt.Sprintf("1 to %d delays", maxQueues))
	}
	seen := make(map[time.Duration]bool, len(c.Delays))
	for i, d := range c.Delays {
		field := fmt.Sprintf("Delays[%d]", i)
		if d < time.Millisecond || d > topology.MaxTTL || d%time.Millisecond != 0 {
			bad(field, d, "whole milliseconds from 1ms to "+topology.FormatDuration(topology.MaxTTL))
		}
		if seen[d] {
			bad(field, d, "declared once")
		}
		seen[d] = true
	}
	return errors.Join(errs...)
}

// TTL is a strategy that delays by one of the declared durations, each of which has a queue. It implements
// amqpx.Strategy and is safe for concurrent use. The zero value is not usable; use NewTTL.
type TTL struct {
	prefix    string
	base      string
	deliver   string
	delays    []time.Duration // ascending
	names     []string        // durationName of each delay, in the same order
	queues    []string        // queue of each delay, in the same order
	through   string          // the exchange in front of all queues; empty if each has an entry exchange
	roundUp   bool
	queueType topology.QueueType
	overhead  int
}

const ttlTag = "ttl"

// NewTTL returns the ttl strategy for a configuration. It applies the defaults and returns Validate's error.
func NewTTL(c TTLConfig) (*TTL, error) {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	t := &TTL{
		prefix:    c.Prefix,
		base:      c.Prefix + ".ttl" + variant(ttlTag, ttlTag, c.QueueType),
		deliver:   topology.DeliveryExchange(c.Prefix),
		delays:    slices.Sorted(slices.Values(c.Delays)),
		roundUp:   c.RoundUp,
		queueType: c.QueueType,
	}
	if c.TopicPermissions {
		t.through = t.base
	}
	longest := len(durationName(0))
	for _, d := range t.delays {
		name := durationName(d)
		t.names = append(t.names, name)
		t.queues = append(t.queues, t.base+"."+name)
		longest = max(longest, len(name))
	}
	t.overhead = len(ttlTag) + 1 + longest + 1
	return t, nil
}

// Name returns "ttl".
func (t *TTL) Name() string { return "ttl" }

// Prefix returns the start of the names of all broker objects.
func (t *TTL) Prefix() string { return t.prefix }

// MaxDelay returns the longest declared delay.
func (t *TTL) MaxDelay() time.Duration { return t.delays[len(t.delays)-1] }

// Declares reports whether delay is exactly one of the declared delays.
func (t *TTL) Declares(delay time.Duration) bool {
	_, ok := slices.BinarySearch(t.delays, delay)
	return ok
}

// Topology returns the delivery exchange, and a queue with its entry exchange for each declared delay.
func (t *TTL) Topology() topology.Topology {
	top := topology.DeliveryTopology(t.prefix)
	if t.through != "" {
		top.Exchanges = append(top.Exchanges, topology.Exchange{Name: t.through, Kind: "topic"})
	}
	for i, d := range t.delays {
		addQueue(&top, delayQueue(t.queues[i], d, t.deliver, t.queueType), t.through)
		if t.through != "" {
			top.Bindings = append(top.Bindings, topology.Binding{
				Exchange: t.through, Queue: t.queues[i], RoutingKey: ttlTag + "." + t.names[i] + ".#",
			})
		}
	}
	return top
}

// Bindings returns the binding of the destination's target queue to the delivery exchange. Bindings does not check the
// destination; Route does.
func (t *TTL) Bindings(dest topology.Destination) []topology.Binding {
	return []topology.Binding{{
		Exchange: t.deliver, Queue: dest.TargetQueue(t.prefix), RoutingKey: ttlTag + ".*." + dest.Key(t.prefix),
	}}
}

// Route returns the exchange and the routing key for delay, which must be 0 or a declared delay. With a tolerance or
// RoundUp, it uses the next longer declared delay for a delay that is not declared.
//
// It returns a *topology.DelayError, which lists the declared delays, for any other delay, a *topology.DestinationError
// for an invalid destination or one that belongs to a strategy, and a *topology.KeyError for a destination whose name
// is too long for a routing key. Errors about the destination do not depend on the delay.
func (t *TTL) Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error) {
	key, err := destinationKey(t.Name(), dest, t.prefix, t.overhead)
	if err != nil {
		return topology.Route{}, err
	}
	if delay < 0 || tolerance < 0 {
		return topology.Route{}, negative(t.Name(), delay, tolerance, t.MaxDelay())
	}
	if delay == 0 {
		return topology.Route{
			Exchange: t.deliver, RoutingKey: ttlTag + "." + durationName(0) + "." + key, Mandatory: true,
		}, nil
	}
	i, exact := slices.BinarySearch(t.delays, delay)
	if !exact {
		end := delay + tolerance
		if end < delay || t.roundUp {
			end = math.MaxInt64
		}
		if i == len(t.delays) || t.delays[i] > end {
			return topology.Route{}, t.undeclared(delay, i)
		}
	}
	return topology.Route{
		Exchange: cmp.Or(t.through, t.queues[i]), Queue: t.queues[i], RoutingKey: ttlTag + "." + t.names[i] + "." + key,
		Delay: t.delays[i], Hops: 1, Mandatory: true,
	}, nil
}

// undeclared returns the error for a delay that is not declared. The index i is where it would be inserted into the
// declared delays.
func (t *TTL) undeclared(delay time.Duration, i int) error {
	e := &topology.DelayError{
		Strategy: t.Name(), Delay: delay, Min: t.delays[0], Max: t.MaxDelay(),
		Declared: slices.Clone(t.delays),
		Reason:   "is not declared",
		Hint:     "declare the delay, enable round_up, set a tolerance, or use the bucket strategy",
	}
	if i == len(t.delays) {
		e.Reason = "exceeds all declared delays"
		e.Hint = "declare the delay, or use the bucket strategy"
	}
	return e
}
