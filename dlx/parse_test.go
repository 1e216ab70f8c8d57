package dlx_test

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// DestinationKey extracts the destination from a routing key in any layout.
func TestDestinationKey(t *testing.T) {
	strategies := []strategy{
		newNative(t, dlx.NativeConfig{Queues: 12}),
		newTTL(t, dlx.TTLConfig{Delays: []time.Duration{time.Minute, 26*time.Hour + time.Millisecond}}),
	}
	for _, c := range configs() {
		strategies = append(strategies, newBucket(t, c))
	}
	for _, s := range strategies {
		for _, d := range destinations() {
			for _, delay := range []time.Duration{0, time.Minute, s.MaxDelay()} {
				r, err := s.Route(d, delay, 0)
				if err != nil {
					continue // the name is too long, or the delay is not declared
				}
				key, ok := dlx.DestinationKey(r.RoutingKey)
				if !ok || key != d.Key(topology.DefaultPrefix) {
					t.Fatalf("DestinationKey(%q) = %q, %t, want %q, true", r.RoutingKey, key, ok, d.Key(topology.DefaultPrefix))
				}
				got, ok := topology.DestinationOf(topology.DefaultPrefix, key)
				if hashed := d.ToExchange() && len(d.RoutingKey) > 100; ok == hashed || ok && got != d {
					t.Fatalf("DestinationOf(%q) = %+v, %t, want %+v, %t", key, got, ok, d, !hashed)
				}
			}
		}
	}
}

func TestDestinationKeyOfOthers(t *testing.T) {
	for _, key := range []string{
		"", "orders", "orders.expire", "clock", "clock.0.0", "clock.0.0.0.x.0.0.a", "clock-1.0.a", "r1.0.a",
		"r99999999999999999999.0.a", "ttl.1m", "native.1",
	} {
		if got, ok := dlx.DestinationKey(key); ok {
			t.Errorf("DestinationKey(%q) = %q, true, want false", key, got)
		}
	}
}
