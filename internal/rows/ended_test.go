package rows

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Each task counts in the interval in which it ended. Done tasks are also counted by their lateness, and the retries of
// done and failed tasks are added up.
func TestEnded(t *testing.T) {
	x := newTable(t)
	for i, tt := range []struct {
		status   string
		ended    time.Duration // after start
		late     time.Duration
		attempts int
	}{
		{Done, -time.Millisecond, 0, 9}, // before the time span
		{Done, 0, 0, 0},
		{Done, time.Second, 8 * time.Millisecond, 2},
		{Done, 59*time.Second + 999*time.Millisecond, 40 * 24 * time.Hour, 0},
		{Failed, time.Minute, time.Hour, 5},
		{Failed, time.Minute, time.Hour, 0},     // failed by a relay, without an attempt
		{Done, 90 * time.Second, -time.Hour, 0}, // done an hour early, by another clock
		{Cancelled, 90 * time.Second, 0, 0},
		{Done, 3 * time.Minute, 0, 9}, // after the time span
	} {
		id := fmt.Sprint(i)
		x.insert(toQ(id, tt.ended-tt.late))
		x.set(id, "status = ?, finished_at = ?, attempts = ?", tt.status, ms(tt.ended), tt.attempts)
	}
	x.insert(&Task{Content: Content{ID: "at 0", Queue: "q"}})
	x.set("at 0", "status = 'done', finished_at = ?, created_at = ?", ms(2*time.Minute), ms(2*time.Minute-20*time.Millisecond))
	spans, err := x.Ended(t.Context(), start, time.Minute.Milliseconds(), 3)
	check(t, err)
	for i, expected := range []string{"3 done, 0 failed, 2 retries [0 7 94]", "1 done, 2 failed, 4 retries [0]", "1 done, 0 failed, 0 retries [13]"} {
		e := spans[i]
		var classes []int
		for class, n := range e.Late {
			classes = append(classes, slices.Repeat([]int{class}, int(n))...)
		}
		want(t, fmt.Sprintf("minute %d", i), fmt.Sprintf("%d done, %d failed, %d retries %v", e.Done, e.Failed, e.Retries, classes), expected)
	}
}

// The bounds of the histogram of lateness increase from 1 ms to more than a day.
func TestLateBounds(t *testing.T) {
	if !slices.IsSorted(LateBounds) {
		t.Errorf("LateBounds is %v, want it sorted", LateBounds)
	}
	want(t, "number of bounds", len(LateBounds), "94")
	want(t, "the first bound", LateBounds[0], "1ms")
	want(t, "the last bound", LateBounds[93], "27h46m40s")
}

// CountRetried counts pending, overdue tasks with at least one failed attempt.
func TestCountRetried(t *testing.T) {
	x := newTable(t)
	for i, tt := range []struct {
		status   string
		due      time.Duration
		attempts int
	}{{Pending, -time.Hour, 1}, {Pending, -time.Minute, 3}, {Pending, -time.Second, 0}, {Pending, time.Hour, 1}, {Failed, -time.Hour, 3}, {Done, -time.Hour, 2}} {
		id := fmt.Sprint(i)
		x.insert(toQ(id, tt.due))
		x.set(id, "status = ?, finished_at = ?, attempts = ?", tt.status, start, tt.attempts)
	}
	for most, expected := range map[int64]string{100: "2", 1: "1"} {
		n, err := x.CountRetried(t.Context(), start, most)
		check(t, err)
		want(t, fmt.Sprintf("retried, with the limit %d", most), n, expected)
	}
}
