package dlx_test

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestBucketConfigErrors(t *testing.T) {
	ms := time.Millisecond
	for _, c := range []struct {
		name   string
		config dlx.BucketConfig
		fields []string // empty: valid
	}{
		{"zero", dlx.BucketConfig{}, nil},
		{"resolution 9ms", dlx.BucketConfig{Layout: "hex", Resolution: 9 * ms}, []string{"Resolution"}},
		{"resolution 10ms", dlx.BucketConfig{Layout: "hex", Resolution: 10 * ms}, nil},
		{"resolution negative", dlx.BucketConfig{Resolution: -1}, []string{"Resolution"}},
		{"resolution of microseconds", dlx.BucketConfig{Resolution: 12500 * time.Microsecond}, []string{"Resolution"}},
		{"resolution over 1h", dlx.BucketConfig{Resolution: 2 * time.Hour}, []string{"Resolution"}},
		{"clock of 1h", dlx.BucketConfig{Resolution: time.Hour}, nil},
		{"clock of 90s", dlx.BucketConfig{Resolution: 90 * time.Second}, nil},
		{"clock of 30ms", dlx.BucketConfig{Resolution: 30 * ms}, []string{"Resolution"}},
		{"clock of 7s", dlx.BucketConfig{Resolution: 7 * time.Second}, []string{"Resolution"}},
		{"clock of 25m", dlx.BucketConfig{Resolution: 25 * time.Minute}, []string{"Resolution"}},
		{"hex of 30ms", dlx.BucketConfig{Layout: "hex", Resolution: 30 * ms}, nil},
		{"binary of 2s", dlx.BucketConfig{Layout: "binary", Resolution: 2 * time.Second}, nil},
		{"binary of 3s", dlx.BucketConfig{Layout: "binary", Resolution: 3 * time.Second}, []string{"Resolution"}},
		{"radices and layout", dlx.BucketConfig{Layout: "clock", Radices: []int{2}}, []string{"Radices"}},
		{"unknown layout", dlx.BucketConfig{Layout: "octal"}, []string{"Layout"}},
		{"radix 1", dlx.BucketConfig{Radices: []int{10, 1}}, []string{"Radices"}},
		{"radix 0", dlx.BucketConfig{Radices: []int{0}}, []string{"Radices"}},
		{"radix 1001", dlx.BucketConfig{Radices: []int{1001}}, []string{"Radices"}},
		{"1000 queues", dlx.BucketConfig{Radices: []int{1000, 2}}, nil},
		{"1001 queues", dlx.BucketConfig{Radices: []int{1000, 3}}, []string{"Radices"}},
		{"29 positions", dlx.BucketConfig{Radices: repeat(2, 29)}, []string{"Radices"}},
		{"28 positions", dlx.BucketConfig{Radices: repeat(2, 28), Resolution: time.Second}, nil},
		{"TTL of ten years", dlx.BucketConfig{Radices: []int{600, 147}, Resolution: time.Hour}, nil}, // 146 * 600h = 3650d
		{"TTL over ten years", dlx.BucketConfig{Radices: []int{600, 148}, Resolution: time.Hour}, []string{"Radices"}},
		{"TTL far over", dlx.BucketConfig{Radices: repeat(30, 28)}, []string{"Radices"}},
		{"queue type", dlx.BucketConfig{QueueType: "stream"}, []string{"QueueType"}},
		{"long prefix", dlx.BucketConfig{Prefix: strings.Repeat("p", 65)}, []string{"Prefix"}},
		{"reserved prefix", dlx.BucketConfig{Prefix: "amq.delay"}, []string{"Prefix"}},
		{"line break in the prefix", dlx.BucketConfig{Prefix: "delay\nx"}, []string{"Prefix"}},
		{"several", dlx.BucketConfig{Prefix: "\xff", QueueType: "x", Layout: "y"}, []string{"Prefix", "QueueType", "Layout"}},
	} {
		err := c.config.Validate()
		var got []string
		for _, e := range flatten(err) {
			var f *topology.FieldError
			if !errors.As(e, &f) || f.Of != "bucket" || f.Want == "" {
				t.Errorf(`%s: Validate returned %v, want a *topology.FieldError with Of = "bucket" and a non-empty Want`, c.name, e)
				continue
			}
			got = append(got, f.Field)
		}
		if strings.Join(got, " ") != strings.Join(c.fields, " ") {
			t.Errorf("%s: Validate returned errors about the fields %v, want %v: %v", c.name, got, c.fields, err)
		}
		b, err := dlx.NewBucket(c.config)
		if (b == nil) != (len(c.fields) > 0) || (err != nil) != (len(c.fields) > 0) {
			t.Errorf("%s: NewBucket returned %v, %v, want a strategy or errors about the fields %v", c.name, b, err, c.fields)
		}
	}
}

