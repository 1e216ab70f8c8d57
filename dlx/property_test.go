package dlx_test

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// drawDelay returns a random delay, preferably near a boundary: a multiple of a digit's unit or the maximum, or one
// resolution away from these.
func drawDelay(t *rapid.T, s strategy, resolution time.Duration, rs []int) time.Duration {
	maximum := s.MaxDelay()
	unit := int64(resolution)
	for range rapid.IntRange(0, len(rs)-1).Draw(t, "position") {
		unit *= int64(rs[0])
		rs = rs[1:]
	}
	near := func(x time.Duration) time.Duration {
		off := []time.Duration{0, 0, -1, 1, resolution, -resolution, 1 - resolution}
		x += rapid.SampledFrom(off).Draw(t, "off by")
		return min(max(x, 0), maximum)
	}
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		return near(time.Duration(unit * rapid.Int64Range(0, int64(rs[0])).Draw(t, "digit")))
	case 1:
		return near(maximum)
	case 2: // every order of magnitude is equally likely
		bits := rapid.IntRange(0, 62).Draw(t, "bits")
		return min(time.Duration(rapid.Int64Range(0, 1<<bits).Draw(t, "delay")), maximum)
	}
	return time.Duration(rapid.Int64Range(0, int64(maximum)).Draw(t, "delay"))
}

func drawTolerance(t *rapid.T) time.Duration {
	bits := rapid.IntRange(0, 62).Draw(t, "tolerance bits")
	if bits == 0 {
		return 0
	}
	return time.Duration(rapid.Int64Range(0, 1<<bits).Draw(t, "tolerance"))
}

// checkRoute checks all promises about a route in a bucket layout. If the tolerance allows only a few numbers, it tries
// all of them to find the one with the fewest hops.
func checkRoute(t failer, bucket stepped, rs []int, dest topology.Destination, delay, tolerance time.Duration) topology.Route {
	t.Helper()
	r, err := bucket.Route(dest, delay, tolerance)
	if err != nil {
		t.Fatalf("a delay of %v with tolerance %v: got %v, want a route", delay, tolerance, err)
	}
	res := bucket.Resolution()
	inBounds(t, r, delay, tolerance, res)
	n := int64(r.Delay / res)
	if r.Delay%res != 0 || r.Hops != nonZero(rs, n) {
		t.Fatalf("a delay of %v: got a route with the delay %v and %d hops, want a multiple of %v and %d hops", delay, r.Delay, r.Hops, res, nonZero(rs, n))
	}
	lo := int64(delay / res)
	if delay%res != 0 {
		lo++
	}
	hi := lo
	if end := delay + tolerance; end < delay {
		hi = int64(bucket.MaxDelay() / res)
	} else {
		hi = max(lo, min(int64(end/res), int64(bucket.MaxDelay()/res)))
	}
	best := lo
	better := func(m int64) {
		if m <= hi && nonZero(rs, m) < nonZero(rs, best) {
			best = m
		}
	}
	if hi-lo <= 2000 {
		for m := lo; m <= hi; m++ {
			better(m)
		}
	} else { // too many to try all; TestSmallLayoutsExhaustively shows that these candidates suffice
		unit := int64(1)
		for _, r := range rs {
			better((lo + unit - 1) / unit * unit)
			unit *= int64(r)
		}
	}
	if n != best {
		t.Fatalf("a delay of %v with tolerance %v: got a route with the delay %v (%d hops), want %v (%d hops)", delay, tolerance, r.Delay, r.Hops, time.Duration(best)*res, nonZero(rs, best))
	}
	return r
}

// Even if all strategies, layouts and queue types share one broker, one delivery exchange and all destinations, no
// message reaches another destination.
func TestAllStrategiesTogether(t *testing.T) {
	dests := destinations()
	cs := configs()
	var strategies []strategy
	var buckets []*dlx.Bucket
	for _, c := range cs {
		b := newBucket(t, c)
		buckets = append(buckets, b)
		strategies = append(strategies, b)
	}
	declared := []time.Duration{time.Millisecond, 100 * time.Millisecond, time.Minute, 90 * time.Second, 48 * time.Hour, topology.MaxTTL}
	for _, qt := range []topology.QueueType{topology.Quorum, topology.Classic} {
		strategies = append(strategies, newTTL(t, dlx.TTLConfig{Delays: declared, QueueType: qt}))
	}
	strategies = append(strategies, newNative(t, dlx.NativeConfig{}), newNative(t, dlx.NativeConfig{Queues: 12, TopicPermissions: true}))

	// Each strategy sends messages to every destination, with and without a delay.
	var all []journey
	for i, s := range strategies {
		for _, d := range dests {
			delays := []time.Duration{0, s.MaxDelay(), time.Minute}
			if i < len(cs) {
				delays = append(delays, 25*time.Hour+cs[i].WithDefaults().Resolution)
			}
			for _, delay := range delays {
				if delay > s.MaxDelay() {
					continue
				}
				r, err := s.Route(d, delay, 0)
				if err != nil {
					if len(d.TargetQueue("delay")) < 180 { // the long names do not fit into the keys of every layout
						t.Fatalf("%s, a delay of %v to %+v: got %v, want no error for a queue name shorter than 180 bytes", s.Name(), delay, d, err)
					}
					continue
				}
				all = append(all, journey{r, d})
			}
		}
	}

	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, len(buckets)-1).Draw(t, "layout")
		rs := radices(cs[i])
		dest := rapid.SampledFrom(dests[:40]).Draw(t, "destination")
		delay := drawDelay(t, buckets[i], buckets[i].Resolution(), rs)
		all = append(all, journey{checkRoute(t, buckets[i], rs, dest, delay, drawTolerance(t)), dest})
	})
	if _, err := arrive(t, world(t, dests, strategies...), all...); err != nil {
		t.Error(err)
	}
}

