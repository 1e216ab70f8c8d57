package broker

import (
	"strings"
	"testing"
	"time"
)

// A node's clock can be set before its start and while it is running.
func TestClock(t *testing.T) {
	needSource(t, Node)
	if path, reason := FaketimeAvailable(); path == "" {
		t.Skipf("skipped: %s", reason)
	}
	t.Parallel()
	b, err := Start(t.Context(), Options{Source: Node, Clock: -time.Hour, Log: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	traces := tracesOf(b)
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		traces.eventuallyGone(t)
	}()
	ahead(t, b, -time.Hour)
	if err := b.SetClock(10 * time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	ahead(t, b, 10*time.Minute)
	if err := b.SetClock(2 * time.Hour); err != nil {
		t.Fatal(err)
	}
	ahead(t, b, 2*time.Hour)
}

// ahead waits until a broker's clock is ahead of the machine's by the given duration, and fails the test after ten
// reads.
func ahead(t *testing.T, b *Broker, want time.Duration) {
	t.Helper()
	for try := 0; ; try++ {
		before := time.Now()
		out, err := b.Ctl(t.Context(), "--silent", "eval", "calendar:system_time_to_rfc3339(os:system_time(millisecond), [{unit, millisecond}]).")
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, strings.Trim(strings.TrimSpace(out), `"`))
		if err != nil {
			t.Fatal(err)
		}
		if !at.Before(before.Add(want-time.Second)) && !at.After(time.Now().Add(want+time.Second)) {
			return
		}
		if try == 10 {
			t.Fatalf("the broker's clock shows %v at %v, want it %v ahead", at, before, want)
		}
	}
}