func repeat(n, times int) []int {
	var all []int
	for range times {
		all = append(all, n)
	}
	return all
}

func flatten(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, flatten(e)...)
	}
	return all
}

func TestFieldErrorNamesValueAndBound(t *testing.T) {
	err := dlx.BucketConfig{Resolution: 3 * time.Millisecond}.Validate()
	want := "bucket: Resolution is 3ms; it must be whole milliseconds from 10ms to 1h"
	if err == nil || err.Error() != want {
		t.Errorf("Validate:\ngot  %v\nwant %s", err, want)
	}
}

func TestBucketDelayErrors(t *testing.T) {
	for _, c := range configs() {
		bucket := newBucket(t, c)
		dest := topology.Destination{Queue: "a"}
		for _, bad := range []struct{ delay, tolerance time.Duration }{
			{-1, 0},
			{math.MinInt64, 0},
			{0, -1},
			{bucket.MaxDelay() + 1, 0},
			{bucket.MaxDelay() + 1, math.MaxInt64},
			{math.MaxInt64, 0},
			{math.MaxInt64, math.MaxInt64},
			{math.MaxInt64 - 1, 1},
		} {
			r, err := bucket.Route(dest, bad.delay, bad.tolerance)
			var e *topology.DelayError
			if !errors.As(err, &e) || !errors.Is(err, topology.ErrDelay) {
				t.Errorf("config %+v, delay %v, tolerance %v: got route %+v and error %v, want ErrDelay", c, bad.delay, bad.tolerance, r, err)
				continue
			}
			if e.Strategy != "bucket" || e.Delay != bad.delay || e.Min != 0 || e.Max != bucket.MaxDelay() || e.Reason == "" || e.Hint == "" {
				t.Errorf(`Route: got the error %+v, want Strategy = "bucket", Delay = %v, Min = 0, Max = %v, a Reason and a Hint`,
					e, bad.delay, bucket.MaxDelay())
			}
		}
		for _, tolerance := range []time.Duration{0, 1, math.MaxInt64} {
			r, err := bucket.Route(dest, bucket.MaxDelay(), tolerance)
			if err != nil || r.Delay != bucket.MaxDelay() {
				t.Errorf("%+v: route of the longest delay: got %+v, error %v, want Delay = %v and no error", c, r, err, bucket.MaxDelay())
			}
		}
	}
}

// If the sum of delay and tolerance overflows, the route is the same as with a tolerance that just reaches the longest
// delay.
func TestBucketToleranceOverflow(t *testing.T) {
	for _, c := range configs() {
		bucket := newBucket(t, c)
		dest := topology.Destination{Queue: "a"}
		delay := bucket.MaxDelay()/2 - bucket.Resolution()
		most, err := bucket.Route(dest, delay, math.MaxInt64)
		if err != nil {
			t.Fatal(err)
		}
		enough, err := bucket.Route(dest, delay, bucket.MaxDelay()-delay)
		if err != nil || most.RoutingKey != enough.RoutingKey {
			t.Errorf("the config %+v: got the routes %+v and %+v, error %v, want equal routing keys and no error", c, most, enough, err)
		}
		checkRoute(t, bucket, radices(c), dest, delay, math.MaxInt64)
	}
}

// The maximum length of a destination's name is the same for all delays. With such a name, the longest routing key has
// the maximum length.
func TestBucketKeyErrors(t *testing.T) {
	for _, c := range configs() {
		bucket := newBucket(t, c)
		digits := 0
		for _, r := range radices(c) {
			digits += len(strconv.Itoa(r-1)) + 1
		}
		tag, _, _ := strings.Cut(bucket.Bindings(topology.Destination{Queue: "a"})[0].RoutingKey, ".")
		fits := topology.MaxRoutingKey - len(tag) - 1 - digits
		dest := topology.Destination{Queue: strings.Repeat("q", fits)}
		longest := 0
		for _, radix := range radices(c)[:1] {
			for v := range radix {
				r, err := bucket.Route(dest, bucket.MaxDelay()-time.Duration(v)*bucket.Resolution(), 0)
				if err != nil {
					t.Fatalf("%+v: a destination of %d bytes: got %v, want a route", c, fits, err)
				}
				longest = max(longest, len(r.RoutingKey))
			}
		}
		if longest != topology.MaxRoutingKey {
			t.Errorf("%+v: the longest routing key has %d bytes, want %d", c, longest, topology.MaxRoutingKey)
		}
		dest.Queue += "q"
		for _, delay := range []time.Duration{0, bucket.Resolution(), bucket.MaxDelay(), -1, math.MaxInt64} {
			_, err := bucket.Route(dest, delay, 0)
			var e *topology.KeyError
			if !errors.As(err, &e) || !errors.Is(err, topology.ErrDestination) || e.Overhead+len(e.Key) != topology.MaxRoutingKey+1 {
				t.Errorf("%+v: a destination of %d bytes with delay %v: got %v, want a *topology.KeyError", c, fits+1, delay, err)
			}
		}
	}
}

