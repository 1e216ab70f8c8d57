package relay

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

func TestShares(t *testing.T) {
	for _, c := range []struct {
		n         int
		got, most []int
		want      []int
	}{
		{10, nil, nil, []int{}},
		{10, []int{0}, []int{100}, []int{10}},
		{10, []int{0}, []int{3}, []int{3}},
		{10, []int{0, 0}, []int{100, 100}, []int{5, 5}},
		{11, []int{0, 0}, []int{100, 100}, []int{6, 5}},
		{10, []int{0, 0}, []int{2, 100}, []int{2, 8}},
		{10, []int{0, 0, 0, 0}, []int{100, 1, 100, 2}, []int{4, 1, 3, 2}},
		{2, []int{0, 0, 0}, []int{9, 9, 9}, []int{1, 1, 0}},
		{10, []int{0, 0}, []int{0, 9}, []int{0, 9}},
		{4, []int{5, 3, 0}, []int{9, 9, 0}, []int{1, 3, 0}},
		{2, []int{1, 1, 0, 0}, []int{9, 9, 9, 9}, []int{0, 0, 1, 1}},
	} {
		if got := shares(c.n, c.got, c.most); !slices.Equal(got, c.want) {
			t.Errorf("shares(%d, %v, %v) = %v, want %v", c.n, c.got, c.most, got, c.want)
		}
	}
}

// The shares exceed neither the available rows nor a request, and they use all rows that are requested. A lane (the
// tasks for one destination) that gets less than it requested has at most one row fewer than any other lane that gets
// some.
func TestSharesAreFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 50).Draw(t, "n")
		most := rapid.SliceOfN(rapid.IntRange(0, 20), 0, 10).Draw(t, "most")
		had := rapid.SliceOfN(rapid.IntRange(0, 20), len(most), len(most)).Draw(t, "had")
		got := shares(n, had, most)
		sum, wanted := 0, 0
		for i := range most {
			sum += got[i]
			wanted += most[i]
			if got[i] < 0 || got[i] > most[i] {
				t.Fatalf("lane %d: got %d rows, want 0 to %d", i, got[i], most[i])
			}
			for j := range most {
				if got[i] < most[i] && got[j] > 0 && had[j]+got[j] > had[i]+got[i]+1 {
					t.Fatalf("shares(%d, %v, %v) = %v, want lane %d to get at least as much as lane %d", n, had, most, got, i, j)
				}
			}
		}
		if sum != min(n, wanted) {
			t.Fatalf("shares: got %d rows in total for lanes that request %v, want %d", sum, most, min(n, wanted))
		}
	})
}

func TestFittingBytes(t *testing.T) {
	p := func(request int, id string, size int64) rows.Candidate {
		return rows.Candidate{Request: request, ID: id, Size: size}
	}
	for _, c := range []struct {
		bytes      int64
		candidates []rows.Candidate
		want       []rows.Candidate
	}{
		{10, nil, nil},
		{10, []rows.Candidate{p(0, "a", 11)}, []rows.Candidate{p(0, "a", 11)}},
		{10, []rows.Candidate{p(0, "a", 4), p(0, "b", 4), p(0, "c", 4), p(0, "d", 1)}, []rows.Candidate{p(0, "a", 4), p(0, "b", 4)}},
		{10, []rows.Candidate{p(0, "a", 4), p(0, "b", 4), p(1, "c", 4)}, []rows.Candidate{p(0, "a", 4), p(1, "c", 4)}},
		{10, []rows.Candidate{p(0, "a", 9), p(1, "b", 2), p(2, "c", 1), p(2, "d", 0)}, []rows.Candidate{p(0, "a", 9), p(2, "c", 1), p(2, "d", 0)}},
		{10, []rows.Candidate{p(0, "a", 11), p(1, "b", 1)}, []rows.Candidate{p(0, "a", 11)}},
	} {
		if got := fitting(c.bytes, c.candidates); !slices.Equal(got, c.want) {
			t.Errorf("fitting(%d, %v) = %v, want %v", c.bytes, c.candidates, got, c.want)
		}
	}
}