// Two layouts with random radices and resolutions on one broker deliver their messages correctly.
func TestRandomRadices(t *testing.T) {
	dests := []topology.Destination{{Queue: "a"}, {Queue: "a.b"}, {Queue: "b"}, {Queue: "0.a"}, {Queue: "#"}}
	draw := func(t *rapid.T) dlx.BucketConfig {
		for {
			c := dlx.BucketConfig{
				Radices:    rapid.SliceOfN(rapid.IntRange(2, 12), 1, 10).Draw(t, "radices"),
				Resolution: time.Duration(rapid.IntRange(10, 2000).Draw(t, "resolution")) * time.Millisecond,
			}
			if rapid.Bool().Draw(t, "default resolution") {
				c.Resolution = 0
			}
			if c.Validate() == nil {
				return c
			}
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		one, two := draw(rt), draw(rt)
		a, b := newBucket(rt, one), newBucket(rt, two)
		same := slices.Equal(one.Radices, two.Radices) && a.Resolution() == b.Resolution()
		if x, y := a.Topology().Queues[1].Name, b.Topology().Queues[1].Name; same != (x == y) {
			rt.Fatalf("configurations %+v and %+v: got the queue names %s and %s, want equal names: %t", one, two, x, y, same)
		}
		var all []journey
		for range 5 {
			for i, s := range []*dlx.Bucket{a, b} {
				rs := [][]int{one.Radices, two.Radices}[i]
				dest := rapid.SampledFrom(dests).Draw(rt, "destination")
				all = append(all, journey{checkRoute(rt, s, rs, dest, drawDelay(rt, s, s.Resolution(), rs), drawTolerance(rt)), dest})
			}
		}
		if _, err := arrive(t, world(rt, dests, a, b, newBucket(rt, dlx.BucketConfig{Layout: dlx.LayoutHex})), all...); err != nil {
			rt.Fatal(err)
		}
	})
}

// This test routes every delay in small layouts, and the delays one nanosecond shorter and longer, with every tolerance
// up to the maximum.
func TestSmallLayoutsExhaustively(t *testing.T) {
	dest := topology.Destination{Queue: "a.b"}
	dests := []topology.Destination{dest, {Queue: "b"}, {Queue: "0.b"}}
	for _, rs := range [][]int{{2}, {5}, {2, 2}, {2, 3, 2}, {3, 2, 3}, {2, 2, 2, 2, 2}, {5, 4, 3}, {3, 3, 3, 3}, {10, 6}, {2, 7, 2, 3}} {
		bucket := newBucket(t, dlx.BucketConfig{Radices: rs, Resolution: 10 * time.Millisecond})
		res := bucket.Resolution()
		all := map[time.Duration]journey{} // by the delay of the route, because many delays and tolerances have the same route
		check := func(delay, tolerance time.Duration) {
			r := checkRoute(t, bucket, rs, dest, delay, tolerance)
			if have, ok := all[r.Delay]; ok && !reflect.DeepEqual(have.Route, r) {
				t.Fatalf("delay %v: got the route %+v, want %+v, as before", r.Delay, r, have.Route)
			}
			all[r.Delay] = journey{r, dest}
		}
		for delay := time.Duration(0); delay <= bucket.MaxDelay(); delay += res {
			for _, near := range []time.Duration{delay - 1, delay, delay + 1} {
				if near < 0 || near > bucket.MaxDelay() {
					continue
				}
				check(near, 0)
				for tolerance := res; tolerance <= bucket.MaxDelay(); tolerance += res {
					check(near, tolerance)
					check(near, tolerance-1)
				}
			}
		}
		if want := int(bucket.MaxDelay()/res) + 1; len(all) != want {
			t.Errorf("radices %v: got routes with %d different delays, want %d", rs, len(all), want)
		}
		if _, err := arrive(t, world(t, dests, bucket), slices.Collect(maps.Values(all))...); err != nil {
			t.Errorf("radices %v: got %v, want each message to arrive", rs, err)
		}
	}
}

