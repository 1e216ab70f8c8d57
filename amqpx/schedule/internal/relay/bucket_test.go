package relay

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whenever tasks arrive, at most one burst plus one second's rate of tasks are sent within any second. fits agrees
// with take: the tasks that fit are sent in time, and another one would not be.
func TestBucketSpacesTasks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Float64Range(0.5, 2000).Draw(t, "rate")
		burst := rapid.IntRange(1, 300).Draw(t, "burst")
		b := newBucket(rate, burst, 0)
		now := time.Unix(1_700_000_000, 0).UnixNano()
		var slots []int64
		for range rapid.IntRange(1, 20).Draw(t, "claims") {
			now += rapid.Int64Range(0, int64(3*time.Second)).Draw(t, "later")
			until := now + int64(gateAhead)
			room := b.fits(now, until)
			n := min(room, rapid.IntRange(0, 500).Draw(t, "tasks"))
			for i := range n {
				at := b.take(now)
				if at < now || at > until {
					t.Fatalf("task %d of the %d that fit is sent in %v, want 0s to %v", i, room, time.Duration(at-now), time.Duration(until-now))
				}
				slots = append(slots, at)
			}
			if n == room && b.opens() <= until {
				t.Fatalf("after all %d tasks that fit, the next free time is in %v, want after %v", room, time.Duration(b.opens()-now), time.Duration(until-now))
			}
		}
		most := int(rate) + 1 + burst
		for i, j := 0, 0; j < len(slots); j++ {
			for slots[j]-slots[i] >= int64(time.Second) {
				i++
			}
			if j-i+1 > most {
				t.Fatalf("the bucket: got %d tasks within a second, want at most %d", j-i+1, most)
			}
		}
	})
}
