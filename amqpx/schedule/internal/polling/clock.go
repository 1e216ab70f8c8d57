package polling

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// ErrClock is returned if the database's clock is too far from this process's clock to be used.
var ErrClock = errors.New("this process's clock and the database's clock are more than a day apart; correct them, or set Config.VirtualTime in a test in virtual time")

// Clock tracks the database's clock. Its time is the database's time at the last measurement plus the time that has
// passed since then by this process's monotonic clock, so a change of this process's wall clock does not affect it.
type Clock struct {
	Local func() time.Time                             // this process's wall clock
	Up    func() time.Duration                         // this process's monotonic clock
	Ask   func(ctx context.Context) (time.Time, error) // reads the database's clock
	// Measured, optional, is called with each measured difference: the database's clock minus
	// this process's. The true difference is within uncertainty of skew.
	Measured func(skew, uncertainty time.Duration)

	known  atomic.Pointer[reading]
	asking chan struct{} // contains one element while a goroutine refreshes, so that only one does
	asked  time.Duration // when the last refresh began
}

// reading is a time by a wall clock, the database's or this process's, and the reading of the monotonic clock at that
// time.
type reading struct {
	at time.Time
	up time.Duration
}

// NewClock returns a Clock that has not been measured yet. See the fields of Clock for the arguments.
func NewClock(local func() time.Time, ask func(ctx context.Context) (time.Time, error), measured func(skew, uncertainty time.Duration)) *Clock {
	began := time.Now()
	return &Clock{
		Local: local, Up: func() time.Duration { return time.Since(began) }, Ask: ask, Measured: measured,
		asking: make(chan struct{}, 1),
	}
}

// Now returns the database's time, or this process's time before the first measurement.
func (c *Clock) Now() time.Time {
	r := c.known.Load()
	if r == nil {
		return c.Local()
	}
	return r.at.Add(c.Up() - r.up)
}

// Offset returns the database's clock minus this process's, in whole milliseconds, and 0 before the
// first measurement.
func (c *Clock) Offset() time.Duration {
	if c.known.Load() == nil {
		return 0
	}
	return c.Now().Sub(c.Local()).Round(time.Millisecond)
}

// refreshEvery is the age of a measurement at which Refresh measures again.
const refreshEvery = time.Minute

// Refresh measures once with ask if the last measurement is older than refreshEvery. If there is no measurement yet and
// another goroutine is taking one, it waits for that one. After a failure, calls return without measuring until
// refreshEvery has passed.
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

// Sample is one measurement of the difference between the database's clock and this process's.
type Sample struct {
	Skew, Uncertainty time.Duration

	began reading // this process's clocks when the sample began
}

// samples is the number of samples that Measure and Adjust take. They use the best one.
const samples = 3

func (c *Clock) sample(ctx context.Context, ask func(ctx context.Context) (time.Time, error)) (Sample, error) {
	began := c.read()
	at, err := ask(ctx)
	took := c.Up() - began.up
	return Sample{at.Sub(began.at.Add(took / 2)), took/2 + time.Millisecond, began}, err
}

// read reads both clocks of this process within a millisecond of each other, unless it is
// interrupted at every try.
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

// leastSkew is the difference up to which two clocks are treated as equal. A difference this small may come from the
// adjustment of the clocks, and correcting such a difference would only make times jump.
const leastSkew = 20 * time.Millisecond

func (x Sample) correction() time.Duration {
	if x.Skew.Abs() <= x.Uncertainty+leastSkew {
		return 0
	}
	return x.Skew.Round(time.Millisecond)
}

// farthestClock is how far the database's clock may be from this process's. A larger difference does not come from an
// inaccurate clock: either one of the machines' clocks has never been set, or time is simulated.
const farthestClock = 24 * time.Hour

// Adjust measures and corrects the clock. If the difference is more than a day, it returns ErrClock
// and leaves the clock as it was.
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

// Adjust runs Clock.Adjust with Patience as its timeout.
func (p *Poller) Adjust(ctx context.Context) error { return p.Answered(ctx, p.Clock.Adjust) }

// SetClock adjusts the clock before the first claim. If that fails, it tries again at the interval until it succeeds or
// ctx ends. It returns ErrClock immediately.
func (p *Poller) SetClock(ctx context.Context, interval time.Duration, report func(error)) error {
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
