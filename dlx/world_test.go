package dlx_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// strategy is a copy of amqpx.Strategy, which this package must implement without importing it.
type strategy interface {
	Name() string
	Topology() topology.Topology
	Bindings(dest topology.Destination) []topology.Binding
	Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error)
	MaxDelay() time.Duration
}

// stepped is a strategy that supports any delay, rounded up to its resolution.
type stepped interface {
	strategy
	Resolution() time.Duration
}

var (
	_ stepped  = (*dlx.Bucket)(nil)
	_ stepped  = (*dlx.Levels)(nil)
	_ strategy = (*dlx.TTL)(nil)
	_ strategy = (*dlx.Native)(nil)
)

// failer is the part of *testing.T, *testing.F and *rapid.T that these tests need.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// destinations returns destinations for which a wrong binding would probably deliver a message to the wrong queue:
// names that are suffixes of other names, wildcards, digits, dots in unusual places, and names that look like routing
// keys of the strategies.
func destinations() []topology.Destination {
	dests := make([]topology.Destination, 0, 80)
	for _, q := range []string{
		"a", "b", "a.b", "b.a", "a.a", "a.b.c", "0.a", "0.0.a", "1.b", "0", "1", "0.0.0.0.0.0", "a.0",
		"*", "#", "*.a", "#.a", "a.*", "a.#", "x.#", "*.*", "*.*.*.*.*.*.a", "a*b", "a#", "**", "##",
		"%2A", "%23", "%", "x.%2A", "%252A", "100%",
		".", "..", ".a", "a.", "a..b", "..a",
		"clock", "clock.0.0.0.0.0.0.a", "clock.0.0.0.1.0.0.a", "hex.1.a", "ttl", "ttl.1m.a", "ttl.0s.a", "native.1.a", "native.0.a",
		"delay", "delays.bucket", "delay.buckets.30m", "delay-bucket", "orders.expire", "заказы.истекли", "a b",
		strings.Repeat("l", 190), strings.Repeat("l", 189) + ".", "long." + strings.Repeat("l.", 90) + "l",
	} {
		dests = append(dests, topology.Destination{Queue: q})
	}
	for _, exchange := range []string{"ex.direct", "ex.topic", "ex.fanout", "ex.headers", "ex", "ex:a", "ex%3Aa", "amq.topic", "*", "a"} {
		for _, key := range []string{"", "a", "b", "a.b", "*", "#", "a:b", ":a", strings.Repeat("k", 250)} {
			dests = append(dests, topology.Destination{Exchange: exchange, RoutingKey: key})
		}
	}
	return append(dests, topology.Destination{RoutingKey: "a"}, topology.Destination{RoutingKey: "x.#"}) // the default exchange
}

// sink returns the queue behind an exchange destination.
func sink(d topology.Destination) string {
	if d.Exchange == "" {
		return d.RoutingKey
	}
	return "sink of " + d.Exchange
}

// world returns all objects that the strategies and the destinations need on a broker.
func world(t failer, dests []topology.Destination, strategies ...strategy) topology.Topology {
	t.Helper()
	var parts []topology.Topology
	for _, s := range strategies {
		parts = append(parts, s.Topology())
	}
	for _, d := range dests {
		if d.ToExchange() {
			parts = append(parts, exchangeDestination(d))
		} else {
			parts = append(parts, topology.Topology{Queues: []topology.Queue{{Name: d.Queue}}})
		}
		for _, s := range strategies {
			if _, err := s.Route(d, 0, 0); err == nil { // the names of the other destinations are too long for this strategy
				parts = append(parts, topology.Topology{Bindings: s.Bindings(d)})
			}
		}
	}
	all, err := topology.Topology{}.Merge(parts...)
	if err != nil {
		t.Fatalf("merging the topologies: got %v, want no error", err)
	}
	return all
}

// exchangeDestination returns the objects for a destination with an exchange: the exchange, whose type follows from its
// name, a queue that is bound to it, and the route queue.
func exchangeDestination(d topology.Destination) topology.Topology {
	top := topology.Topology{Queues: []topology.Queue{d.RouteQueue(topology.DefaultPrefix)}}
	if d.Exchange == "" {
		top.Queues = append(top.Queues, topology.Queue{Name: d.RoutingKey})
		return top
	}
	kind, key := "direct", d.RoutingKey
	switch d.Exchange {
	case "ex.topic", "amq.topic":
		kind, key = "topic", "#"
	case "ex.fanout":
		kind, key = "fanout", ""
	case "ex.headers":
		kind, key = "headers", ""
	}
	top.Exchanges = []topology.Exchange{{Name: d.Exchange, Kind: kind}}
	top.Queues = append(top.Queues, topology.Queue{Name: sink(d)})
	top.Bindings = []topology.Binding{{Exchange: d.Exchange, Queue: sink(d), RoutingKey: key}}
	return top
}

// journey is a message on its way to a destination.
type journey struct {
	topology.Route

	To topology.Destination
}

// arrive checks that each message reaches its destination and no other queue, after its route's delay and through its
// route's number of different queues. It returns where the messages arrived.
func arrive(t *testing.T, top topology.Topology, all ...journey) ([]rest, error) {
	t.Helper()
	routes := make([]topology.Route, len(all))
	for i, j := range all {
		routes[i] = j.Route
	}
	rests := make([]rest, len(all))
	return rests, onBroker(t, top, func(b *broker) error {
		outcomes, err := b.carry(routes...)
		if err != nil {
			return err
		}
		for i, o := range outcomes {
			if o.Returned {
				return fmt.Errorf("%+v: the message was returned, want it to arrive", all[i])
			}
			rests[i] = o.Rests[0]
			if err := all[i].check(rests[i]); err != nil {
				return fmt.Errorf("%+v: %w", all[i], err)
			}
		}
		return nil
	})
}

