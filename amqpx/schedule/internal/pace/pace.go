package pace

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Sleep waits, and returns ctx's error if that ends first.
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

// Backoff returns the pause after a failure, which doubles with each of the failures
// before it.
func Backoff(first time.Duration, before int, longest time.Duration) time.Duration {
	return min(first<<min(max(before, 0), 20), longest)
}

// Pace is how the loops of one Run wait. In a testing/synctest bubble no other process
// can write, and looks at short intervals would make a virtual day cost minutes: there
// each loop waits for the instant at which it has something to do, or until a store of
// the bubble has written.
type Pace struct {
	*Clock

	// Interval is the longest pause of a relay between two looks.
	Interval time.Duration
	// Patience is how long the database may take to answer.
	Patience time.Duration
	// Woken gets an element when tasks may be due before the next look.
	Woken chan struct{}

	virtual bool
	mu      sync.Mutex
	rung    chan struct{} // closed when something is written
}

// New makes a Pace.
func New(c *Clock, interval, patience time.Duration) *Pace {
	return &Pace{Clock: c, Interval: interval, Patience: patience, Woken: make(chan struct{}, 1)}
}

// longestPause is the longest pause of a loop in a bubble. After it a task is found that
// was written past all stores.
const longestPause = 10 * time.Minute

// Virtual reports whether Run runs in a bubble.
func (p *Pace) Virtual() bool { return p.virtual }

// Longest is the longest pause of a loop whose interval is given.
func (p *Pace) Longest(interval time.Duration) time.Duration {
	if p.virtual {
		return max(interval, longestPause)
	}
	return interval
}

// Rarely is the interval of what nobody waits for.
func (p *Pace) Rarely(interval time.Duration) time.Duration {
	if p.virtual {
		return max(interval, 6*longestPause)
	}
	return interval
}

// Workers is how many batches are on their way at once: in a bubble they would only look
// one after the other.
func (p *Pace) Workers(n int) int {
	if p.virtual {
		return 1
	}
	return n
}

// Horizon is up to which instant a look is to find lanes: all, where the next one counts.
func (p *Pace) Horizon(until int64) int64 {
	if p.virtual {
		return math.MaxInt64
	}
	return until
}

// Written returns a channel that is closed when something is written in the bubble, and
// nil outside of bubbles. A loop takes it before it looks.
func (p *Pace) Written() <-chan struct{} {
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

func (p *Pace) ring() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rung != nil {
		close(p.rung)
		p.rung = nil
	}
}

// Wait pauses, and reports whether ctx goes on. A pause that is longer than the interval
// ends an interval after something was written.
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

// againAfter is the longest pause after a loop has failed.
const againAfter = 15 * time.Second

// Every does something now and after each of the pauses that do returns, sooner after it
// failed, until ctx ends. report gets the outcomes.
func (p *Pace) Every(ctx context.Context, interval time.Duration, report func(error), do func() (pause time.Duration, err error)) {
	for {
		began, written := time.Now(), p.Written()
		pause, err := do()
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

// Answered runs do with Patience as its time limit. It gives up a connection over
// which no answer comes, because the server hangs or the network drops packets; nothing
// else would show that, for as long as TCP keeps such a connection.
func (p *Pace) Answered(ctx context.Context, do func(ctx context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, p.Patience)
	defer cancel()
	err := do(bounded)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return fmt.Errorf("the database did not answer within %v: %w", p.Patience, err)
	}
	return err
}

// Instant is one at which there is something to do, as far as is known.
type Instant struct{ ms atomic.Int64 }

// Set sets it in milliseconds, 0 for none.
func (x *Instant) Set(ms int64) { x.ms.Store(ms) }

// Until is how long it is from now, at most the given time.
func (x *Instant) Until(now time.Time, most time.Duration) time.Duration {
	ms := x.ms.Load()
	if ms == 0 {
		return most
	}
	return max(0, min(most, time.UnixMilli(ms).Sub(now)))
}
