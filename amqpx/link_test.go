package amqpx

import (
	"errors"
	"testing"
	"time"
)

func TestBackoffIsCappedAndGrows(t *testing.T) {
	lo, hi := 100*time.Millisecond, 10*time.Second
	for attempt := range 2000 {
		d := backoff(lo, hi, attempt)
		if d < lo/2 || d > hi {
			t.Fatalf("attempt %d: %v", attempt, d)
		}
		if attempt > 10 && d < hi/2 {
			t.Fatalf("attempt %d: %v, want at least half the maximum", attempt, d)
		}
	}
}

func TestNothingAppliedIsFinal(t *testing.T) {
	err := errors.Join(errNotApplied)
	if !permanent(err) {
		t.Error("a client that may not declare waits for a layout")
	}
}
