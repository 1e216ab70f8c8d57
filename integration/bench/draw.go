package bench

import (
	"math/rand/v2"
	"time"
)

// span is a range of delays, both ends included.
type span struct{ lo, hi time.Duration }

// chance is what the i-th message of any pass has: the same in each run.
func chance(i int) rand.PCG {
	var p rand.PCG
	p.Seed(27, uint64(i))
	return p
}

// at is the delay of the i-th message: whole milliseconds of the span, evenly.
func (s span) at(i int) time.Duration {
	p := chance(i)
	return s.draw(&p)
}

func (s span) draw(p *rand.PCG) time.Duration {
	n := uint64((s.hi - s.lo).Milliseconds()) + 1
	return s.lo + time.Duration(p.Uint64()%n)*time.Millisecond
}

// remaining is what is left of the delay of the i-th message of those that are
// met waiting: of longer delays more are waiting.
func (s span) remaining(i int) time.Duration {
	p := chance(i)
	for {
		whole := s.draw(&p)
		if (span{0, s.hi}).draw(&p) < whole {
			return span{time.Millisecond, whole}.draw(&p)
		}
	}
}
