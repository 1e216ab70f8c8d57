package cli

import (
	"math/rand/v2"
	"testing"
)

func TestLateness(t *testing.T) {
	for _, c := range []struct {
		values []int64
		want   percentiles
		early  int
	}{
		{nil, percentiles{}, 0},
		{[]int64{7}, percentiles{7, 7, 7}, 0},
		{[]int64{3, 1}, percentiles{1, 3, 3}, 0},
		{[]int64{1, 2, 3}, percentiles{2, 3, 3}, 0},
		{[]int64{-1, 0, 5}, percentiles{0, 5, 5}, 1},
		{[]int64{-3, -2}, percentiles{-3, -2, -2}, 2},
	} {
		var l lateness
		for _, v := range c.values {
			l.add(1000+v, 1000)
		}
		if got, early := l.summary(); got != c.want || early != c.early {
			t.Errorf("%v: got %+v, %d early; want %+v, %d early", c.values, got, early, c.want, c.early)
		}
	}
	// Of 1 to 1000, in any order, each is its own per mille.
	var l lateness
	for _, i := range rand.Perm(1000) {
		l.add(int64(i)+1, 0)
	}
	if got, _ := l.summary(); got != (percentiles{500, 990, 1000}) {
		t.Errorf("got %+v", got)
	}
}
