package schedule

import (
	"cmp"
	"slices"
)

// wish is what may be claimed of a lane: rows whose instant is not after until.
type wish struct {
	lane
	until int64
	most  int // rows

	narrow string // a further condition,
	args   []any  // and its arguments
}

// shares divides n rows among lanes that have got some: as evenly as their wishes
// for more allow, what does not divide to the first ones.
func shares(n int, got, most []int) []int {
	out := make([]int, len(most))
	var open []int // lanes that take more
	for i := range most {
		if most[i] > 0 {
			open = append(open, i)
		}
	}
	for level := 1; n > 0 && len(open) > 0; level++ {
		left := open[:0]
		for _, i := range open {
			if n > 0 && got[i]+out[i] < level {
				out[i]++
				n--
			}
			if out[i] < most[i] {
				left = append(left, i)
			}
		}
		open = left
	}
	return out
}

// within leaves of picks what fits into so many bytes, at least one: the first of
// every lane, then the second of every lane, and so on. A lane ends with the first
// that does not fit, so that no task overtakes another of its lane for ever.
func within(bytes int64, picks []pick) []pick {
	place := make([]int, len(picks)) // of a pick in its lane
	seen := map[int]int{}
	order := make([]int, len(picks))
	for i, p := range picks {
		order[i], place[i] = i, seen[p.lane]
		seen[p.lane]++
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(place[i], place[j]) })
	var kept []pick
	ended := map[int]bool{}
	for _, i := range order {
		p := picks[i]
		if ended[p.lane] = ended[p.lane] || p.size > bytes && len(kept) > 0; !ended[p.lane] {
			kept = append(kept, p)
			bytes -= p.size
		}
	}
	return kept
}

// turns orders lanes so that whoever got the least of the last claim comes first,
// and of those whoever has waited longest.
func turns(list []waiting, got map[lane]int) []waiting {
	return slices.SortedFunc(slices.Values(list), func(a, b waiting) int {
		return cmp.Or(cmp.Compare(got[a.lane], got[b.lane]), cmp.Compare(a.first, b.first),
			cmp.Compare(a.queue, b.queue), cmp.Compare(a.exchange, b.exchange))
	})
}
