package schedule

import (
	"testing"
	"testing/synctest"
	"time"
)

// A rate limit that was changed by hand stays when a relay starts whose configuration has the value that was in effect
// before the change. It is replaced if the configuration has a different value.
func TestRateLimitChangedByHandStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, db := openStore(t, &recorder{}, Config{})
		defer func() { check(t, db.Close()) }()
		started := func(perSecond float64) float64 {
			t.Helper()
			if left := s.setRateLimits(t.Context(), []RateLimit{{Queue: "q", PerSecond: perSecond}}); len(left) > 0 {
				t.Errorf("these rate limits were not written: %v", left)
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
			by, file float64 // by is set by hand before the start, unless it is negative
			want     float64
		}{
			{"the first start", -1, 50, 50},
			{"lowered in an incident", 5, 50, 5},
			{"the same again", -1, 50, 5},
			{"taken away", 0, 50, 0},
			{"another one in the file", -1, 20, 20},
			{"none in the file any more", -1, 0, 0},
		} {
			if step.by >= 0 {
				byHand(step.by)
			}
			if got := started(step.file); got != step.want {
				t.Errorf("%s: %v a second, want %v", step.what, got, step.want)
			}
			<-time.After(time.Second)
		}
	})
}