// Each queue in each layout is used for some delay, and delays messages by exactly the value of its digit.
func TestEveryQueueIsReached(t *testing.T) {
	dest := topology.Destination{Queue: "a"}
	for _, c := range configs() {
		bucket := newBucket(t, c)
		var all []journey
		unit := bucket.Resolution()
		for _, radix := range radices(c) {
			for v := 1; v < radix; v++ {
				all = append(all, journey{checkRoute(t, bucket, radices(c), dest, time.Duration(v)*unit, 0), dest})
			}
			unit *= time.Duration(radix)
		}
		rests, err := arrive(t, world(t, []topology.Destination{dest}, bucket), all...)
		if err != nil {
			t.Fatalf("the layout %+v: got %v, want each message to arrive", c, err)
		}
		reached := map[string]bool{}
		for _, r := range rests {
			reached[r.Visited[0]] = true
		}
		if want := len(bucket.Topology().Queues) - 1; len(reached) != want { // except for the parked queue
			t.Errorf("%+v: %d delay queues are used, want %d", c, len(reached), want)
		}
		if got := bucket.MaxDelay(); got != unit-bucket.Resolution() {
			t.Errorf("%+v: MaxDelay = %v, want %v", c, got, unit-bucket.Resolution())
		}
	}
}

// If its destination or a later delay queue is missing, a message is parked once, with a key that shows its
// destination. If the first delay queue is missing, the message is returned to its publisher.
func TestMissingQueues(t *testing.T) {
	for _, c := range configs() {
		bucket := newBucket(t, c)
		dest := topology.Destination{Queue: "a"}
		delay := bucket.MaxDelay() // every position is visited
		r, err := bucket.Route(dest, delay, 0)
		if err != nil {
			t.Fatal(err)
		}
		top := world(t, []topology.Destination{dest}, bucket)
		rests, err := arrive(t, top, journey{r, dest})
		if err != nil {
			t.Fatalf("the layout %+v: got %v, want the message to arrive", c, err)
		}
		way := rests[0].Visited
		err = onBroker(t, top, func(b *broker) error {
			for i, gone := range append(slices.Clone(way), "a") {
				if _, err := b.ch.QueueDelete(gone, false, false, false); err != nil {
					return err
				}
				all, err := b.carry(r)
				if err != nil {
					return fmt.Errorf("without %s: %w", gone, err)
				}
				if got := all[0]; got.Returned != (i == 0) || i > 0 && !got.Rests[0].parked(r.RoutingKey, way[:i]) {
					return fmt.Errorf("without %s: got %+v, want the message returned: %t, and otherwise parked", gone, got, i == 0)
				}
				if err := b.declare(only(top, gone)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("the layout %+v without some queues: got %v, want no error", c, err)
		}
	}
}

func (r rest) parked(key string, after []string) bool {
	return r.Queue == "delay.parked" && r.RoutingKey == key && slices.Equal(r.Visited, after)
}

// only returns one queue from a topology, with its bindings.
func only(top topology.Topology, queue string) (part topology.Topology) {
	for _, q := range top.Queues {
		if q.Name == queue {
			part.Queues = append(part.Queues, q)
		}
	}
	for _, b := range top.Bindings {
		if b.Queue == queue {
			part.Bindings = append(part.Bindings, b)
		}
	}
	return part
}

func FuzzRoute(f *testing.F) {
	cs := configs()
	for i := range cs {
		f.Add(uint8(i), "a.b", int64(time.Minute+1), int64(0))
		f.Add(uint8(i), "#", int64(math.MaxInt64), int64(math.MaxInt64))
		f.Add(uint8(i), "", int64(-1), int64(5*time.Second))
		f.Add(uint8(i), "delay.bucket.30m", int64(1), int64(1))
	}
	f.Fuzz(func(t *testing.T, layout uint8, queue string, delay, tolerance int64) {
		c := cs[int(layout)%len(cs)]
		bucket := newBucket(t, c)
		dest := topology.Destination{Queue: queue}
		_, err := bucket.Route(dest, time.Duration(delay), time.Duration(tolerance))
		possible := delay >= 0 && tolerance >= 0 && time.Duration(delay) <= bucket.MaxDelay()
		_, refused := bucket.Route(dest, 0, 0)
		if (err == nil) != (possible && refused == nil) {
			t.Fatalf("%+v: Route(%+v, %v, %v): got %v, want an error: %t", c, dest, time.Duration(delay), time.Duration(tolerance), err, !possible || refused != nil)
		}
		if err != nil {
			return
		}
		other := topology.Destination{Queue: "other." + queue}
		if queue == "a" {
			other.Queue = "b"
		}
		dests := []topology.Destination{dest}
		if _, err := bucket.Route(other, 0, 0); err == nil {
			dests = append(dests, other)
		}
		r := checkRoute(t, bucket, radices(c), dest, time.Duration(delay), time.Duration(tolerance))
		if _, err := arrive(t, world(t, dests, bucket), journey{r, dest}); err != nil {
			t.Fatal(err)
		}
		if len(r.RoutingKey) > topology.MaxRoutingKey {
			t.Fatalf("Route: got a routing key of %d bytes, want at most %d", len(r.RoutingKey), topology.MaxRoutingKey)
		}
	})
}
