// Package outage lets handlers wait while their database is unavailable, so that an outage uses up no attempts and
// dead-letters no messages.
package outage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// Pauses between two tries to reach the database.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
)

// Longest is how long a handler waits. After that its message is snoozed for SnoozeFor, because the broker cancels a
// consumer whose handlers run for too long (consumer_timeout, 30 minutes by default).
const (
	Longest   = time.Minute
	SnoozeFor = time.Second
)

// Error means that the database was unavailable for as long as the handler could wait. The handler has had no effect.
type Error struct{ Err error }

func (e *Error) Error() string { return fmt.Sprintf("the database is unavailable: %v", e.Err) }

func (e *Error) Unwrap() error { return e.Err }

// Consumer is the part of a consumer that Wait uses.
type Consumer interface {
	// Blocked records that a handler waits because of err, until the returned function is called.
	Blocked(err error) (unblock func())
	// Ending returns a channel that is closed when the consumer begins to shut down.
	Ending() <-chan struct{}
}

type key struct{}

// WithConsumer returns a context for the handlers of a consumer, in which Wait finds that consumer.
func WithConsumer(ctx context.Context, c Consumer) context.Context {
	return context.WithValue(ctx, key{}, c)
}

// Wait calls the function try, and calls it again while it fails because the database is unavailable. The function
// unavailable reports whether an error means that. Before doing anything that must not be repeated, such as calling the
// application's function, try must call its argument begun. Once it has done so, Wait returns its error and does not
// call it again.
//
// Wait returns an *Error if the handler cannot wait any longer, because its own deadline has passed, the consumer shuts
// down, or Longest has passed. It returns the error of try if ctx is cancelled, or if no consumer has called the
// handler.
func Wait(ctx context.Context, unavailable func(error) bool, try func(begun func()) error) error {
	consumer, ok := ctx.Value(key{}).(Consumer)
	if !ok {
		return try(func() {})
	}
	var unblock func() // nil while the handler is not blocked
	end := func() {
		if unblock != nil {
			unblock()
		}
		unblock = nil
	}
	defer end()
	limit := time.NewTimer(Longest)
	defer limit.Stop()
	for attempt := 1; ; attempt++ {
		begun := false
		err := try(func() {
			begun = true
			end()
		})
		if err == nil || begun || !unavailable(err) {
			return err
		}
		if unblock == nil {
			unblock = consumer.Blocked(err)
		}
		select {
		case <-time.After(wait.Backoff(firstPause, longestPause, attempt)):
			continue
		case <-ctx.Done():
		case <-consumer.Ending():
		case <-limit.C:
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			return err
		}
		return &Error{err}
	}
}
