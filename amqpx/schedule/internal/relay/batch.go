package relay

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// sendBatch is a batch of claimed tasks that are published together.
type sendBatch struct {
	purpose rows.Purpose
	list    []*rows.Task
	began   time.Time
	left    chan struct{} // closed when PublishClaimed may stop waiting: all outcomes are settled, or Patience has passed

	mu       sync.Mutex
	open     map[*rows.Task]bool  // tasks without an outcome yet
	outcomes map[*rows.Task]error // outcomes that are not yet settled; nil means confirmed
	sent     int
	err      error // errors from settling the outcomes
}

func newSendBatch(p rows.Purpose, list []*rows.Task, now time.Time) *sendBatch {
	f := &sendBatch{purpose: p, list: list, began: now, left: make(chan struct{}), open: map[*rows.Task]bool{}, outcomes: map[*rows.Task]error{}}
	for _, t := range list {
		f.open[t] = true
	}
	return f
}

func (f *sendBatch) bytes() (n int64) {
	for _, t := range f.list {
		n += int64(len(t.Body))
	}
	return n
}

// record stores the outcome of a task until takeOutcomes collects it.
func (f *sendBatch) record(t *rows.Task, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, t)
	f.outcomes[t] = err
}

// takeOutcomes returns the outcomes that were recorded since the last call.
func (f *sendBatch) takeOutcomes() map[*rows.Task]error {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := f.outcomes
	f.outcomes = map[*rows.Task]error{}
	return taken
}

// waiting returns the targets of the tasks that have no outcome yet.
func (f *sendBatch) waiting() (list []Target) {
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

// result returns how many tasks were confirmed so far, and the errors from updating their rows.
func (f *sendBatch) result() (sent int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent, f.err
}

// PublishClaimed publishes claimed tasks and settles their outcomes in the table. It publishes the tasks of healthy
// targets as one batch, and the tasks of each target in back-off as a separate batch. It does not publish tasks that
// have expired, which it marks as expired, or tasks whose target cannot take them yet, which it releases for a later
// claim. It waits until the outcomes are settled, but no longer than Patience for each batch.
//
// When tasks are sent for the first time (rows.ToSend), PublishClaimed does not wait for targets in back-off, so that
// they do not delay the next claim for the other targets.
func (r *Relay) PublishClaimed(ctx context.Context, p rows.Purpose, list []*rows.Task) (sent int, err error) {
	list, err = r.endLate(ctx, list)
	now := r.Poller.Now()
	parts := r.backoffs.part(list, now)
	var awaited []*sendBatch
	start := func(list []*rows.Task, held ...Target) *sendBatch {
		f := newSendBatch(p, list, now)
		r.publishing.Go(func() { r.publishBatch(ctx, f, held) })
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
		r.publishing.Go(func() {
			<-f.left
			n, err := f.result()
			r.Report(err)
			if n > 0 {
				r.Poller.Committed() // the target may have more tasks
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

// Allowance returns how many tasks may be sent to a target now. That is a whole batch for a healthy target, fewer for a
// target in back-off, and 0 until its pause is over.
func (r *Relay) Allowance(t Target) int { return r.backoffs.allowance(t, r.Poller.Now()) }

// Patience is how long PublishClaimed waits for a batch. After that, publishing continues in the background.
const Patience = time.Second

// publishBatch publishes a batch and settles its tasks. If that takes longer than Patience, publishBatch settles the
// tasks that have an outcome by then, and keeps the targets of the other tasks out of claims until these tasks have an
// outcome too.
func (r *Relay) publishBatch(ctx context.Context, f *sendBatch, held []Target) {
	bytes := f.bytes()
	r.publishingBytes.Add(bytes)
	defer r.publishingBytes.Add(-bytes)
	published := make(chan struct{})
	go func() {
		defer close(published)
		r.Publish(ctx, f.list, f.record)
	}()
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case <-published:
		_ = r.settleOutcomes(ctx, f) // PublishClaimed reads the error from f
		r.backoffs.release(held)
		close(f.left)
		return
	case <-timer.C:
	}
	more := f.waiting()
	r.backoffs.hold(more)
	_ = r.settleOutcomes(ctx, f) // PublishClaimed reads the error from f
	close(f.left)
	<-published
	if err := r.settleOutcomes(ctx, f); err != nil {
		r.Report(err)
	}
	r.backoffs.release(append(held, more...))
	r.Poller.Committed()
}

// settleOutcomes settles the tasks that have an outcome: it updates their rows and the back-off of their targets.
func (r *Relay) settleOutcomes(ctx context.Context, f *sendBatch) error {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	outcomes := f.takeOutcomes()
	now := r.Poller.Now()
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
		r.backoffs.confirmed(now)
	}
	r.backoffs.learn(tallies(outcomes), f.began, now)
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
