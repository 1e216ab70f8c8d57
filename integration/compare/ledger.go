package main

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// ledger records which tasks were scheduled and when they were handled.
type ledger struct {
	effects bool // whether handlers with a database also write to the effects table

	mu        sync.Mutex
	scheduled map[int64]bool
	runs      map[int64]int
	late      []float64 // milliseconds of the first run of each task; negative if it was early
}

func newLedger() *ledger { return &ledger{scheduled: map[int64]bool{}, runs: map[int64]int{}} }

// forget removes all tasks.
func (l *ledger) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.scheduled, l.runs, l.late = map[int64]bool{}, map[int64]int{}, nil
}

// asked records that tasks were stored.
func (l *ledger) asked(list ...task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range list {
		l.scheduled[t.number] = true
	}
}

// handle is the handler of every contender.
func (l *ledger) handle(ctx context.Context, payload []byte, in execer) error {
	now := time.Now()
	t, err := taskOf(payload)
	if err != nil {
		return err
	}
	if l.effects && in != nil {
		if err := in(ctx, "INSERT INTO effects VALUES ($1)", t.number); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[t.number]++
	if l.runs[t.number] == 1 {
		l.late = append(l.late, float64(now.Sub(t.due).Microseconds())/1000)
	}
	return nil
}

// counts returns how many tasks were stored, and how many of them have not been handled.
func (l *ledger) counts() (stored, missing int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for number := range l.scheduled {
		if l.runs[number] == 0 {
			missing++
		}
	}
	return len(l.scheduled), missing
}

// wait waits until all stored tasks are handled, for at most the given time. It returns the number of missing
// tasks.
func (l *ledger) wait(ctx context.Context, patience time.Duration) (missing int, err error) {
	for deadline := time.Now().Add(patience); ; {
		if _, missing = l.counts(); missing == 0 || !time.Now().Before(deadline) {
			return missing, nil
		}
		if err := wait.For(ctx, 20*time.Millisecond); err != nil {
			return missing, err
		}
	}
}

// lateness returns the lateness of all tasks that were handled, sorted.
func (l *ledger) lateness() []float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(slices.Values(l.late))
}

// times returns how many times a handler ran for each task.
func (l *ledger) times() map[int64]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.runs)
}
