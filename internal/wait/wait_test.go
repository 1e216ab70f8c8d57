package wait_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

func TestBackoffIsCappedAndGrows(t *testing.T) {
	lo, hi := 100*time.Millisecond, 10*time.Second
	for attempt := range 2000 {
		d := wait.Backoff(lo, hi, attempt)
		if d < lo/2 || d > hi {
			t.Fatalf("Backoff for attempt %d: got %v, want %v to %v", attempt, d, lo/2, hi)
		}
		if attempt > 10 && d < hi/2 {
			t.Fatalf("Backoff for attempt %d: got %v, want at least %v", attempt, d, hi/2)
		}
	}
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mutex := wait.NewMutex()
		if err := mutex.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		for name, waiting := range map[string]func(context.Context) error{
			"For":  func(ctx context.Context) error { return wait.For(ctx, time.Hour) },
			"Done": func(ctx context.Context) error { return wait.Done(ctx, func() error { <-release; return nil }) },
			"Lock": mutex.Lock,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			began := time.Now()
			if err := waiting(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
				t.Errorf("%s: got %v after %v, want context.DeadlineExceeded and 1s", name, err, time.Since(began))
			}
			cancel()
		}
		close(release)
		mutex.Unlock()
		if err := mutex.Lock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestDoneReturnsTheError(t *testing.T) {
	want := errors.New("refused")
	if err := wait.Done(t.Context(), func() error { return want }); !errors.Is(err, want) {
		t.Errorf("Done: got %v, want %v", err, want)
	}
	if err := wait.For(t.Context(), 0); err != nil {
		t.Errorf("For with a duration of 0: got %v, want no error", err)
	}
}
