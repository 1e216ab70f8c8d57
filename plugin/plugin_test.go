package plugin_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// This is a copy of amqpx.Strategy, because this package must not import amqpx.
var _ interface {
	Name() string
	Topology() topology.Topology
	Bindings(dest topology.Destination) []topology.Binding
	Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error)
	MaxDelay() time.Duration
} = (*plugin.Strategy)(nil)

func newStrategy(t *testing.T, c plugin.Config) *plugin.Strategy {
	t.Helper()
	s, err := plugin.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConfigErrors(t *testing.T) {
	for _, c := range []struct {
		config plugin.Config
		field  string
	}{
		{plugin.Config{}, ""},
		{plugin.Config{MaxDelay: time.Millisecond}, ""},
		{plugin.Config{MaxDelay: plugin.MaxDelay}, ""},
		{plugin.Config{MaxDelay: plugin.MaxDelay + time.Millisecond}, "MaxDelay"},
		{plugin.Config{MaxDelay: -1}, "MaxDelay"},
		{plugin.Config{MaxDelay: 1500 * time.Microsecond}, "MaxDelay"},
		{plugin.Config{MaxDelay: time.Microsecond}, "MaxDelay"},
		{plugin.Config{Prefix: "amq.x"}, "Prefix"},
	} {
		s, err := plugin.New(c.config)
		var f *topology.FieldError
		if errors.As(err, &f) != (c.field != "") || (s == nil) != (c.field != "") || f != nil && (f.Field != c.field || f.Of != "plugin") {
			t.Errorf("New(%+v): got %v, %v, want an error about field %q (none if empty)", c.config, s, err, c.field)
		}
	}
	if _, err := plugin.New(plugin.Config{Prefix: strings.Repeat("p", 65), MaxDelay: -1}); err == nil ||
		!strings.Contains(err.Error(), "Prefix") || !strings.Contains(err.Error(), "MaxDelay") {
		t.Errorf("two invalid fields: got %v, want an error about Prefix and MaxDelay", err)
	}
}

func TestRoute(t *testing.T) {
	dest := topology.Destination{Queue: "orders.expire"}
	s := newStrategy(t, plugin.Config{MaxDelay: time.Hour})
	for _, c := range []struct {
		delay, tolerance time.Duration
		ms               int64 // the wanted delay in milliseconds, or -1 if Route must fail
	}{
		{0, 0, 0},
		{0, time.Hour, 0},
		{1, 0, 1},
		{time.Millisecond, 0, 1},
		{time.Millisecond + 1, 0, 2},
		{time.Hour - 1, 0, 3600_000},
		{time.Hour, math.MaxInt64, 3600_000},
		{time.Hour + 1, 0, -1},
		{math.MaxInt64, 0, -1},
		{-1, 0, -1},
		{math.MinInt64, 0, -1},
		{1, -1, -1},
	} {
		r, err := s.Route(dest, c.delay, c.tolerance)
		if c.ms < 0 {
			var e *topology.DelayError
			if !errors.As(err, &e) || e.Strategy != "plugin" || e.Delay != c.delay || e.Max != time.Hour || e.Reason == "" || e.Hint == "" {
				t.Errorf("Route with the delay %v and the tolerance %v: got %+v, %v, want a *DelayError from the plugin strategy with a reason and a hint",
					c.delay, c.tolerance, r, err)
			}
			continue
		}
		if err != nil || r.RoutingKey != "plugin.orders.expire" || r.Delay != time.Duration(c.ms)*time.Millisecond || r.Hops != 0 {
			t.Errorf(`Route with the delay %v and the tolerance %v: got %+v, %v, want RoutingKey = "plugin.orders.expire", Delay = %v, Hops = 0 and no error`,
				c.delay, c.tolerance, r, err, time.Duration(c.ms)*time.Millisecond)
			continue
		}
		header, has := r.Headers[plugin.HeaderDelay]
		if c.ms == 0 {
			if has || r.Exchange != "delay.deliver" || !r.Mandatory {
				t.Errorf("Route without a delay: got %+v, want delay.deliver, mandatory and without x-delay", r)
			}
			continue
		}
		if header != c.ms || r.Exchange != "delay.plugin" || r.Mandatory {
			t.Errorf(`Route with the delay %v: got %+v, want x-delay = %v, Exchange = "delay.plugin" and Mandatory = false`, c.delay, r, c.ms)
		}
	}
}

// The longest delay is 2^32-1 ms, because the plugin ignores longer ones.
func TestLongestDelay(t *testing.T) {
	s := newStrategy(t, plugin.Config{})
	r, err := s.Route(topology.Destination{Queue: "q"}, s.MaxDelay(), 0)
	if err != nil || r.Headers[plugin.HeaderDelay] != int64(4294967295) {
		t.Errorf("Route with the longest delay: got %+v, %v, want x-delay = 4294967295 and no error", r, err)
	}
}

func TestDestinations(t *testing.T) {
	s := newStrategy(t, plugin.Config{})
	for _, d := range []topology.Destination{{}, {Queue: "delay.plugin"}, {Exchange: "delay.deliver"}, {Queue: "a", Exchange: "b"}} {
		var e *topology.DestinationError
		if _, err := s.Route(d, time.Second, 0); !errors.As(err, &e) || !errors.Is(err, topology.ErrDestination) {
			t.Errorf("Route to %+v: got %v, want ErrDestination in a *DestinationError", d, err)
		}
	}
	fits := strings.Repeat("q", topology.MaxRoutingKey-len("plugin."))
	for _, delay := range []time.Duration{0, time.Second} {
		if r, err := s.Route(topology.Destination{Queue: fits}, delay, 0); err != nil || len(r.RoutingKey) != topology.MaxRoutingKey {
			t.Errorf("queue name with %d bytes: got routing key %q, %v, want one with %d bytes and no error", len(fits), r.RoutingKey, err, topology.MaxRoutingKey)
		}
		var e *topology.KeyError
		if _, err := s.Route(topology.Destination{Queue: fits + "q"}, delay, 0); !errors.As(err, &e) {
			t.Errorf("queue name with %d bytes: got %v, want a *topology.KeyError", len(fits)+1, err)
		}
	}
	x := topology.Destination{Exchange: "x", RoutingKey: "a.*"}
	r, err := s.Route(x, time.Second, 0)
	if err != nil || r.RoutingKey != s.Bindings(x)[0].RoutingKey || s.Bindings(x)[0].Queue != x.TargetQueue("delay") {
		t.Errorf("the destination %+v: got the bindings %+v and the route %+v, %v, want the same routing key in both, a binding of queue %s, and no error",
			x, s.Bindings(x), r, err, x.TargetQueue("delay"))
	}
}

// A destination's binding matches its own routing key only: the key contains no wildcard words and differs from that of
// every other destination. Therefore, no message reaches another destination.
func TestBindingIsTheKey(t *testing.T) {
	s := newStrategy(t, plugin.Config{})
	name := rapid.Custom(func(t *rapid.T) string {
		words := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "*", "#", "", "%2A", "%23", "%", "0", "a*"}), 1, 4).Draw(t, "words")
		return strings.Join(words, ".")
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		if a == "" || b == "" {
			return
		}
		da, db := topology.Destination{Queue: a}, topology.Destination{Queue: b}
		r, err := s.Route(da, time.Duration(rapid.Int64Range(0, int64(plugin.MaxDelay)).Draw(t, "delay")), 0)
		if err != nil {
			t.Fatal(err)
		}
		ka, kb := s.Bindings(da), s.Bindings(db)
		if len(ka) != 1 || ka[0].RoutingKey != r.RoutingKey || ka[0].Queue != a || ka[0].Exchange != "delay.deliver" {
			t.Fatalf("destination %q: got bindings %+v, want one from delay.deliver to the queue with the key of the route %+v", a, ka, r)
		}
		if (ka[0].RoutingKey == kb[0].RoutingKey) != (a == b) {
			t.Fatalf("destinations %q and %q: got keys %q and %q, want equal ones: %t", a, b, ka[0].RoutingKey, kb[0].RoutingKey, a == b)
		}
		for w := range strings.SplitSeq(ka[0].RoutingKey, ".") {
			if w == "*" || w == "#" {
				t.Fatalf("destination %q: got binding key %q, want one without wildcards", a, ka[0].RoutingKey)
			}
		}
	})
}

