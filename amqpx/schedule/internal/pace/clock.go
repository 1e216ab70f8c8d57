package pace

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// ErrClock is the error of a database's clock that cannot be gone by.
var ErrClock = errors.New("this process's clock and the database's are more than a day apart; set them right")

// Clock is the database's clock as this process knows it: its own, corrected by the
// difference that was measured last.
type Clock struct {
	Local func() time.Time                             // this process's
	Ask   func(ctx context.Context) (time.Time, error) // the database's
	// Measured gets each difference that is measured: the database's clock minus this
	// process's. The true one is within uncertainty of it.
	Measured func(skew, uncertainty time.Duration)

	offset atomic.Int64 // nanoseconds
}

// Now is the database's instant.
func (c *Clock) Now() time.Time { return c.Local().Add(c.Offset()) }

// Offset is the correction of this process's clock.
func (c *Clock) Offset() time.Duration { return time.Duration(c.offset.Load()) }

// Sample is one measurement of the difference.
type Sample struct{ Skew, Uncertainty time.Duration }

// samples are as many as are taken at a time, of which the best counts.
const samples = 3

func (c *Clock) sample(ctx context.Context) (Sample, error) {
	before := c.Local()
	at, err := c.Ask(ctx)
	took := c.Local().Sub(before)
	return Sample{at.Sub(before.Add(took / 2)), took/2 + time.Millisecond}, err
}

// Measure measures the difference as the best of three samples.
func (c *Clock) Measure(ctx context.Context) (best Sample, err error) {
	for i := range samples {
		x, err := c.sample(ctx)
		if err != nil {
			return Sample{}, err
		}
		if i == 0 || x.Uncertainty < best.Uncertainty {
			best = x
		}
	}
	c.Measured(best.Skew, best.Uncertainty)
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
func (c *Clock) Adjust(ctx context.Context) error {
	x, err := c.Measure(ctx)
	if err == nil && x.Skew.Abs()-x.Uncertainty > farthestClock {
		err = ErrClock
	}
	if err == nil {
		c.offset.Store(int64(x.correction()))
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
