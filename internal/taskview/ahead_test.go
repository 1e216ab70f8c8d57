package taskview

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// SentAhead counts the tasks that were sent but are not due yet, and returns the times at which the first and the last
// of them are sent again if they are lost.
func TestSentAhead(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	s, db := openStore(t, schedule.Config{DatabaseNow: func() time.Time { return now }})
	count := func(limit int64) SentTasks {
		t.Helper()
		n, err := s.SentAhead(t.Context(), time.Minute, 30*time.Second, limit)
		check(t, err)
		return n
	}
	for i, in := range []time.Duration{90 * time.Second, 10 * time.Minute, 20 * time.Minute, 48 * time.Hour} {
		check(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: fmt.Sprint(i), Queue: "q", DeliverAt: now.Add(in)}))
	}
	if n := count(10); n != (SentTasks{}) {
		t.Errorf("SentAhead before a task was sent: got %+v, want %+v", n, SentTasks{})
	}
	_, err := db.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET sends = 1, sent_at = ?, resend_at = due_at + 120000 WHERE id < '3'", now.UnixMilli())
	check(t, err)
	if n := count(10); n != (SentTasks{}) {
		t.Errorf("SentAhead within 30 s after tasks were sent: got %+v, want %+v", n, SentTasks{})
	}
	sent := now
	now = now.Add(40 * time.Second) // the first task is due in less than a minute
	want := SentTasks{2, sent.Add(12 * time.Minute), sent.Add(22 * time.Minute)}
	if n := count(10); n != want {
		t.Errorf("SentAhead: got %+v, want %+v", n, want)
	}
	if n := count(1); n.Tasks != 1 || !n.ResendTo.Equal(want.ResendFrom) {
		t.Errorf("SentAhead with a limit of 1: got %+v, want 1 task that is sent again at %v", n, want.ResendFrom)
	}
	if _, err := s.SentAhead(t.Context(), time.Minute, 0, 0); !errors.Is(err, schedule.ErrConfig) {
		t.Errorf("SentAhead with a limit of 0: got %v, want schedule.ErrConfig", err)
	}
}

// CountRetried counts due tasks that have had a failed attempt.
func TestCountRetried(t *testing.T) {
	s, db := openStore(t, schedule.Config{})
	check(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "a", Queue: "q", DeliverAt: time.Now().Add(-time.Minute)}))
	_, err := db.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET attempts = 1")
	check(t, err)
	n, err := s.CountRetried(t.Context(), 10)
	check(t, err)
	if n != 1 {
		t.Errorf("CountRetried = %d, want 1", n)
	}
}