func TestTopology(t *testing.T) {
	top := newStrategy(t, plugin.Config{Prefix: "p"}).Topology()
	if err := top.Validate(topology.DelayPrefix("p")); err != nil {
		t.Error(err)
	}
	x := top.Exchanges[len(top.Exchanges)-1]
	if x.Name != "p.plugin" || x.Kind != "x-delayed-message" || x.Table()["x-delayed-type"] != "topic" || x.AlternateExchange != "" {
		t.Errorf(`the topology has the exchange %+v, want Name = "p.plugin", Kind = "x-delayed-message", x-delayed-type = "topic" and no alternate exchange`,
			x)
	}
	b := top.Bindings[len(top.Bindings)-1]
	if b.Exchange != "p.plugin" || b.ToExchange != "p.deliver" || b.RoutingKey != "#" {
		t.Errorf(`the topology has the binding %+v, want Exchange = "p.plugin", ToExchange = "p.deliver" and RoutingKey = "#"`, b)
	}
}

func BenchmarkRoute(b *testing.B) {
	s, err := plugin.New(plugin.Config{})
	if err != nil {
		b.Fatal(err)
	}
	dest := topology.Destination{Queue: "orders.expire"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Route(dest, time.Minute, 0); err != nil {
			b.Fatal(err)
		}
	}
}
