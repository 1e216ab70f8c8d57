package dlx_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestNativeConfigErrors(t *testing.T) {
	for _, c := range []struct {
		config dlx.NativeConfig
		fields string
	}{
		{dlx.NativeConfig{}, ""},
		{dlx.NativeConfig{Queues: 1}, ""},
		{dlx.NativeConfig{Queues: 64}, ""},
		{dlx.NativeConfig{Queues: 65}, "Queues"},
		{dlx.NativeConfig{Queues: -1, Prefix: "amq.x"}, "Prefix Queues"},
	} {
		s, err := dlx.NewNative(c.config)
		var got []string
		for _, e := range flatten(err) {
			var f *topology.FieldError
			if !errors.As(e, &f) || f.Of != "native" {
				t.Errorf(`NewNative(%+v): got %v, want a *topology.FieldError with Of = "native"`, c.config, e)
				continue
			}
			got = append(got, f.Field)
		}
		if strings.Join(got, " ") != c.fields || (s == nil) != (c.fields != "") {
			t.Errorf("NewNative(%+v): got the strategy %v and errors about the fields %v, want a strategy or errors about %q", c.config, s, got, c.fields)
		}
	}
}

func TestNativeRoute(t *testing.T) {
	one := newNative(t, dlx.NativeConfig{Queues: 1})
	checked := newNative(t, dlx.NativeConfig{Queues: 1, TopicPermissions: true})
	dest := topology.Destination{Queue: "orders.expire"}
	for _, c := range []struct {
		s                *dlx.Native
		delay, tolerance time.Duration
		exchange, queue  string // an empty exchange means that an error is expected
		key              string
		took             time.Duration
	}{
		{one, 0, 0, "delay.deliver", "", "native.0.orders.expire", 0},
		{one, 1, 0, "delay.native.1", "delay.native.1", "native.1.orders.expire", time.Millisecond},
		{one, time.Millisecond, time.Hour, "delay.native.1", "delay.native.1", "native.1.orders.expire", time.Millisecond},
		{one, time.Millisecond + 1, 0, "delay.native.1", "delay.native.1", "native.1.orders.expire", 2 * time.Millisecond},
		{one, topology.MaxTTL, 0, "delay.native.1", "delay.native.1", "native.1.orders.expire", topology.MaxTTL},
		{checked, time.Hour, 0, "delay.native", "delay.native.1", "native.1.orders.expire", time.Hour},
		{one, topology.MaxTTL + 1, 0, "", "", "", 0},
		{one, math.MaxInt64, math.MaxInt64, "", "", "", 0},
		{one, -1, 0, "", "", "", 0},
		{one, 1, -1, "", "", "", 0},
	} {
		r, err := c.s.Route(dest, c.delay, c.tolerance)
		if c.exchange == "" {
			var e *topology.DelayError
			if !errors.As(err, &e) || e.Delay != c.delay || e.Reason == "" || e.Hint == "" {
				t.Errorf("Route with the delay %v and the tolerance %v: got %+v, %v, want a *DelayError with a reason and a hint", c.delay, c.tolerance, r, err)
			}
			continue
		}
		if err != nil || r.Exchange != c.exchange || r.Queue != c.queue || r.RoutingKey != c.key || r.Delay != c.took || !r.Mandatory ||
			(r.InstantHeader == topology.HeaderInstant) != (c.took > 0) || (r.Hops == 1) != (c.took > 0) {
			t.Errorf("Route with the delay %v and the tolerance %v: got %+v, error %v, want %+v and no error", c.delay, c.tolerance, r, err, c)
		}
	}
}

