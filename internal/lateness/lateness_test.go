package lateness

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestLateness(t *testing.T) {
	for _, c := range []struct {
		values []int64
		want   Percentiles
		early  int
	}{
		{nil, Percentiles{}, 0},
		{[]int64{7}, Percentiles{7, 7, 7}, 0},
		{[]int64{3, 1}, Percentiles{1, 3, 3}, 0},
		{[]int64{1, 2, 3}, Percentiles{2, 3, 3}, 0},
		{[]int64{-1, 0, 5}, Percentiles{0, 5, 5}, 1},
		{[]int64{-3, -2}, Percentiles{-3, -2, -2}, 2},
	} {
		var r Record
		for _, v := range c.values {
			r.Add(time.UnixMilli(1000+v), time.UnixMilli(1000))
		}
		if got, early := r.Summary(); got != c.want || early != c.early {
			t.Errorf("Summary of %v: got %+v and %d early, want %+v and %d", c.values, got, early, c.want, c.early)
		}
	}
	// If the values are 1 to 1000 in any order, the value at n per mille is n.
	var r Record
	for _, i := range rand.Perm(1000) {
		r.Add(time.UnixMilli(int64(i)+1), time.UnixMilli(0))
	}
	if got, _ := r.Summary(); got != (Percentiles{500, 990, 1000}) {
		t.Errorf("Summary of 1 to 1000: got %+v, want %+v", got, Percentiles{500, 990, 1000})
	}
}

// In n consecutive values from 1, the value at the share k/n is k.
func TestPercentile(t *testing.T) {
	for _, n := range []int{100, 1000} {
		values := make([]int, n)
		for i := range values {
			values[i] = i + 1
		}
		for _, want := range values {
			if got := Percentile(values, float64(want)/float64(n)); got != want {
				t.Errorf("share %d/%d: got value %d, want %d", want, n, got, want)
			}
		}
		if got := Percentile(values, 0); got != 1 {
			t.Errorf("share 0 of %d values: got %d, want 1", n, got)
		}
	}
}
