package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/lateness"
)

// arrivals collect how late messages came that were asked for within a window
// of time: after the instants that were asked for, and not after those that a
// timer made of them by rounding or by when it got to them. Every message has a
// number, so that each counts once, and it is known when all have come.
type arrivals struct {
	from, to time.Time // due instants that count; zero until known

	mu     sync.Mutex
	due    []time.Time // by number; zero for those that do not count, or have come
	late   []float64   // milliseconds
	wanted int
	closed bool // all messages have their numbers
	done   chan struct{}
}

func newArrivals() *arrivals { return &arrivals{done: make(chan struct{})} }

// number gives a message its number; it is asked for at that instant.
func (l *arrivals) number(due time.Time) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.to.IsZero(): // open decides
	case l.outside(due):
		due = time.Time{}
	default:
		l.wanted++
	}
	l.due = append(l.due, due)
	return uint64(len(l.due) - 1)
}

func (l *arrivals) outside(due time.Time) bool { return due.Before(l.from) || !due.Before(l.to) }

// open sets the window; what was due before it does not count.
func (l *arrivals) open(from, to time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.from, l.to = from, to
	l.late = nil
	for n, due := range l.due {
		if due.IsZero() {
			continue
		}
		if l.outside(due) {
			l.due[n] = time.Time{}
		} else {
			l.wanted++
		}
	}
}

// came records a message.
func (l *arrivals) came(content []byte, at time.Time) {
	if len(content) < minBody {
		return
	}
	n := binary.BigEndian.Uint64(content)
	l.mu.Lock()
	defer l.mu.Unlock()
	if n >= uint64(len(l.due)) || l.due[n].IsZero() {
		return
	}
	l.late = append(l.late, float64(at.Sub(l.due[n]))/float64(time.Millisecond))
	l.due[n] = time.Time{}
	l.finish()
}

// complete says that no more numbers are given.
func (l *arrivals) complete() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.finish()
}

func (l *arrivals) finish() {
	if l.closed && len(l.late) == l.wanted {
		select {
		case <-l.done:
		default:
			close(l.done)
		}
	}
}

// errNoneDue says that nothing is known of how late messages are.
var errNoneDue = errors.New("no message was due within the window")

// wait returns the sorted values when all messages have come. Those that have
// not come after the time given count as that late.
func (l *arrivals) wait(ctx context.Context, patience time.Duration) (values []float64, missing int, err error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-l.done:
	case <-timer.C:
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	missing = l.wanted - len(l.late)
	for range missing {
		l.late = append(l.late, float64(patience)/float64(time.Millisecond))
	}
	if len(l.late) == 0 {
		return nil, 0, errNoneDue
	}
	values = slices.Clone(l.late)
	slices.Sort(values)
	return values, missing, nil
}

// flow is a steady stream of delayed messages.
type flow struct {
	rate   float64
	delays span
	// prefill begins with as many messages waiting as there would be after a long
	// time, so that from the start as many come out as go in.
	prefill bool
	warm    time.Duration // that does not count
	measure time.Duration // that does
}

// waiting is how many messages wait in the long run.
func (f flow) waiting() int {
	if !f.prefill {
		return 0
	}
	return int(f.rate * (f.delays.lo + f.delays.hi).Seconds() / 2)
}

func (f flow) expected() int {
	return int(f.rate * (f.warm + f.measure).Seconds())
}

// timer is something that keeps messages until they are due.
type timer interface {
	// start makes it deliver to came until stop.
	start(ctx context.Context, came func(content []byte, at time.Time)) (stop func() error, err error)
	// keep takes messages, and returns when they are safe.
	keep(ctx context.Context, list []kept) error
}

// kept is a message with the instant at which it is wanted.
type kept struct {
	content []byte
	due     time.Time
}

// outcome of a flow.
type outcome struct {
	values  []float64 // sorted, milliseconds; none if the publisher fell behind before the window
	missing int
	kept    bool // the rate was kept by the publisher
}

// through sends the flow through the timer.
func (f flow) through(ctx context.Context, t timer, size int, patience time.Duration, advance func(int)) (o outcome, err error) {
	l := newArrivals()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop, err := t.start(ctx, l.came)
	if err != nil {
		return o, err
	}
	defer func() {
		cancel()
		err = joined(err, stop())
	}()
	sent := 0
	for waiting := f.waiting(); sent < waiting; {
		list := make([]kept, min(waiting-sent, batchSize))
		for i := range list {
			// They do not count: sent as fast as can be, they reach the broker up
			// to a full window after they were written.
			list[i] = kept{body(size, l.number(time.Time{})), time.Now().Add(f.delays.remaining(sent + i))}
		}
		if err := t.keep(ctx, list); err != nil {
			return o, err
		}
		sent += len(list)
	}
	from := time.Now().Add(f.warm)
	l.open(from, from.Add(f.measure))
	o.kept, err = pace(ctx, f.rate, f.warm+f.measure, func(n int) func() error {
		list := make([]kept, n)
		now := time.Now()
		for i := range list {
			due := now.Add(f.delays.at(sent + i))
			list[i] = kept{body(size, l.number(due)), due}
		}
		sent += n
		return func() error {
			defer advance(n)
			return t.keep(ctx, list)
		}
	})
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		o.kept, err = false, nil // whoever waits for confirms until the deadline has fallen behind
	}
	if err != nil {
		return o, err
	}
	l.complete()
	o.values, o.missing, err = l.wait(ctx, patience)
	if !o.kept && errors.Is(err, errNoneDue) {
		return o, nil
	}
	return o, err
}

// recordLateness enters the percentiles of one pass.
func (c *Case) recordLateness(values []float64) {
	for _, p := range []struct {
		name  string
		share float64
	}{{metricP50, 0.5}, {"p95", 0.95}, {metricP99, 0.99}, {"max", 1}} {
		c.add(p.name, "ms late", lateness.Percentile(values, p.share))
	}
	c.Curve = distribution(values) // of the last repeat
}
