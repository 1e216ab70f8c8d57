// Package lateness measures how late messages come, as commands, benchmarks and the fault suite report it.
package lateness

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Record collects how many milliseconds after their due instants messages came. All values are kept, so the
// percentiles are exact. It is safe for concurrent use, and its zero value is empty.
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

// Summary returns the percentiles, all 0 without a value, and how many messages were early.
func (r *Record) Summary() (p Percentiles, early int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sorted := slices.Sorted(slices.Values(r.values))
	if len(sorted) == 0 {
		return Percentiles{}, 0
	}
	return Percentiles{
		P50: Percentile(sorted, 0.5), P99: Percentile(sorted, 0.99), Max: sorted[len(sorted)-1],
	}, r.early
}

// Percentile returns the nearest rank: the smallest value that is not exceeded by at
// least that share of all. The values are sorted, and there is at least one.
func Percentile[T any](sorted []T, share float64) T {
	const rounding = 1e-9 // 0.07 of 100 is 7, and not a little more
	rank := int(math.Ceil(share*float64(len(sorted)) - rounding))
	return sorted[max(rank, 1)-1]
}
