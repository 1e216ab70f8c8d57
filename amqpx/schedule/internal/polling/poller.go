package polling

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Sleep waits for d, and returns ctx's error if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Backoff returns the pause after a failure. It begins with first and doubles with each earlier
// failure, up to longest.
func Backoff(first time.Duration, before int, longest time.Duration) time.Duration {
	return min(first<<min(max(before, 0), 20), longest)
}

// Poller controls how the loops of one Run wait. In virtual time, that is in a testing/synctest bubble, no other process
// can write to the database, and polling at short intervals would make a virtual day take minutes of real time. In
// virtual time each loop therefore waits until it has something to do, or until a store in the bubble has written.
type Poller struct {
	*Clock

	// Interval is the longest pause of a relay between two polls, except in virtual time; see Longest.
	Interval time.Duration
	// Patience is the maximum time that the database may take to answer.
	Patience time.Duration
	// Woken receives a value when tasks may be due before the next poll. Uncommitted is set before that if the tasks
	// may not be committed yet, so that the relay polls several times.
	Woken       chan struct{}
	Uncommitted atomic.Bool
	// Listening is set while the database notifies this process of tasks that were committed and are due soon.
	Listening atomic.Bool

	virtual bool
	mu      sync.Mutex
	rung    chan struct{} // closed when a store in the bubble writes, see Written
}

// New returns a Poller with the given Interval and Patience. If virtual is set, its loops run in the bubble of a synctest
// test, with virtual time.
func New(c *Clock, interval, patience time.Duration, virtual bool) *Poller {
	return &Poller{Clock: c, Interval: interval, Patience: patience, Woken: make(chan struct{}, 1), virtual: virtual}
}

// longestPause is the longest pause of a loop in virtual time. After at most that pause, a loop finds
// tasks that were written without a store.
const longestPause = 10 * time.Minute

// Virtual reports whether Run runs in virtual time.
func (p *Poller) Virtual() bool { return p.virtual }

// Longest returns the longest pause of a loop with the given interval.
func (p *Poller) Longest(interval time.Duration) time.Duration {
	if p.virtual {
		return max(interval, longestPause)
	}
	return interval
}

// Rarely returns the interval of a loop that is not urgent. In virtual time, that is at least an hour.
func (p *Poller) Rarely(interval time.Duration) time.Duration {
	if p.virtual {
		return max(interval, 6*longestPause)
	}
	return interval
}

// Workers returns the number of batches that are published concurrently. That is n, except in virtual time, where it is
// 1 because additional workers would only poll in turn.
func (p *Poller) Workers(n int) int {
	if p.virtual {
		return 1
	}
	return n
}

// Horizon returns the time up to which a poll searches for destinations with tasks. In virtual time it returns the end
// of time, because the loop there sleeps until the next task of any destination.
func (p *Poller) Horizon(until int64) int64 {
	if p.virtual {
		return math.MaxInt64
	}
	return until
}

// Written returns a channel that is closed when a store in the bubble writes, or nil outside of virtual time. A loop
// must call it before it polls, so that it does not miss a write.
func (p *Poller) Written() <-chan struct{} {
	if !p.virtual {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rung == nil {
		p.rung = make(chan struct{})
	}
	return p.rung
}

func (p *Poller) ring() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rung != nil {
		close(p.rung)
		p.rung = nil
	}
}

// Wait waits for the duration pause, and returns false if ctx ends. If written is closed during the wait, and more than
// one interval remains, the wait ends one interval after the close.
func Wait(ctx context.Context, pause, interval time.Duration, written <-chan struct{}) bool {
	end := time.Now().Add(pause)
	after := time.After(pause)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-after:
			return true
		case <-written:
			after, written = time.After(min(interval, time.Until(end))), nil
		}
	}
}

// againAfter is the longest pause of a loop after an error.
const againAfter = 5 * time.Second

// Every calls step repeatedly until ctx ends. After each call it waits for the pause that step returned, counted from
// the start of the call. After an error the pause is the interval, at most againAfter. It calls report with each
// outcome.
func (p *Poller) Every(ctx context.Context, interval time.Duration, report func(error), step func() (pause time.Duration, err error)) {
	for {
		began, written := time.Now(), p.Written()
		pause, err := step()
		if ctx.Err() != nil {
			return
		}
		report(err)
		if err != nil {
			pause = min(interval, againAfter)
		}
		if !Wait(ctx, pause-time.Since(began), interval, written) {
			return
		}
	}
}

// Answered calls query with Patience as its timeout, so that a loop gives up on a connection if the server hangs or the
// network drops packets. Without the timeout, it would wait for as long as TCP keeps such a connection.
func (p *Poller) Answered(ctx context.Context, query func(ctx context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, p.Patience)
	defer cancel()
	err := query(bounded)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return fmt.Errorf("the database did not answer within %v: %w", p.Patience, err)
	}
	return err
}

// Instant is the expected time of a loop's next work.
type Instant struct{ ms atomic.Int64 }

// Set sets the time in milliseconds since the Unix epoch, 0 for none.
func (x *Instant) Set(ms int64) { x.ms.Store(ms) }

// Get returns the time in milliseconds since the Unix epoch, 0 for none.
func (x *Instant) Get() int64 { return x.ms.Load() }

// Until returns the duration from now to the Instant, at least 0 and at most limit.
func (x *Instant) Until(now time.Time, limit time.Duration) time.Duration {
	ms := x.ms.Load()
	if ms == 0 {
		return limit
	}
	return max(0, min(limit, time.UnixMilli(ms).Sub(now)))
}
