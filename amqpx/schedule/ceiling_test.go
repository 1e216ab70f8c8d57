package schedule

import (
	"testing"
	"testing/synctest"
	"time"
)

// A rate limit that was changed by hand is kept when a relay starts with an unchanged configuration. If the value in
// the configuration has changed, it replaces the one that was set by hand.
func TestRateLimitChangedByHandStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, db := openStore(t, &recorder{}, Config{})
		defer func() { check(t, db.Close()) }()
		started := func(perSecond float64) float64 {
			t.Helper()
			if left := s.setRateLimits(t.Context(), []RateLimit{{Queue: "q", PerSecond: perSecond}}); len(left) > 0 {
				t.Errorf("setRateLimits did not write %v, want it to write all rate limits", left)
			}
			list, err := s.Destinations(t.Context(), NoTx)
			check(t, err)
			if len(list) == 0 {
				return 0
			}
			return list[0].PerSecond
		}
		byHand := func(perSecond float64) {
			t.Helper()
			check(t, s.SetRateLimit(t.Context(), NoTx, RateLimit{Queue: "q", PerSecond: perSecond}))
		}
		for _, step := range []struct {
			what     string
			by, file float64 // by is set by hand before the relay starts, unless it is negative
			want     float64
		}{
			{"the first start", -1, 50, 50},
			{"lowered in an incident", 5, 50, 5},
			{"restarted", -1, 50, 5},
			{"removed by hand", 0, 50, 0},
			{"a new value in the file", -1, 20, 20},
			{"removed from the file", -1, 0, 0},
		} {
			if step.by >= 0 {
				byHand(step.by)
			}
			if got := started(step.file); got != step.want {
				t.Errorf("%s: got the rate limit %v, want %v", step.what, got, step.want)
			}
			<-time.After(time.Second)
		}
	})
}
