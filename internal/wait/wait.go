// Package wait contains the functions with which this module waits: for a duration, for a call that may hang, for a
// lock whose holder may hang, and with back-off between attempts. It is independent of what the caller waits for.
package wait

import (
	"context"
	"math/rand/v2"
	"time"
)

// For waits for the duration d. It returns early, with the context's error, when ctx ends.
func For(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Done runs f, which may hang on a broker that has stopped reading, and returns its error. When ctx ends first, Done
// returns the context's error, and f continues in its goroutine until it returns.
func Done(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- f() }()
	return Result(ctx, done)
}

// Value is like Done, for a function that returns a value. It returns the zero value when ctx ends first.
func Value[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return zero, ctx.Err()
	}
}

// Result returns the error received from done, or the context's error when ctx ends first.
func Result(ctx context.Context, done <-chan error) error {
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Backoff returns the pause after an attempt, counted from 1. The pause doubles with each attempt, from lo up to hi.
// The result is a random duration in the upper half of that pause, so that many clients do not retry at the same
// moment.
func Backoff(lo, hi time.Duration, attempt int) time.Duration {
	d := hi
	if shift := max(attempt, 1) - 1; shift < 32 && lo<<shift>>shift == lo && lo<<shift < hi {
		d = lo << shift
	}
	return d/2 + rand.N(d/2+1)
}

// Mutex is a lock that supports contexts: a caller stops waiting when its context ends. It is for locks whose holder
// may be waiting for a broker that does not answer. Use NewMutex to create one.
type Mutex chan struct{}

// NewMutex returns an unlocked Mutex.
func NewMutex() Mutex { return make(Mutex, 1) }

// Lock returns nil once the caller holds the lock, or the context's error.
func (m Mutex) Lock(ctx context.Context) error {
	select {
	case m <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unlock releases the lock.
func (m Mutex) Unlock() { <-m }
