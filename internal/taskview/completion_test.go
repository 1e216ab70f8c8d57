package taskview

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// CompletionStats returns consecutive intervals from the given time on, with no gaps between them.
func TestEnded(t *testing.T) {
	s, db := openStore(t, schedule.Config{})
	from := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	end := from.Add(time.Minute).UnixMilli()
	_, err := db.ExecContext(t.Context(), "INSERT INTO rabbitdelay_tasks (id, queue, due_at, status, finished_at) VALUES ('a', 'q', ?, 'done', ?)", end, end)
	check(t, err)
	got, err := s.CompletionStats(t.Context(), from, time.Minute, 3)
	check(t, err)
	for i, e := range got {
		if want := from.Add(time.Duration(i) * time.Minute); !e.From.Equal(want) {
			t.Errorf("interval %d: got start %v, want %v", i, e.From, want)
		}
		if d := e.To.Sub(e.From); d != time.Minute {
			t.Errorf("interval %d: got length %v, want 1m", i, d)
		}
	}
	if got[1].Done != 1 {
		t.Errorf("the second minute: got %d tasks done, want 1", got[1].Done)
	}
	if _, err := s.CompletionStats(t.Context(), from, time.Microsecond, 1); err == nil {
		t.Error("CompletionStats with intervals of 1 µs: got nil, want an error")
	}
}

// Lateness interpolates within the bucket that contains the quantile.
func TestLatenessOfAShare(t *testing.T) {
	e := CompletionStats{Done: 100, Late: []int64{0, 0, 0, 0, 50, 0, 49, 1}}
	for share, want := range map[float64]time.Duration{
		0:    4 * time.Millisecond,
		0.25: 4500 * time.Microsecond,
		0.5:  5 * time.Millisecond,
		0.99: 7 * time.Millisecond,
		1:    8 * time.Millisecond,
	} {
		if got := e.Lateness(share); got != want {
			t.Errorf("Lateness(%v) = %v, want %v", share, got, want)
		}
	}
	late := make([]int64, 95)
	late[94] = 1
	if got := (CompletionStats{Done: 1, Late: late}).Lateness(0.5); got != 100_000*time.Second {
		t.Errorf("Lateness(0.5) with a task in the last bucket = %v, want %v", got, 100_000*time.Second)
	}
	if got := (CompletionStats{}).Lateness(0.5); got != 0 {
		t.Errorf("Lateness(0.5) without tasks = %v, want 0", got)
	}
}
