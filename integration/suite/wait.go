package suite

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/servers"
)

// Patience is the timeout for everything that a test waits for.
const Patience = servers.Patience

// Eventually polls the condition, and fails the test if it does not become true within Patience. what describes the
// condition for the failure message.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	Within(t, Patience, what, condition)
}

// Within is Eventually with a different timeout, for conditions that take minutes by design.
func Within(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("condition not met within %v: %s", limit, what)
		case <-tick.C:
		}
	}
}

// MustSucceed fails the test if err is not nil.
func MustSucceed(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
