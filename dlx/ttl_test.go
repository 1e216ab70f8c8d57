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
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestTTLConfigErrors(t *testing.T) {
	many := make([]time.Duration, 1001)
	for i := range many {
		many[i] = time.Duration(i+1) * time.Second
	}
	for _, c := range []struct {
		name   string
		config dlx.TTLConfig
		fields string
	}{
		{"one", dlx.TTLConfig{Delays: []time.Duration{time.Second}}, ""},
		{"bounds", dlx.TTLConfig{Delays: []time.Duration{time.Millisecond, topology.MaxTTL}}, ""},
		{"1000", dlx.TTLConfig{Delays: many[:1000]}, ""},
		{"1001", dlx.TTLConfig{Delays: many}, "Delays"},
		{"none", dlx.TTLConfig{}, "Delays"},
		{"zero", dlx.TTLConfig{Delays: []time.Duration{0}}, "Delays[0]"},
		{"negative", dlx.TTLConfig{Delays: []time.Duration{time.Second, -time.Second}}, "Delays[1]"},
		{"microseconds", dlx.TTLConfig{Delays: []time.Duration{1500 * time.Microsecond}}, "Delays[0]"},
		{"over the bound", dlx.TTLConfig{Delays: []time.Duration{topology.MaxTTL + time.Millisecond}}, "Delays[0]"},
		{"twice", dlx.TTLConfig{Delays: []time.Duration{60 * time.Second, time.Second, time.Minute}}, "Delays[2]"},
		{"several", dlx.TTLConfig{Prefix: "amq.x", QueueType: "lazy", Delays: []time.Duration{0, 1}}, "Prefix QueueType Delays[0] Delays[1]"},
	} {
		var got []string
		for _, e := range flatten(c.config.Validate()) {
			var f *topology.FieldError
			if !errors.As(e, &f) || f.Of != "ttl" {
				t.Errorf(`%s: Validate returned %v, want a *topology.FieldError with Of = "ttl"`, c.name, e)
				continue
			}
			got = append(got, f.Field)
		}
		if strings.Join(got, " ") != c.fields {
			t.Errorf("%s: Validate returned errors about the fields %v, want %q", c.name, got, c.fields)
		}
		if s, err := dlx.NewTTL(c.config); (s == nil) != (c.fields != "") || (err != nil) != (c.fields != "") {
			t.Errorf("%s: NewTTL returned %v, %v, want a strategy or errors about the fields %q", c.name, s, err, c.fields)
		}
	}
}

