package suite

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/servers"
)

// Patience bounds every wait for something that must come.
const Patience = servers.Patience

// Eventually polls a condition that nothing announces, and fails the test if it does not
// hold within Patience.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	Within(t, Patience, what, condition)
}

// Within is Eventually with a limit of its own, for what takes minutes by design.
func Within(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("not within %v: %s", limit, what)
		case <-tick.C:
		}
	}
}

// MustSucceed fails the test for an error.
func MustSucceed(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