// With any number of queues, and alongside another strategy, messages with any delay arrive only at their destination
// and when they are due. The same delay to the same destination always uses the same queue.
func TestNativeDelays(t *testing.T) {
	dests := destinations()
	rapid.Check(t, func(rt *rapid.T) {
		c := dlx.NativeConfig{Queues: rapid.IntRange(1, 64).Draw(rt, "queues"), TopicPermissions: rapid.Bool().Draw(rt, "checked")}
		s, again := newNative(rt, c), newNative(rt, c)
		picked := []topology.Destination{rapid.SampledFrom(dests).Draw(rt, "one"), rapid.SampledFrom(dests).Draw(rt, "two"), {Queue: "a"}}
		var all []journey
		for range 10 {
			bits := rapid.IntRange(0, 58).Draw(rt, "bits")
			delay := min(time.Duration(rapid.Int64Range(0, 1<<bits).Draw(rt, "delay")), s.MaxDelay())
			dest := rapid.SampledFrom(picked).Draw(rt, "destination")
			tolerance := drawTolerance(rt)
			r, err := s.Route(dest, delay, tolerance)
			if errors.Is(err, topology.ErrDestination) {
				continue
			}
			other, _ := again.Route(dest, delay, 0)
			if err != nil || other.Queue != r.Queue || other.RoutingKey != r.RoutingKey {
				rt.Fatalf("a delay of %v: got the route %+v, error %v, and then the route %+v, want equal queues and keys and no error", delay, r, err, other)
			}
			inBounds(rt, r, delay, tolerance, time.Millisecond)
			all = append(all, journey{r, dest})
		}
		if _, err := arrive(t, world(rt, picked, s, newBucket(rt, dlx.BucketConfig{Radices: []int{10}})), all...); err != nil {
			rt.Fatal(err)
		}
	})
}

// Delays are distributed evenly over all queues, even if they are multiples of a second or a minute.
func TestNativeSpreads(t *testing.T) {
	s := newNative(t, dlx.NativeConfig{})
	for _, step := range []time.Duration{time.Millisecond, 100 * time.Millisecond, time.Second, time.Minute} {
		count := map[string]int{}
		for i := range 4000 {
			r, err := s.Route(topology.Destination{Queue: "orders"}, time.Duration(i+1)*step, 0)
			if err != nil {
				t.Fatal(err)
			}
			count[r.Queue]++
		}
		for q, n := range count {
			if n < 850 || n > 1150 {
				t.Errorf("multiples of %v: %s has %d of 4000 messages, want 850 to 1150", step, q, n)
			}
		}
		if len(count) != dlx.DefaultNativeQueues {
			t.Errorf("multiples of %v: got the queues %v, want %d queues", step, count, dlx.DefaultNativeQueues)
		}
	}
}

// A canary passes through each holding queue, and reaches only its own queue.
func TestNativeCanary(t *testing.T) {
	for _, c := range []dlx.NativeConfig{{}, {Queues: 12, TopicPermissions: true}} {
		s := newNative(t, c)
		queue := naming.CanaryQueue("delay") + "x"
		bindings, routes := s.Canary(queue)
		top, err := s.Topology().Merge(topology.Topology{Queues: []topology.Queue{{Name: queue}}, Bindings: bindings})
		if err != nil {
			t.Fatalf("%+v: merging the topologies: got %v, want no error", c, err)
		}
		var all []journey
		var through []string
		for _, r := range routes {
			r.Delay = 200 * time.Millisecond
			all = append(all, journey{r, topology.Destination{Queue: queue}})
			through = append(through, r.Queue)
		}
		if _, err := arrive(t, top, all...); err != nil {
			t.Errorf("the config %+v: got %v, want each canary to arrive", c, err)
		}
		var holding []string
		for _, q := range s.Topology().Queues {
			if q.IsDelay() {
				holding = append(holding, q.Name)
			}
		}
		if !slices.Equal(through, holding) {
			t.Errorf("the canaries pass through %v, want %v", through, holding)
		}
	}
}

func BenchmarkNativeRoute(b *testing.B) {
	s, err := dlx.NewNative(dlx.NativeConfig{})
	if err != nil {
		b.Fatal(err)
	}
	dest := topology.Destination{Queue: "orders.expire"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Route(dest, time.Hour, 0); err != nil {
			b.Fatal(err)
		}
	}
}
