package relay

import (
	"cmp"
	"slices"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// shares divides n rows among lanes as evenly as possible. got[i] is the number of rows that lane i already has, and
// most[i] is the number of further rows that it can take. A remainder goes to the first lanes.
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

// fitting returns the candidates that fit into the given number of bytes, and at least one. It takes the first
// candidate of every request, then the second of every request, and so on. If a candidate does not fit, the later
// candidates of that request are not considered, so that small tasks cannot overtake a large one forever.
func fitting(bytes int64, candidates []rows.Candidate) []rows.Candidate {
	place := make([]int, len(candidates)) // the position of a candidate within its request
	seen := map[int]int{}
	order := make([]int, len(candidates))
	for i, p := range candidates {
		order[i], place[i] = i, seen[p.Request]
		seen[p.Request]++
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(place[i], place[j]) })
	var kept []rows.Candidate
	full := map[int]bool{}
	for _, i := range order {
		p := candidates[i]
		if full[p.Request] = full[p.Request] || p.Size > bytes && len(kept) > 0; !full[p.Request] {
			kept = append(kept, p)
			bytes -= p.Size
		}
	}
	return kept
}