func TestKeyErrors(t *testing.T) {
	for prefix, s := range map[string]strategy{
		"ttl.1h1m1s1ms.": newTTL(t, dlx.TTLConfig{Delays: []time.Duration{time.Minute, 3661001 * time.Millisecond}}),
		"native.10.":     newNative(t, dlx.NativeConfig{Queues: 10}),
	} {
		fits := topology.MaxRoutingKey - len(prefix)
		for _, delay := range []time.Duration{0, time.Minute} {
			if _, err := s.Route(topology.Destination{Queue: strings.Repeat("q", fits)}, delay, 0); err != nil {
				t.Errorf("%s: a destination of %d bytes: got %v, want a route", prefix, fits, err)
			}
			var e *topology.KeyError
			if _, err := s.Route(topology.Destination{Queue: strings.Repeat("q", fits+1)}, delay, 0); !errors.As(err, &e) {
				t.Errorf("prefix %s, queue name of %d bytes: got %v, want a *topology.KeyError", prefix, fits+1, err)
			}
		}
	}
}

func TestDestinationErrors(t *testing.T) {
	strategies := []strategy{
		newBucket(t, dlx.BucketConfig{Prefix: "my.delay"}),
		newTTL(t, dlx.TTLConfig{Prefix: "my.delay", Delays: []time.Duration{time.Second}}),
	}
	for _, c := range []struct {
		dest topology.Destination
		ok   bool
	}{
		{topology.Destination{}, false},
		{topology.Destination{Queue: "a", Exchange: "b"}, false},
		{topology.Destination{Queue: "a", RoutingKey: "b"}, false},
		{topology.Destination{Queue: "my.delay.bucket"}, false},
		{topology.Destination{Queue: "my.delay.bucket.30m"}, false},
		{topology.Destination{Queue: "my.delay.bucket.hex-classic.8s"}, false},
		{topology.Destination{Queue: "my.delay.ttl.1m"}, false},
		{topology.Destination{Queue: "my.delay.plugin"}, false},
		{topology.Destination{Queue: "my.delay.deliver"}, false},
		{topology.Destination{Queue: "my.delay.parked"}, false},
		{topology.Destination{Queue: "my.delay.route.x:k"}, false},
		{topology.Destination{Exchange: "my.delay.bucket", RoutingKey: "clock.0.0.0.1.0.0.a"}, false},
		{topology.Destination{Exchange: "my.delay.deliver", RoutingKey: "a"}, false},
		{topology.Destination{RoutingKey: "my.delay.bucket.30m"}, false}, // the default exchange would route it to this queue
		{topology.Destination{Exchange: "x", RoutingKey: "my.delay.bucket.30m"}, true},
		{topology.Destination{RoutingKey: "a"}, true},
		{topology.Destination{Exchange: "x"}, true},
		{topology.Destination{Queue: "my.delay"}, true},
		{topology.Destination{Queue: "my.delay.orders"}, true},
		{topology.Destination{Queue: "my.delay.buckets"}, true},
		{topology.Destination{Queue: "delay.bucket.30m"}, true}, // an ordinary queue, because its prefix is not that of the strategy
		{topology.Destination{Queue: "your.my.delay.bucket"}, true},
	} {
		for _, s := range strategies {
			_, err := s.Route(c.dest, time.Second, 0)
			var e *topology.DestinationError
			if c.ok && err != nil || !c.ok && (!errors.As(err, &e) || !errors.Is(err, topology.ErrDestination)) {
				t.Errorf("%s to %+v: got %v, want no error: %t, and otherwise a *topology.DestinationError", s.Name(), c.dest, err, c.ok)
			}
		}
	}
}

