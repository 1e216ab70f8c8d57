package pace

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// ErrClock is the error of a database's clock that cannot be gone by.
var ErrClock = errors.New("this process's clock and the database's are more than a day apart; set them right")

// Clock is the database's clock as this process knows it: by the instant that was measured last,
// and this process's monotonic clock since then. So no step of its own wall clock changes it.
type Clock struct {
	Local func() time.Time                             // this process's wall clock
	Up    func() time.Duration                         // its monotonic one
	Ask   func(ctx context.Context) (time.Time, error) // the database's
	// Measured, optional, gets each difference that is measured: the database's clock minus
	// this process's. The true one is within uncertainty of it.
	Measured func(skew, uncertainty time.Duration)

	known  atomic.Pointer[reading]
	asking chan struct{} // holds an element while somebody refreshes
	asked  time.Duration // when that began last
}

// reading is an instant of the database by the monotonic clock.
type reading struct {
	at time.Time
	up time.Duration
}

// NewClock makes a Clock of this process's wall clock.
func NewClock(local func() time.Time, ask func(ctx context.Context) (time.Time, error), measured func(skew, uncertainty time.Duration)) *Clock {
	began := time.Now()
	return &Clock{
		Local: local, Up: func() time.Duration { return time.Since(began) }, Ask: ask, Measured: measured,
		asking: make(chan struct{}, 1),
	}
}

// Now is the database's instant; before it was measured, this process's.
func (c *Clock) Now() time.Time {
	r := c.known.Load()
	if r == nil {
		return c.Local()
	}
	return r.at.Add(c.Up() - r.up)
}

// Offset is the database's clock minus this process's, in whole milliseconds.
func (c *Clock) Offset() time.Duration {
	if c.known.Load() == nil {
		return 0
	}
	return c.Now().Sub(c.Local()).Round(time.Millisecond)
}

// refreshEvery is the age at which Refresh measures again.
const refreshEvery = time.Minute

// Refresh measures once by ask where that is due, and waits for somebody else's first measurement. What
// the database does not tell now is asked a minute later.
func (c *Clock) Refresh(ctx context.Context, ask func(ctx context.Context) (time.Time, error)) {
	if r := c.known.Load(); r != nil {
		if c.Up()-r.up < refreshEvery {
			return
		}
		select {
		case c.asking <- struct{}{}:
		default:
			return
		}
	} else {
		select {
		case c.asking <- struct{}{}:
		case <-ctx.Done():
			return
		}
	}
	defer func() { <-c.asking }()
	if up := c.Up(); c.asked == 0 || up-c.asked >= refreshEvery {
		c.asked = up
		_ = c.adjust(ctx, ask, 1)
	}
}

// Sample is one measurement of the difference.
type Sample struct {
	Skew, Uncertainty time.Duration

	began reading // by this process's clocks
}

// samples are as many as Measure and Adjust take at a time, of which the best counts.
const samples = 3

func (c *Clock) sample(ctx context.Context, ask func(ctx context.Context) (time.Time, error)) (Sample, error) {
	began := c.read()
	at, err := ask(ctx)
	took := c.Up() - began.up
	return Sample{at.Sub(began.at.Add(took / 2)), took/2 + time.Millisecond, began}, err
}

// read reads both clocks of this process at one instant, unless it is interrupted again and again.
func (c *Clock) read() (r reading) {
	for range 10 {
		before := c.Up()
		if r = (reading{c.Local().Round(0), c.Up()}); r.up-before < time.Millisecond {
			break
		}
	}
	return r
}

// Measure measures the difference as the best of three samples.
func (c *Clock) Measure(ctx context.Context) (best Sample, err error) {
	return c.measure(ctx, c.Ask, samples)
}

func (c *Clock) measure(ctx context.Context, ask func(ctx context.Context) (time.Time, error), times int) (best Sample, err error) {
	for i := range times {
		x, err := c.sample(ctx, ask)
		if err != nil {
			return Sample{}, err
		}
		if i == 0 || x.Uncertainty < best.Uncertainty {
			best = x
		}
	}
	if c.Measured != nil {
		c.Measured(best.Skew, best.Uncertainty)
	}
	return best, nil
}

// leastSkew is the difference of clocks below which they count as the same: it may come
// from their adjustment, and would only make instants jump.
const leastSkew = 20 * time.Millisecond

func (x Sample) correction() time.Duration {
	if x.Skew.Abs() <= x.Uncertainty+leastSkew {
		return 0
	}
	return x.Skew.Round(time.Millisecond)
}

// farthestClock is how far the database's clock may be from this process's. What is
// farther is no clock that runs wrong: a machine has not been set, or time is simulated.
const farthestClock = 24 * time.Hour

// Adjust measures and corrects the clock. It returns ErrClock, and leaves the clock as it
// was, where the correction would be none.
func (c *Clock) Adjust(ctx context.Context) error { return c.adjust(ctx, c.Ask, samples) }

func (c *Clock) adjust(ctx context.Context, ask func(ctx context.Context) (time.Time, error), times int) error {
	x, err := c.measure(ctx, ask, times)
	if err == nil && x.Skew.Abs()-x.Uncertainty > farthestClock {
		err = ErrClock
	}
	if err == nil {
		c.known.Store(&reading{x.began.at.Add(x.correction()), x.began.up})
	}
	return err
}

// Adjust is Clock.Adjust within the time that the database has for an answer.
func (p *Pace) Adjust(ctx context.Context) error { return p.Answered(ctx, p.Clock.Adjust) }

// SetClock adjusts the clock before the first claim. It tries again at the interval until
// ctx ends, except after ErrClock.
func (p *Pace) SetClock(ctx context.Context, interval time.Duration, report func(error)) error {
	for ctx.Err() == nil {
		err := p.Adjust(ctx)
		if err == nil || errors.Is(err, ErrClock) {
			return err
		}
		if ctx.Err() == nil {
			report(err)
		}
		_ = Sleep(ctx, interval)
	}
	return nil
}
