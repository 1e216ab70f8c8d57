package schedule

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Each task counts in the span in which it ended, by its lateness; a failed one has
// retries and no lateness.
func TestEnded(t *testing.T) {
	s, db := openStore(t, nil, Config{})
	defer func() { check(t, db.Close()) }()
	from := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for i, x := range []struct {
		status   string
		ended    time.Duration // after from
		late     time.Duration
		attempts int
	}{
		{"done", -time.Millisecond, 0, 9}, // before
		{"done", 0, 0, 0},
		{"done", time.Second, 8 * time.Millisecond, 2},
		{"done", 59*time.Second + 999*time.Millisecond, 40 * 24 * time.Hour, 0},
		{"failed", time.Minute, time.Hour, 5},
		{"failed", time.Minute, time.Hour, 0},     // by a relay
		{"done", 90 * time.Second, -time.Hour, 0}, // by the clock of somebody else
		{"cancelled", 90 * time.Second, 0, 0},
		{"done", 3 * time.Minute, 0, 9}, // after
	} {
		end := from.Add(x.ended).UnixMilli()
		_, err := db.ExecContext(t.Context(), "INSERT INTO rabbitdelay_tasks (id, queue, due_at, status, finished_at, attempts) VALUES (?, 'q', ?, ?, ?, ?)", fmt.Sprint(i), end-x.late.Milliseconds(), x.status, end, x.attempts)
		check(t, err)
	}
	_, err := db.ExecContext(t.Context(), "INSERT INTO rabbitdelay_tasks (id, queue, due_at, status, finished_at, created_at) VALUES ('at once', 'q', 0, 'done', ?, ?)", from.Add(2*time.Minute).UnixMilli(), from.Add(2*time.Minute-20*time.Millisecond).UnixMilli())
	check(t, err)
	got, err := s.Ended(t.Context(), NoTx, from, time.Minute, 3)
	check(t, err)
	class := func(e Ends) (list []int) {
		for i, n := range e.Late {
			list = append(list, slices.Repeat([]int{i}, int(n))...)
		}
		return list
	}
	for i, want := range []string{"3 done 0 failed 2 retries [0 7 94]", "1 done 2 failed 4 retries [0]", "1 done 0 failed 0 retries [13]"} {
		e := got[i]
		if have := fmt.Sprintf("%d done %d failed %d retries %v", e.Done, e.Failed, e.Retries, class(e)); have != want || !e.From.Equal(from.Add(time.Duration(i)*time.Minute)) || e.To.Sub(e.From) != time.Minute {
			t.Errorf("minute %d: %s, expected %s (%v to %v)", i, have, want, e.From, e.To)
		}
	}
	if _, err := s.Ended(t.Context(), NoTx, from, time.Microsecond, 1); err == nil {
		t.Error("a span of a microsecond is taken")
	}
}

// The lateness of a share lies within the class in which it falls.
func TestLatenessOfAShare(t *testing.T) {
	e := Ends{Done: 100, Late: []int64{0, 0, 0, 0, 50, 0, 49, 1}}
	for share, want := range map[float64]time.Duration{0: 4 * time.Millisecond, 0.25: 4500 * time.Microsecond, 0.5: 5 * time.Millisecond, 0.99: 7 * time.Millisecond, 1: 8 * time.Millisecond} {
		if got := e.Lateness(share); got != want {
			t.Errorf("%v: %v, expected %v", share, got, want)
		}
	}
	late := make([]int64, 95)
	late[94] = 1
	if got := (Ends{Done: 1, Late: late}).Lateness(0.5); got != 100_000*time.Second {
		t.Errorf("beyond all: %v", got)
	}
	if got := (Ends{}).Lateness(0.5); got != 0 {
		t.Errorf("of none: %v", got)
	}
}

// A task counts as tried again from its first failed attempt until its end.
func TestCountRetried(t *testing.T) {
	s, db := openStore(t, nil, Config{})
	defer func() { check(t, db.Close()) }()
	now := time.Now()
	for i, x := range []struct {
		status   string
		due      time.Duration
		attempts int
	}{{"pending", -time.Hour, 1}, {"pending", -time.Minute, 3}, {"pending", -time.Second, 0}, {"pending", time.Hour, 1}, {"failed", -time.Hour, 3}, {"done", -time.Hour, 2}} {
		_, err := db.ExecContext(t.Context(), "INSERT INTO rabbitdelay_tasks (id, queue, due_at, status, finished_at, attempts) VALUES (?, 'q', ?, ?, ?, ?)", fmt.Sprint(i), now.Add(x.due).UnixMilli(), x.status, now.UnixMilli(), x.attempts)
		check(t, err)
	}
	for limit, want := range map[int64]int64{100: 2, 1: 1} {
		if n, err := s.CountRetried(t.Context(), NoTx, limit); n != want || err != nil {
			t.Errorf("of %d: %d, %v", limit, n, err)
		}
	}
}