func (j journey) check(got rest) error {
	queue, key, hops := j.To.Queue, j.RoutingKey, j.Hops
	if j.To.ToExchange() {
		queue, key = sink(j.To), j.To.RoutingKey
		hops++ // the route queue, which does not delay
	}
	different := len(slices.Compact(slices.Sorted(slices.Values(got.Visited))))
	switch {
	case got.Queue != queue || got.RoutingKey != key:
		return fmt.Errorf("the message reached queue %q with key %q, want %q with %q", got.Queue, got.RoutingKey, queue, key)
	case got.After != j.Delay:
		return fmt.Errorf("the message arrived after %v through %v, want after %v", got.After, got.Visited, j.Delay)
	case len(got.Visited) != hops || different != hops:
		return fmt.Errorf("the message passed through the queues %v, want %d different ones", got.Visited, hops)
	}
	return nil
}

// inBounds checks that a route's delay is within the bounds that the Strategy interface promises.
func inBounds(t failer, r topology.Route, delay, tolerance, resolution time.Duration) {
	t.Helper()
	if r.Delay < delay || r.Delay-delay >= resolution && r.Delay-delay > tolerance {
		t.Fatalf("a delay of %v with tolerance %v and resolution %v: got a route with the delay %v, want it not shorter, and longer by less than the resolution or at most the tolerance",
			delay, tolerance, resolution, r.Delay)
	}
}

func newBucket(t failer, c dlx.BucketConfig) *dlx.Bucket {
	t.Helper()
	b, err := dlx.NewBucket(c)
	if err != nil {
		t.Fatalf("NewBucket with %+v: got %v, want a strategy", c, err)
	}
	return b
}

func newTTL(t failer, c dlx.TTLConfig) *dlx.TTL {
	t.Helper()
	s, err := dlx.NewTTL(c)
	if err != nil {
		t.Fatalf("NewTTL with %+v: got %v, want a strategy", c, err)
	}
	return s
}

func newNative(t failer, c dlx.NativeConfig) *dlx.Native {
	t.Helper()
	s, err := dlx.NewNative(c)
	if err != nil {
		t.Fatalf("NewNative with %+v: got %v, want a strategy", c, err)
	}
	return s
}

// radices returns the radices that Bucket documents for its layouts, independently of the code.
func radices(c dlx.BucketConfig) []int {
	if len(c.Radices) > 0 {
		return c.Radices
	}
	known := map[string][]int{
		"clock 10ms":   {100, 60, 60, 24, 32, 12},
		"clock 100ms":  {10, 60, 60, 24, 32, 12},
		"clock 1s":     {60, 60, 24, 32, 12},
		"clock 5s":     {12, 60, 24, 32, 12},
		"clock 1m0s":   {60, 24, 32, 12},
		"hex 10ms":     {16, 16, 16, 16, 16, 16, 16, 12},
		"hex 100ms":    {16, 16, 16, 16, 16, 16, 16, 2},
		"hex 1s":       {16, 16, 16, 16, 16, 16, 2},
		"binary 1s":    {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2},
		"binary 100ms": {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2},
	}
	c = c.WithDefaults()
	rs, ok := known[fmt.Sprintf("%s %v", c.Layout, c.Resolution)]
	if !ok {
		panic(fmt.Sprintf("radices has no entry for %+v", c))
	}
	return rs
}

// nonZero counts the digits of n that are not 0.
func nonZero(rs []int, n int64) int {
	count := 0
	for _, r := range rs {
		if n%int64(r) != 0 {
			count++
		}
		n /= int64(r)
	}
	return count
}

func configs() []dlx.BucketConfig {
	var all []dlx.BucketConfig
	for _, qt := range []topology.QueueType{topology.Quorum, topology.Classic} {
		all = append(all,
			dlx.BucketConfig{QueueType: qt},
			dlx.BucketConfig{QueueType: qt, TopicPermissions: true},
			dlx.BucketConfig{Layout: dlx.LayoutClock, Resolution: 100 * time.Millisecond, QueueType: qt},
			dlx.BucketConfig{Layout: dlx.LayoutClock, Resolution: time.Second, QueueType: qt},
			dlx.BucketConfig{Layout: dlx.LayoutClock, Resolution: 5 * time.Second, QueueType: qt},
			dlx.BucketConfig{Layout: dlx.LayoutClock, Resolution: time.Minute, QueueType: qt},
			dlx.BucketConfig{Layout: dlx.LayoutHex, QueueType: qt},
			dlx.BucketConfig{Layout: dlx.LayoutHex, Resolution: 10 * time.Millisecond, QueueType: qt},
			dlx.BucketConfig{Layout: dlx.LayoutHex, Resolution: time.Second, QueueType: qt},
			dlx.BucketConfig{Layout: dlx.LayoutBinary, QueueType: qt},
			dlx.BucketConfig{Layout: dlx.LayoutBinary, Resolution: 100 * time.Millisecond, QueueType: qt},
			dlx.BucketConfig{Radices: []int{60, 60, 24, 7}, Resolution: time.Second, QueueType: qt},
			dlx.BucketConfig{Radices: []int{3}, QueueType: qt},
			dlx.BucketConfig{Radices: []int{10, 60, 60, 24, 32, 12}, QueueType: qt}, // the radices of the clock layout of 100 ms
		)
	}
	return all
}
