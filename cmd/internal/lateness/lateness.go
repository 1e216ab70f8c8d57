// Package lateness measures how late messages come, as every command reports it.
package lateness

import (
	"slices"
	"sync"
	"time"
)

// Record collects how many milliseconds after their due instants messages came.
// All values are kept, so the percentiles are exact. It is safe for concurrent
// use, and its zero value is empty.
type Record struct {
	mu     sync.Mutex
	values []int64
	early  int
}

// Percentiles are in milliseconds.
type Percentiles struct {
	P50 int64 `json:"p50"`
	P99 int64 `json:"p99"`
	Max int64 `json:"max"`
}

// Add records a message that came at and was due at due.
func (r *Record) Add(at, due time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	late := at.UnixMilli() - due.UnixMilli()
	r.values = append(r.values, late)
	if late < 0 {
		r.early++
	}
}

// Summary gives the percentiles, all 0 without a value, and how many were early.
func (r *Record) Summary() (p Percentiles, early int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sorted := slices.Sorted(slices.Values(r.values))
	if len(sorted) == 0 {
		return Percentiles{}, 0
	}
	return Percentiles{
		P50: nearestRank(sorted, 50), P99: nearestRank(sorted, 99), Max: sorted[len(sorted)-1],
	}, r.early
}

// nearestRank is the smallest value that at least percent of all are not above.
func nearestRank(sorted []int64, percent int) int64 {
	rank := (percent*len(sorted) + 99) / 100
	return sorted[max(rank, 1)-1]
}
