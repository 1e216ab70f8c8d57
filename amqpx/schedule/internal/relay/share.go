package relay

import (
	"cmp"
	"slices"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// shares divides n rows among lanes as evenly as possible. got has how many rows each lane has
// already, and most how many more it can take. A remainder goes to the first lanes.
func shares(n int, got, most []int) []int {
	out := make([]int, len(most))
	var open []int // lanes that can take more
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

// fitting returns the picks that fit into the given number of bytes, and at least one. It takes the
// first pick of every wish, then the second of every wish, and so on. It stops with a wish at the
// first pick that does not fit, so that small tasks cannot overtake a large one forever.
func fitting(bytes int64, picks []rows.Pick) []rows.Pick {
	place := make([]int, len(picks)) // the position of a pick within its wish
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
