package relay

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/pace"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// flight is a part of a claim that is published together.
type flight struct {
	purpose rows.Purpose
	list    []*rows.Task
	began   time.Time
	left    chan struct{} // closed when nobody need wait for it any more

	mu       sync.Mutex
	open     map[*rows.Task]bool  // without an outcome yet
	outcomes map[*rows.Task]error // not yet settled; nil: confirmed
	sent     int
	err      error // of settling
}

func newFlight(p rows.Purpose, list []*rows.Task, now time.Time) *flight {
	f := &flight{purpose: p, list: list, began: now, left: make(chan struct{}), open: map[*rows.Task]bool{}, outcomes: map[*rows.Task]error{}}
	for _, t := range list {
		f.open[t] = true
	}
	return f
}

func (f *flight) bytes() (n int64) {
	for _, t := range f.list {
		n += int64(len(t.Body))
	}
	return n
}

// record keeps the outcome of a task.
func (f *flight) record(t *rows.Task, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, t)
	f.outcomes[t] = err
}

// takeOutcomes takes those that nobody has taken.
func (f *flight) takeOutcomes() map[*rows.Task]error {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := f.outcomes
	f.outcomes = map[*rows.Task]error{}
	return taken
}

// waiting are the targets without an outcome of all their tasks.
func (f *flight) waiting() (list []Target) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := map[Target]bool{}
	for c := range f.open {
		if t := targetOf(c); !seen[t] {
			seen[t] = true
			list = append(list, t)
		}
	}
	return list
}

// result is how many were sent so far, and the error of settling.
func (f *flight) result() (sent int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent, f.err
}

// Launch publishes what was claimed: tasks whose targets are without trouble together, the
// others each target by itself. It waits until all have landed, or until those that have
// not take so long that nobody should wait for them. A relay that sends for the first time
// waits for no target in trouble, so that the claims of others go on.
func (r *Relay) Launch(ctx context.Context, p rows.Purpose, list []*rows.Task) (sent int, err error) {
	list, err = r.endLate(ctx, list)
	now := r.Pace.Now()
	parts := r.troubles.part(list, now)
	var awaited []*flight
	start := func(list []*rows.Task, held ...Target) *flight {
		f := newFlight(p, list, now)
		r.flying.Go(func() { r.fly(ctx, f, held) })
		return f
	}
	if len(parts.shared) > 0 {
		awaited = append(awaited, start(parts.shared))
	}
	for t, list := range parts.alone {
		f := start(list, t)
		if p == rows.ToResend {
			awaited = append(awaited, f)
			continue
		}
		r.flying.Go(func() {
			<-f.left
			n, err := f.result()
			r.Report(err)
			if n > 0 {
				pace.Wake(r.DB.DB) // it may have more
			}
		})
	}
	for until, list := range parts.later {
		err = errors.Join(err, r.settle(ctx, list, rows.Postpone(until)))
	}
	for _, f := range awaited {
		<-f.left
		n, e := f.result()
		sent, err = sent+n, errors.Join(err, e)
	}
	return sent, err
}

// Room is how many tasks a target may have now: none while it is in trouble.
func (r *Relay) Room(t Target) int { return r.troubles.room(t, r.Pace.Now()) }

// Patience is how long a flight takes before nobody waits for it any more.
const Patience = time.Second

// fly publishes a flight and settles its tasks. When that takes long, those with an outcome
// are settled without the others, whose targets are held until they have one.
func (r *Relay) fly(ctx context.Context, f *flight, held []Target) {
	bytes := f.bytes()
	r.aloft.Add(bytes)
	defer r.aloft.Add(-bytes)
	published := make(chan struct{})
	go func() {
		defer close(published)
		r.Publish(ctx, f.list, f.record)
	}()
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case <-published:
		_ = r.land(ctx, f) // f keeps the error for Launch
		r.troubles.release(held)
		close(f.left)
		return
	case <-timer.C:
	}
	more := f.waiting()
	r.troubles.hold(more)
	_ = r.land(ctx, f) // as above
	close(f.left)
	<-published
	if err := r.land(ctx, f); err != nil {
		r.Report(err)
	}
	r.troubles.release(append(held, more...))
	pace.Wake(r.DB.DB)
}

// land settles the tasks whose outcome is known by now.
func (r *Relay) land(ctx context.Context, f *flight) error {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	outcomes := f.takeOutcomes()
	now := r.Pace.Now()
	confirmed := make([]*rows.Task, 0, len(outcomes))
	failed := map[*rows.Task]error{}
	for _, t := range f.list {
		if err, known := outcomes[t]; known && err == nil {
			confirmed = append(confirmed, t)
		} else if known {
			failed[t] = err
		}
	}
	if len(confirmed) > 0 {
		r.troubles.confirmed(now)
	}
	r.troubles.learn(tallies(outcomes), f.began, now)
	err := r.MarkSent(ctx, confirmed)
	if err == nil && len(confirmed) > 0 {
		r.Relayed(len(confirmed), f.purpose == rows.ToResend)
	}
	err = errors.Join(err, r.SettleFailures(ctx, failed))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent += len(confirmed)
	f.err = errors.Join(f.err, err)
	return err
}

// tallies counts outcomes by target.
func tallies(outcomes map[*rows.Task]error) map[Target]*tally {
	found := map[Target]*tally{}
	for t, err := range outcomes {
		x := found[targetOf(t)]
		if x == nil {
			x = &tally{}
			found[targetOf(t)] = x
		}
		switch {
		case err == nil:
			x.sent++
		case judge(err) == destination:
			x.refused++
			x.gone = x.gone || gone(err)
		case judge(err) == broker:
			x.silent++
		}
	}
	return found
}
