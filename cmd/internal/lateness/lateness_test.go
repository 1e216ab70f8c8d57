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
			t.Errorf("%v: got %+v, %d early; want %+v, %d early", c.values, got, early, c.want, c.early)
		}
	}
	// Of 1 to 1000, in any order, each is its own per mille.
	var r Record
	for _, i := range rand.Perm(1000) {
		r.Add(time.UnixMilli(int64(i)+1), time.UnixMilli(0))
	}
	if got, _ := r.Summary(); got != (Percentiles{500, 990, 1000}) {
		t.Errorf("got %+v", got)
	}
}
