package dlx_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// strategy is amqpx.Strategy, which this package must satisfy without importing it.
type strategy interface {
	Name() string
	Topology() topology.Topology
	Bindings(dest topology.Destination) []topology.Binding
	Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error)
	MaxDelay() time.Duration
}

var (
	_ strategy = (*dlx.Bucket)(nil)
	_ strategy = (*dlx.TTL)(nil)
)

// failer is *testing.T, *testing.F or *rapid.T.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// destinations are chosen so that a wrong binding would give the message of one
// to another: names that are tails of others, wildcards, digits, dots in odd
// places, names that look like routing keys of the strategies themselves.
func destinations() []topology.Destination {
	dests := make([]topology.Destination, 0, 80)
	for _, q := range []string{
		"a", "b", "a.b", "b.a", "a.a", "a.b.c", "0.a", "0.0.a", "1.b", "0", "1", "0.0.0.0.0.0", "a.0",
		"*", "#", "*.a", "#.a", "a.*", "a.#", "x.#", "*.*", "*.*.*.*.*.*.a", "a*b", "a#", "**", "##",
		"%2A", "%23", "%", "x.%2A", "%252A", "100%",
		".", "..", ".a", "a.", "a..b", "..a",
		"clock", "clock.0.0.0.0.0.0.a", "clock.0.0.0.1.0.0.a", "hex.1.a", "ttl", "ttl.1m.a", "ttl.0s.a",
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

// sink is the queue behind an exchange destination.
func sink(d topology.Destination) string {
	if d.Exchange == "" {
		return d.RoutingKey
	}
	return "sink of " + d.Exchange
}

// world is a broker with the strategies and the destinations, all bound.
func world(t failer, dests []topology.Destination, strategies ...strategy) *broker {
	t.Helper()
	b := newBroker()
	add := func(what string, top topology.Topology) {
		if err := b.Add(top); err != nil {
			t.Fatalf("declaring %s: %v", what, err)
		}
	}
	for _, s := range strategies {
		add("the "+s.Name()+" strategy", s.Topology())
	}
	for _, d := range dests {
		if d.ToExchange() {
			continue
		}
		add("a destination queue", topology.Topology{Queues: []topology.Queue{{Name: d.Queue}}})
	}
	for _, d := range dests {
		if d.ToExchange() {
			add("an exchange destination", exchangeDestination(d))
		}
		for _, s := range strategies {
			if _, err := s.Route(d, 0, 0); err == nil { // the others have names too long for it
				add("bindings", topology.Topology{Bindings: s.Bindings(d)})
			}
		}
	}
	return b
}

// exchangeDestination is a destination's exchange, of a type that its name
// tells, with a queue behind it, and its route queue.
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

// arrive publishes a route and proves that the message ends at its destination
// and nowhere else, after the delay that the route says, by as many different
// queues as it says.
func arrive(t failer, b *broker, d topology.Destination, r topology.Route) {
	t.Helper()
	rests, routed, err := b.Publish(r.Exchange, r.RoutingKey)
	if err != nil {
		t.Fatalf("%+v: %v", r, err)
	}
	if !routed || len(rests) != 1 {
		t.Fatalf("%+v for %+v reached %d places: %+v", r, d, len(rests), rests)
	}
	got, wantQueue, wantKey, hops := rests[0], d.Queue, r.RoutingKey, r.Hops
	if d.ToExchange() {
		wantQueue, wantKey = sink(d), d.RoutingKey
		hops++ // the route queue, which holds nothing
	}
	if got.Queue != wantQueue || got.RoutingKey != wantKey {
		t.Fatalf("%+v for %+v reached queue %q with key %q, want %q with %q", r, d, got.Queue, got.RoutingKey, wantQueue, wantKey)
	}
	if got.After != r.Delay {
		t.Fatalf("%+v took %v by %v", r, got.After, got.Visited)
	}
	if len(got.Visited) != hops {
		t.Fatalf("%+v took %d hops: %v", r, len(got.Visited), got.Visited)
	}
	seen := map[string]bool{}
	for _, q := range got.Visited {
		if seen[q] {
			t.Fatalf("%+v visited %s twice: %v", r, q, got.Visited)
		}
		seen[q] = true
	}
}

// inBounds proves that a route's delay is what the interface promises.
func inBounds(t failer, r topology.Route, delay, tolerance, resolution time.Duration) {
	t.Helper()
	if r.Delay < delay || r.Delay-delay >= resolution && r.Delay-delay > tolerance {
		t.Fatalf("delay %v with tolerance %v became %v at resolution %v", delay, tolerance, r.Delay, resolution)
	}
}

func newBucket(t failer, c dlx.BucketConfig) *dlx.Bucket {
	t.Helper()
	b, err := dlx.NewBucket(c)
	if err != nil {
		t.Fatalf("%+v: %v", c, err)
	}
	return b
}

func newTTL(t failer, c dlx.TTLConfig) *dlx.TTL {
	t.Helper()
	s, err := dlx.NewTTL(c)
	if err != nil {
		t.Fatalf("%+v: %v", c, err)
	}
	return s
}

// radices are what Bucket documents of its layouts, written down once more.
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
		panic(fmt.Sprintf("no radices written down for %+v", c))
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
			dlx.BucketConfig{Layout: dlx.LayoutClock, Resolution: 10 * time.Millisecond, QueueType: qt},
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
			dlx.BucketConfig{Radices: []int{10, 60, 60, 24, 32, 12}, QueueType: qt}, // the clock's own
		)
	}
	return all
}
