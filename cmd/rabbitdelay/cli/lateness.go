package cli

import (
	"slices"
	"sync"
)

// lateness collects how many milliseconds after their due instants messages
// came. All values are kept, so the percentiles are exact. It is safe for
// concurrent use.
type lateness struct {
	mu     sync.Mutex
	values []int64
	early  int
}

// percentiles is the summary that every command prints.
type percentiles struct {
	P50 int64 `json:"p50"`
	P99 int64 `json:"p99"`
	Max int64 `json:"max"`
}

// add records a message that came at and was due at due, in epoch milliseconds.
func (l *lateness) add(at, due int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.values = append(l.values, at-due)
	if at < due {
		l.early++
	}
}

// summary gives the percentiles, all 0 without a value, and how many were early.
func (l *lateness) summary() (p percentiles, early int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sorted := slices.Sorted(slices.Values(l.values))
	if len(sorted) == 0 {
		return percentiles{}, l.early
	}
	return percentiles{
		P50: nearestRank(sorted, 50), P99: nearestRank(sorted, 99), Max: sorted[len(sorted)-1],
	}, l.early
}

// nearestRank is the smallest value that at least percent of all are not above.
func nearestRank(sorted []int64, percent int) int64 {
	rank := (percent*len(sorted) + 99) / 100
	return sorted[max(rank, 1)-1]
}
