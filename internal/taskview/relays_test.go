package taskview

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// A relay counts as running until 20 seconds after its last heartbeat. The text for a silent relay depends only on its
// last heartbeat, so it does not change over time.
func TestRelays(t *testing.T) {
	s, db := openStore(t, schedule.Config{})
	seen := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	_, err := db.ExecContext(t.Context(),
		"INSERT INTO rabbitdelay_relays (id, name, version, started_at, seen_at) VALUES ('a', 'shop:1', '0.1.0', ?, ?), ('b', 'old:2', '', 1, 1)",
		seen.Add(-time.Hour).UnixMilli(), seen.UnixMilli())
	check(t, err)
	list, err := s.Relays(t.Context())
	check(t, err)
	if len(list) != 2 {
		t.Fatalf("Relays: got %d relays %+v, want 2", len(list), list)
	}
	r := list[0]
	if want := (Relay{Name: "shop:1", Version: "0.1.0", Started: seen.Add(-time.Hour), Seen: seen}); r != want {
		t.Errorf("the first relay: got %+v, want %+v", r, want)
	}
	if !r.Running(seen.Add(20 * time.Second)) {
		t.Error("Running after 20 s: got false, want true")
	}
	if text := r.Silent(seen.Add(20 * time.Second)); text != "" {
		t.Errorf(`Silent after 20 s: got %q, want ""`, text)
	}
	if r.Running(seen.Add(21 * time.Second)) {
		t.Error("Running after 21 s: got true, want false")
	}
	want := "no heartbeat since 2026-11-25T12:00:00Z; the process has stopped, hangs or is disconnected; check host shop, pid 1"
	for _, later := range []time.Duration{time.Minute, time.Hour} {
		if text := r.Silent(seen.Add(later)); text != want {
			t.Errorf("Silent after %v: got %q, want %q", later, text, want)
		}
	}
}
