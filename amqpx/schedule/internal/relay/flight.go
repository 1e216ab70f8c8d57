package relay

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/pace"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// flight is the part of a claim that is published as one batch.
type flight struct {
	purpose rows.Purpose
	list    []*rows.Task
	began   time.Time
	left    chan struct{} // closed when Launch no longer needs to wait for the flight

	mu       sync.Mutex
	open     map[*rows.Task]bool  // tasks without an outcome yet
	outcomes map[*rows.Task]error // outcomes that are not yet settled; a nil error means confirmed
	sent     int
	err      error // errors of settling the outcomes
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

// record stores the outcome of a task until takeOutcomes.
func (f *flight) record(t *rows.Task, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, t)
	f.outcomes[t] = err
}

// takeOutcomes returns the outcomes since the last call.
func (f *flight) takeOutcomes() map[*rows.Task]error {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := f.outcomes
	f.outcomes = map[*rows.Task]error{}
	return taken
}

// waiting returns the targets of the tasks that have no outcome yet.
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

// result returns how many tasks were sent so far, and the errors of settling outcomes.
func (f *flight) result() (sent int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent, f.err
}

// Launch publishes claimed tasks. Tasks of healthy targets are published together, and each
// target in back-off is published separately. Launch waits until all outcomes are settled, or
// until Patience is over for the batches that have none yet. When tasks are sent for the first
// time (rows.ToSend), it does not wait for targets in back-off, so that the other targets' claims
// go on.
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
				pace.Wake(r.DB.DB) // the target may have more tasks
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

// Room returns how many tasks a target may be sent now: a whole batch, or fewer when it is in
// back-off, or none while it pauses.
func (r *Relay) Room(t Target) int { return r.troubles.room(t, r.Pace.Now()) }

// Patience is how long Launch waits for a flight. After that the flight goes on in the background.
const Patience = time.Second

// fly publishes a flight and settles its tasks. If that takes longer than Patience, it settles the
// tasks that have an outcome, and keeps the targets of the other tasks out of claims until those
// have one too.
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
		_ = r.land(ctx, f) // f stores the error for Launch
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

// land settles the tasks whose outcomes are known by now.
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
