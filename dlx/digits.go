package dlx

import "time"

// digits is a number of resolutions, written in a layout. Only the first
// len(layout.radices) are used.
type digits [maxPositions]int64

// roundUp is the delay in whole resolutions, never less than the delay.
func (l *layout) roundUp(delay time.Duration) int64 {
	n := int64(delay / l.resolution)
	if delay%l.resolution != 0 {
		n++
	}
	return n
}

// within is the largest number of resolutions that is no longer than delay +
// tolerance, but at least lo and at most the layout's maximum.
func (l *layout) within(lo int64, delay, tolerance time.Duration) int64 {
	end := delay + tolerance
	if end < delay { // overflow
		return l.max
	}
	return min(max(lo, int64(end/l.resolution)), l.max)
}

// number is a delay as a number of resolutions, with its digits and how many of
// them are not 0: of those that the tolerance allows the one with the fewest. It is
// false when the delay has more digits than the layout.
func (l *layout) number(delay, tolerance time.Duration) (n int64, d digits, hops int, ok bool) {
	n = l.roundUp(delay)
	switch {
	case n > l.max:
		return 0, d, 0, false
	case tolerance == 0:
		d, hops = l.write(n)
	default:
		n, d, hops = l.fewestHops(n, l.within(n, delay, tolerance))
	}
	return n, d, hops, true
}

// write returns the digits of n and how many of them are not 0, which is the
// number of queues that the message passes through.
func (l *layout) write(n int64) (d digits, hops int) {
	for i := len(l.radices) - 1; i >= 0 && n > 0; i-- {
		d[i] = n / l.units[i]
		n -= d[i] * l.units[i]
		if d[i] != 0 {
			hops++
		}
	}
	return d, hops
}

// fewestHops returns the number from lo to hi with the fewest digits other than
// 0, and of those the smallest.
//
// Only lo itself and lo rounded up to each position can be that number: a larger
// one differs from lo first at some position, where its digit is larger; the
// digits below cost hops unless they are 0, which is lo rounded up to that
// position or something no better. Each rounding clears the lowest digit that
// is not 0 and may set at most one, so the hops never grow on the way.
func (l *layout) fewestHops(lo, hi int64) (best int64, d digits, hops int) {
	cur, n := l.write(lo)
	best, d, hops = lo, cur, n
	value := lo
	for i := range len(l.radices) - 1 {
		if cur[i] == 0 {
			continue
		}
		value += (l.radices[i] - cur[i]) * l.units[i]
		if value > hi {
			break
		}
		cur[i] = 0
		n--
		// hi <= max, so a carry never leaves the highest position.
		for j := i + 1; ; j++ {
			if cur[j] == 0 {
				n++
			}
			cur[j]++
			if cur[j] < l.radices[j] {
				break
			}
			cur[j] = 0
			n--
		}
		if n < hops {
			best, d, hops = value, cur, n
		}
	}
	return best, d, hops
}