func TestTTLRoute(t *testing.T) {
	dest := topology.Destination{Queue: "orders.expire"}
	delays := []time.Duration{48 * time.Hour, time.Minute, 15 * time.Minute}
	strict := newTTL(t, dlx.TTLConfig{Delays: delays})
	up := newTTL(t, dlx.TTLConfig{Delays: delays, RoundUp: true, QueueType: topology.Classic})
	checked := newTTL(t, dlx.TTLConfig{Delays: delays, TopicPermissions: true})
	for _, c := range []struct {
		s                *dlx.TTL
		delay, tolerance time.Duration
		exchange, key    string // an empty exchange means that an error is expected
		took             time.Duration
		hops             int
	}{
		{strict, 0, 0, "delay.deliver", "ttl.0s.orders.expire", 0, 0},
		{strict, 0, time.Hour, "delay.deliver", "ttl.0s.orders.expire", 0, 0},
		{strict, time.Minute, 0, "delay.ttl.1m", "ttl.1m.orders.expire", time.Minute, 1},
		{strict, 48 * time.Hour, time.Hour, "delay.ttl.2d", "ttl.2d.orders.expire", 48 * time.Hour, 1},
		{strict, time.Minute + 1, 0, "", "", 0, 0},
		{strict, 14 * time.Minute, time.Minute, "delay.ttl.15m", "ttl.15m.orders.expire", 15 * time.Minute, 1},
		{strict, 14 * time.Minute, time.Minute - 1, "", "", 0, 0},
		{strict, 1, math.MaxInt64, "delay.ttl.1m", "ttl.1m.orders.expire", time.Minute, 1},
		{strict, 48*time.Hour + 1, math.MaxInt64, "", "", 0, 0},
		{strict, -1, 0, "", "", 0, 0},
		{strict, time.Minute, -1, "", "", 0, 0},
		{up, 0, 0, "delay.deliver", "ttl.0s.orders.expire", 0, 0},
		{up, 1, 0, "delay.ttl.classic.1m", "ttl.1m.orders.expire", time.Minute, 1},
		{up, time.Minute, 0, "delay.ttl.classic.1m", "ttl.1m.orders.expire", time.Minute, 1},
		{up, time.Minute + 1, 0, "delay.ttl.classic.15m", "ttl.15m.orders.expire", 15 * time.Minute, 1},
		{up, 48*time.Hour + 1, 0, "", "", 0, 0},
		{up, math.MaxInt64, math.MaxInt64, "", "", 0, 0},
		{checked, 0, 0, "delay.deliver", "ttl.0s.orders.expire", 0, 0},
		{checked, time.Minute, 0, "delay.ttl", "ttl.1m.orders.expire", time.Minute, 1},
	} {
		r, err := c.s.Route(dest, c.delay, c.tolerance)
		if c.exchange == "" {
			var e *topology.DelayError
			if !errors.As(err, &e) || e.Delay != c.delay || e.Reason == "" || e.Hint == "" {
				t.Errorf("Route with the delay %v and the tolerance %v: got %+v, %v, want a *DelayError with a reason and a hint", c.delay, c.tolerance, r, err)
			}
			continue
		}
		if err != nil || r.Exchange != c.exchange || r.RoutingKey != c.key || r.Delay != c.took || r.Hops != c.hops || !r.Mandatory {
			t.Errorf("Route with the delay %v and the tolerance %v: got %+v, error %v, want no error, Exchange = %v, RoutingKey = %v, Delay = %v, Hops = %v and Mandatory = true",
				c.delay, c.tolerance, r, err, c.exchange, c.key, c.took, c.hops)
		}
	}
	_, err := strict.Route(dest, time.Hour, 0)
	want := "ttl strategy: delay 1h is not declared; declared delays are 1m, 15m, 2d; declare the delay, enable round_up, set a tolerance, or use the bucket strategy"
	if err == nil || err.Error() != want {
		t.Errorf("Route with a delay that is not declared:\ngot  %v\nwant %s", err, want)
	}
	if !strict.Declares(15*time.Minute) || strict.Declares(time.Hour) || strict.Declares(0) || strict.Declares(49*time.Hour) {
		t.Errorf("Declares of 15m, 1h, 0 and 49h: got %t, %t, %t and %t, want true, false, false and false",
			strict.Declares(15*time.Minute), strict.Declares(time.Hour), strict.Declares(0), strict.Declares(49*time.Hour))
	}
	if strict.MaxDelay() != 48*time.Hour {
		t.Errorf("MaxDelay is %v, want 48h", strict.MaxDelay())
	}
}

func TestTTLRandomDelays(t *testing.T) {
	dests := destinations()
	rapid.Check(t, func(rt *rapid.T) {
		delays := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) time.Duration {
			bits := rapid.IntRange(0, 38).Draw(t, "bits")
			return min(time.Duration(rapid.Int64Range(1, 1<<bits).Draw(t, "ms"))*time.Millisecond, topology.MaxTTL)
		}), 1, 20, func(d time.Duration) time.Duration { return d }).Draw(rt, "delays")
		s := newTTL(rt, dlx.TTLConfig{Delays: delays, RoundUp: rapid.Bool().Draw(rt, "round up")})
		picked := []topology.Destination{rapid.SampledFrom(dests).Draw(rt, "one"), rapid.SampledFrom(dests).Draw(rt, "two"), {Queue: "a"}}
		var all []journey
		for _, d := range delays {
			for _, dest := range picked {
				r, err := s.Route(dest, d, 0)
				if err != nil || r.Delay != d || r.Hops != 1 {
					rt.Fatalf("a delay of %v: got %+v, error %v, want the same Delay, Hops = 1 and no error", d, r, err)
				}
				all = append(all, journey{r, dest})
			}
		}
		if !slices.Contains(delays, s.MaxDelay()) {
			rt.Fatalf("MaxDelay = %v, want one of the declared delays %v", s.MaxDelay(), delays)
		}
		if _, err := arrive(t, world(rt, picked, s, newBucket(rt, dlx.BucketConfig{Radices: []int{10}})), all...); err != nil {
			rt.Fatal(err)
		}
	})
}

func BenchmarkTTLRoute(b *testing.B) {
	s, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{time.Minute, time.Hour}})
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
