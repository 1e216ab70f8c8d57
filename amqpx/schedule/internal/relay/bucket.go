package relay

import (
	"math"
	"time"
)

// bucket is a rate limiter that uses the generic cell rate algorithm. In any second it allows at most the number of
// tasks given by the rate, plus one burst. Times are nanoseconds since the Unix epoch.
type bucket struct {
	interval int64 // interval between two tasks at the rate
	burst    int
	free     int64 // earliest time of the next task at the even rate, ignoring the burst
}

func newBucket(perSecond float64, burst int, free int64) *bucket {
	return &bucket{int64(math.Ceil(float64(time.Second) / perSecond)), burst, free}
}

// slack returns how far ahead of the rate a burst may be.
func (b *bucket) slack() int64 { return int64(b.burst-1) * b.interval }

// opens returns the earliest time at which the next task may be sent, taking the burst into account.
func (b *bucket) opens() int64 { return b.free - b.slack() }

// fits returns how many tasks are allowed between now and until.
func (b *bucket) fits(now, until int64) int {
	left := until + b.slack() - max(b.free, now)
	if left < 0 {
		return 0
	}
	return int(min(left/b.interval+1, math.MaxInt32))
}

// take reserves a delivery time for one task and returns it: the earliest time that the limiter allows and that is not
// before the parameter release.
func (b *bucket) take(release int64) int64 {
	at := max(release, b.opens())
	b.free = max(b.free, at) + b.interval
	return at
}
