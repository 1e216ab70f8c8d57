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
	// Prefix begins the names of all broker objects. Default "delay".
	Prefix string
	// Delays are the delays that can be used: whole milliseconds from 1ms to
	// ten years, each once, at most 1000. A delay of 0 needs none.
	Delays []time.Duration
	// RoundUp replaces a delay that is not declared by the next longer one that is.
	// Otherwise such a delay is an error.
	RoundUp bool
	// QueueType is the type of the delay queues. Default topology.Quorum; see
	// BucketConfig.QueueType.
	QueueType topology.QueueType
	// TopicPermissions: see BucketConfig.TopicPermissions.
	TopicPermissions bool
}

// WithDefaults fills in what is not set. There is no default for Delays.
func (c TTLConfig) WithDefaults() TTLConfig {
	c.Prefix = cmp.Or(c.Prefix, topology.DefaultPrefix)
	c.QueueType = cmp.Or(c.QueueType, topology.Quorum)
	return c
}

// Validate checks the configuration after WithDefaults. It finds every wrong
// field; each is a *topology.FieldError in the joined error.
func (c TTLConfig) Validate() error {
	c = c.WithDefaults()
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

// TTL delays by one of the declared durations, each of which has a queue. It
// implements amqpx.Strategy and is safe for concurrent use.
type TTL struct {
	prefix    string
	base      string
	deliver   string
	delays    []time.Duration // ascending
	names     []string        // of delays
	queues    []string        // of delays
	through   string          // exchange before all queues; empty where each has one of its name
	roundUp   bool
	queueType topology.QueueType
	overhead  int
}

const ttlTag = "ttl"

// NewTTL makes the ttl strategy from a configuration, after WithDefaults and
// Validate.
func NewTTL(c TTLConfig) (*TTL, error) {
	c = c.WithDefaults()
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

// Name is "ttl".
func (t *TTL) Name() string { return "ttl" }

// Prefix begins the names of all broker objects.
func (t *TTL) Prefix() string { return t.prefix }

// MaxDelay returns the longest declared delay.
func (t *TTL) MaxDelay() time.Duration { return t.delays[len(t.delays)-1] }

// Declares reports whether a delay is one of the declared ones, exactly.
func (t *TTL) Declares(delay time.Duration) bool {
	_, ok := slices.BinarySearch(t.delays, delay)
	return ok
}

// Topology is the delivery exchange, and for each declared delay a queue with
// its entry exchange.
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

// Bindings connect the delivery exchange with the destination's target queue.
// Route checks whether the destination is possible at all.
func (t *TTL) Bindings(dest topology.Destination) []topology.Binding {
	return []topology.Binding{{
		Exchange: t.deliver, Queue: dest.TargetQueue(t.prefix), RoutingKey: ttlTag + ".*." + dest.Key(t.prefix),
	}}
}

// Route returns the exchange and the routing key that carry a message for exactly
// delay, which must be 0 or declared; with a tolerance, or with RoundUp, for the
// next longer declared one.
//
// Errors (those about the destination do not depend on the delay):
// *topology.DelayError, which lists the declared delays, for any other one;
// *topology.DestinationError for an invalid destination or one that belongs to
// a strategy; *topology.KeyError for a destination whose name is too long for a
// routing key.
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

// undeclared explains a delay whose place among the declared ones is i.
func (t *TTL) undeclared(delay time.Duration, i int) error {
	e := &topology.DelayError{
		Strategy: t.Name(), Delay: delay, Min: t.delays[0], Max: t.MaxDelay(),
		Declared: slices.Clone(t.delays),
		Reason:   "is not declared",
		Hint:     "declare it, round up, give a tolerance, or use the bucket strategy",
	}
	if i == len(t.delays) {
		e.Reason = "is longer than every declared delay"
		e.Hint = "declare it, or use the bucket strategy"
	}
	return e
}