// In every layout, all declared objects have the same properties.
func TestBucketTopology(t *testing.T) {
	for _, c := range configs() {
		bucket := newBucket(t, c)
		top := bucket.Topology()
		if err := top.Validate(); err != nil {
			t.Errorf("%+v: Validate: got %v, want no error", c, err)
		}
		ttls := map[time.Duration]string{}
		queues := map[string]bool{}
		for _, q := range top.Queues {
			queues[q.Name] = true
			if q.Name == "delay.parked" {
				continue
			}
			if q.Type != c.QueueType || q.MessageTTL == nil || q.DeadLetter == nil || q.DeadLetter.RoutingKey != nil || len(q.Arguments) != 0 {
				t.Fatalf("the config %+v: got the queue %+v, want one of type %v with a TTL and a dead-letter exchange, and no other arguments", c, q, c.QueueType)
			}
			quorum := q.Type == topology.Quorum
			if q.DeadLetter.AtLeastOnce != quorum || (q.Overflow == argument.RejectPublish) != quorum {
				t.Errorf("%+v: queue %s: got AtLeastOnce = %t and Overflow = %q, want true and reject-publish for a quorum queue only",
					c, q.Name, q.DeadLetter.AtLeastOnce, q.Overflow)
			}
			if other, ok := ttls[*q.MessageTTL]; ok || *q.MessageTTL > topology.MaxTTL {
				t.Errorf("%+v: queue %s: got the TTL %v (also that of queue %q), want a different TTL for each queue, at most %v", c, q.Name, *q.MessageTTL, other, topology.MaxTTL)
			}
			ttls[*q.MessageTTL] = q.Name
		}
		for _, e := range top.Exchanges {
			want := "delay.parked"
			if !strings.Contains(e.Name, ".level-") && e.Name != "delay.deliver" { // the entry exchange, and the parked exchange itself
				want = ""
			}
			if e.AlternateExchange != want {
				t.Errorf("%+v: exchange %s has the alternate exchange %q, want %q", c, e.Name, e.AlternateExchange, want)
			}
			kind := "topic"
			if queues[e.Name] {
				kind = "fanout"
			}
			if e.Kind != kind {
				t.Errorf("%+v: exchange %s has the type %s, want %s", c, e.Name, e.Kind, kind)
			}
		}
	}
}

func TestBucketNames(t *testing.T) {
	has := func(c dlx.BucketConfig, queue, exchange string) {
		t.Helper()
		top := newBucket(t, c).Topology()
		for _, q := range top.Queues {
			if q.Name == queue {
				for _, e := range top.Exchanges {
					if e.Name == exchange {
						return
					}
				}
			}
		}
		t.Errorf("%+v: the topology lacks queue %s or exchange %s, want both", c, queue, exchange)
	}
	has(dlx.BucketConfig{}, "delay.bucket.30m", "delay.bucket.1m")
	has(dlx.BucketConfig{}, "delay.bucket.10ms", "delay.bucket.level-0")
	has(dlx.BucketConfig{}, "delay.bucket.990ms", "delay.bucket.990ms")
	has(dlx.BucketConfig{Resolution: 100 * time.Millisecond}, "delay.bucket.clock-100ms.900ms", "delay.bucket.clock-100ms.level-0")
	has(dlx.BucketConfig{}, "delay.bucket.352d", "delay.bucket.level-4")
	has(dlx.BucketConfig{Prefix: "p"}, "p.bucket.32d", "p.deliver")
	has(dlx.BucketConfig{QueueType: topology.Classic}, "delay.bucket.classic.30m", "delay.bucket.classic.30m")
	has(dlx.BucketConfig{Layout: "hex"}, "delay.bucket.hex.1m42s400ms", "delay.bucket.hex.level-6")
	has(dlx.BucketConfig{Layout: "binary"}, "delay.bucket.binary.1m4s", "delay.bucket.binary.level-26")
	has(dlx.BucketConfig{
		Resolution: 100 * time.Millisecond, QueueType: topology.Classic,
	}, "delay.bucket.clock-100ms-classic.900ms", "delay.bucket.clock-100ms-classic.900ms")
	has(dlx.BucketConfig{Radices: []int{10, 60}, Resolution: time.Second}, "delay.bucket.r10x60-1s.9m50s", "delay.bucket.r10x60-1s.level-0")
	has(dlx.BucketConfig{Radices: []int{10, 60}}, "delay.bucket.r10x60.59s", "delay.bucket.r10x60.level-0")
}

func BenchmarkBucketRoute(b *testing.B) {
	bucket, err := dlx.NewBucket(dlx.BucketConfig{})
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		dest      topology.Destination
		tolerance time.Duration
	}{
		{"queue", topology.Destination{Queue: "orders.expire"}, 0},
		{"tolerance", topology.Destination{Queue: "orders.expire"}, time.Minute},
		{"exchange", topology.Destination{Exchange: "orders", RoutingKey: "orders.expire"}, 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := bucket.Route(c.dest, 1234567*time.Millisecond, c.tolerance); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
