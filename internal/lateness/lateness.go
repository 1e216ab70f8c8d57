// Package lateness measures how late messages arrive, for the reports of commands, benchmarks and the fault suite.
package lateness

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Record collects the lateness of messages in milliseconds. It keeps all values, so the percentiles are exact. It is
// safe for concurrent use, and its zero value is ready to use.
type Record struct {
	mu     sync.Mutex
	values []int64
	early  int
}

// Percentiles contains the median, the 99th percentile and the maximum of the lateness, in milliseconds.
type Percentiles struct {
	P50 int64 `json:"p50"`
	P99 int64 `json:"p99"`
	Max int64 `json:"max"`
}

// Add records a message that arrived at the time at and was due at the time due.
func (r *Record) Add(at, due time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	late := at.UnixMilli() - due.UnixMilli()
	r.values = append(r.values, late)
	if late < 0 {
		r.early++
	}
}

// Summary returns the percentiles and the number of early messages. Without any message, all of them are 0.
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

// Len returns the number of recorded messages.
func (r *Record) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.values)
}

// Percentile returns the nearest-rank percentile, which is the smallest value such that at least the given share of
// the values do not exceed it. The values must be sorted, and there must be at least one.
func Percentile[T any](sorted []T, share float64) T {
	const rounding = 1e-9 // makes 0.07 of 100 values 7 values, despite floating-point errors
	rank := int(math.Ceil(share*float64(len(sorted)) - rounding))
	return sorted[max(rank, 1)-1]
}
