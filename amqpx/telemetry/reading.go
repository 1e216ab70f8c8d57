package telemetry

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
)

// reading caches values that are read from a database or a broker. The method recent returns the cached values. If they
// are old, it also starts to read new ones in the background.
type reading[T any] struct {
	read     func(ctx context.Context) (T, error)
	interval time.Duration

	mu      sync.Mutex
	value   T
	at      time.Time     // when value was read; zero if never
	next    time.Time     // when to read next
	running chan struct{} // closed when the current read ends; nil if none is running
}

// These constants control when values are read.
const (
	patience    = 250 * time.Millisecond // how long a collection waits for new values
	readTimeout = 10 * time.Second
	restFactor  = 9 // the pause after a read is at least this many times its duration
)

// recent returns the values and reports whether they are recent enough to be used. It waits for a running read for up
// to the duration patience.
func (r *reading[T]) recent(ctx context.Context) (value T, ok bool) {
	wait := r.refresh()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-wait:
	case <-t.C:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// If reads fail or take long, the previous values remain valid for some time.
	return r.value, !r.at.IsZero() && time.Since(r.at) < 3*r.interval+readTimeout*restFactor
}

// done is a closed channel.
var done = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// refresh starts a read if one is due. It returns a channel that is closed when no read is running.
func (r *reading[T]) refresh() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running != nil {
		return r.running
	}
	began := time.Now()
	if began.Before(r.next) {
		return done
	}
	r.running = make(chan struct{})
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
		value, err := r.read(ctx)
		cancel()
		r.mu.Lock()
		defer r.mu.Unlock()
		if err == nil {
			r.value, r.at = value, began
		} else {
			otel.Handle(err)
		}
		r.next = time.Now().Add(max(r.interval, restFactor*time.Since(began)))
		close(r.running)
		r.running = nil
	}()
	return r.running
}
