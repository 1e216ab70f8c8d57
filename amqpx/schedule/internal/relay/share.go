package relay

import (
	"cmp"
	"slices"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// shares divides n rows among lanes that have got some: as evenly as their wishes for more
// allow, what does not divide to the first ones.
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

// fitting leaves of picks what fits into so many bytes, at least one: the first of every
// lane, then the second of every lane, and so on. A lane ends with the first that does not
// fit, so that no task overtakes another of its lane for ever.
func fitting(bytes int64, picks []rows.Pick) []rows.Pick {
	place := make([]int, len(picks)) // of a pick in its lane
	seen := map[int]int{}
	order := make([]int, len(picks))
	for i, p := range picks {
		order[i], place[i] = i, seen[p.Wish]
		seen[p.Wish]++
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(place[i], place[j]) })
	var kept []rows.Pick
	full := map[int]bool{}
	for _, i := range order {
		p := picks[i]
		if full[p.Wish] = full[p.Wish] || p.Size > bytes && len(kept) > 0; !full[p.Wish] {
			kept = append(kept, p)
			bytes -= p.Size
		}
	}
	return kept
}
