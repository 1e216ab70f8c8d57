package suite

import (
	"testing"
	"time"
)

// Eventually polls until the condition holds.
func Eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("not within two minutes: %s", what)
		case <-tick.C:
		}
	}
}

// MustSucceed fails the test for an error.
func MustSucceed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
