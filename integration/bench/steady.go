package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// flow is a steady stream of delayed messages.
type flow struct {
	rate   float64
	delays span
	// warm is the time before the measurement. It is at least the longest delay, so that the rates of sent and of due
	// messages are the same when the measurement starts.
	warm, measure time.Duration
}

// timer keeps messages until they are due.
type timer struct {
	run  func(ctx context.Context, came func(content []byte)) error // delivers until ctx ends
	keep func(ctx context.Context, list []kept) error               // returns when the messages are stored safely
}

// kept is a message with the time at which it should be delivered.
type kept struct {
	content []byte
	due     time.Time
}

// outcome is the result of a flow.
type outcome struct {
	late    []float64 // sorted, milliseconds; empty if the publisher fell behind before the window
	missing int
	kept    bool // the publisher sustained the rate
}

// steady measures the lateness of the messages of a flow.
func steady(f flow, by func(ctx context.Context, t *turn) (timer, error)) work {
	return func(ctx context.Context, t *turn) error {
		via, err := by(ctx, t)
		if err != nil {
			return err
		}
		o, err := f.through(ctx, via, t.o.Body, time.Minute)
		switch {
		case err != nil:
			return err
		case !o.kept: // the result of an aborted flow does not represent its rate
			t.s.Notef("%s, %s: the publisher did not sustain the rate", t.row.Group, t.row.Name)
			return nil
		case o.missing > 0:
			t.s.Notef("%s, %s: %d of %d messages did not arrive within a minute, and count as one minute late", t.row.Group, t.row.Name, o.missing, len(o.late))
		}
		t.row.AddPercentiles("ms late", o.late, 0.5, 0.95, 0.99, 1)
		return nil
	}
}

// through sends the flow through a timer. A message is missing if it has not arrived within patience after the last
// message was sent.
func (f flow) through(ctx context.Context, t timer, size int, patience time.Duration) (o outcome, err error) {
	from := time.Now().Add(f.warm)
	l := &arrivals{from: from.UnixMicro(), to: from.Add(f.measure).UnixMicro()}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- t.run(ctx, l.came) }()
	defer func() {
		cancel()
		err = joined(err, <-ended)
	}()
	sent := 0
	o.kept, err = pace(ctx, f.rate, f.warm+f.measure, func(n int) func() error {
		list := make([]kept, n)
		now := time.Now()
		for i := range list {
			due := now.Add(f.delays.at(sent + i))
			list[i] = kept{l.asked(size, sent+i, due), due}
		}
		sent += n
		return func() error { return t.keep(ctx, list) }
	})
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		o.kept, err = false, nil // the publisher was waiting for confirms at the deadline, so it has fallen behind
	}
	if err != nil {
		return o, err
	}
	o.late, o.missing, err = l.wait(ctx, patience)
	if err == nil && o.kept && len(o.late) == 0 {
		err = errors.New("no message was due within the window")
	}
	return o, err
}

// pace calls send with the number of messages that the rate requires, until the time is over or sending has fallen
// behind by more than a second. It runs each function that send returns in its own goroutine, so that a slow confirm
// does not delay the next call. It returns the first error, and whether the rate was sustained.
func pace(ctx context.Context, rate float64, during time.Duration, send func(n int) func() error) (kept bool, err error) {
	running, rctx := errgroup.WithContext(ctx)
	running.SetLimit(256)
	start, sent := time.Now(), 0.0
	for rctx.Err() == nil && !kept {
		elapsed := min(time.Since(start), during)
		behind := rate*elapsed.Seconds() - sent
		if behind > rate {
			break
		}
		if n := int(behind); n > 0 {
			sent += float64(n)
			running.Go(send(n))
		}
		if kept = elapsed == during; !kept {
			_ = wait.For(rctx, 5*time.Millisecond) // the loop checks rctx
		}
	}
	if err = running.Wait(); err == nil {
		err = ctx.Err()
	}
	return kept, err
}

// arrivals records the lateness of messages that are due within a time window. It uses the requested due times, which
// the bodies contain, and not the times that result when a timer rounds them or processes them late.
type arrivals struct {
	from, to int64 // window of due times, Unix microseconds

	mu     sync.Mutex
	wanted int
	late   []float64 // milliseconds
}

// asked returns the body for the message with the given number and due time, and counts the message as requested if its
// due time is in the window.
func (l *arrivals) asked(size, number int, due time.Time) []byte {
	content := body(size, number)
	binary.BigEndian.PutUint64(content[8:], uint64(due.UnixMicro()))
	if l.counts(due.UnixMicro()) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wanted++
	}
	return content
}

func (l *arrivals) counts(due int64) bool {
	return due >= l.from && due < l.to
}

// came records the arrival of a message.
func (l *arrivals) came(content []byte) {
	now := time.Now().UnixMicro()
	if due := int64(binary.BigEndian.Uint64(content[8:minBody])); l.counts(due) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.late = append(l.late, float64(now-due)/1000)
	}
}

// wait waits until all requested messages have arrived and returns the sorted lateness. A message that has not arrived
// within patience counts as that late.
func (l *arrivals) wait(ctx context.Context, patience time.Duration) (late []float64, missing int, err error) {
	for deadline := time.Now().Add(patience); ; {
		l.mu.Lock()
		late = slices.Clone(l.late)
		missing = max(l.wanted-len(late), 0)
		l.mu.Unlock()
		if missing == 0 || !time.Now().Before(deadline) {
			break
		}
		if err := wait.For(ctx, min(10*time.Millisecond, time.Until(deadline))); err != nil {
			return nil, 0, err
		}
	}
	late = append(late, slices.Repeat([]float64{milliseconds(patience)}, missing)...)
	slices.Sort(late)
	return late, missing, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
