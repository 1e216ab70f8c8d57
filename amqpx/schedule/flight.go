package schedule

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"
)

// flight is a part of a claim that is published together.
type flight struct {
	k     kind
	list  []*claimed
	began time.Time
	left  chan struct{} // closed when nobody need wait for it any more

	mu       sync.Mutex
	open     map[*claimed]bool  // without an outcome yet
	outcomes map[*claimed]error // not yet settled; nil: confirmed
	sent     int
	err      error // of settling
}

func newFlight(k kind, list []*claimed, now time.Time) *flight {
	f := &flight{k: k, list: list, began: now, left: make(chan struct{}), open: map[*claimed]bool{}, outcomes: map[*claimed]error{}}
	for _, c := range list {
		f.open[c] = true
	}
	return f
}

func (f *flight) bytes() (n int64) {
	for _, c := range f.list {
		n += int64(len(c.Body))
	}
	return n
}

// tell notes an outcome.
func (f *flight) tell(c *claimed, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, c)
	f.outcomes[c] = err
}

// take takes the outcomes that nobody has taken.
func (f *flight) take() map[*claimed]error {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := f.outcomes
	f.outcomes = map[*claimed]error{}
	return taken
}

// waiting are the targets without an outcome of all their tasks.
func (f *flight) waiting() (list []target) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := map[target]bool{}
	for c := range f.open {
		if t := c.target(); !seen[t] {
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

// launch publishes what was claimed: tasks whose targets are without trouble
// together, the others each target for itself. It waits until all have landed,
// or those that have not take so long that nobody should wait for them. The relay
// waits for no target in trouble, so that the claims of others go on.
func (s *Store) launch(ctx context.Context, k kind, list []*claimed) (sent int, err error) {
	list, err = s.dropExpired(ctx, list)
	now := s.now()
	p := s.health.part(list, now)
	var awaited []*flight
	start := func(list []*claimed, held ...target) *flight {
		f := newFlight(k, list, now)
		s.flying.Go(func() { s.fly(ctx, f, held) })
		return f
	}
	if len(p.shared) > 0 {
		awaited = append(awaited, start(p.shared))
	}
	for t, list := range p.alone {
		f := start(list, t)
		if k == toResend {
			awaited = append(awaited, f)
			continue
		}
		s.flying.Go(func() {
			<-f.left
			n, err := f.result()
			s.report("relay", err)
			if n > 0 {
				s.Wake() // it may have more
			}
		})
	}
	for until, list := range p.later {
		err = errors.Join(err, s.postpone(ctx, list, until))
	}
	for _, f := range awaited {
		<-f.left
		n, e := f.result()
		sent, err = sent+n, errors.Join(err, e)
	}
	return sent, err
}

// patience is how long a flight takes before nobody waits for it any more.
const patience = time.Second

// fly publishes a flight and settles its tasks. When that takes long, those with
// an outcome are settled without the others, whose targets are held until they
// have one.
func (s *Store) fly(ctx context.Context, f *flight, held []target) {
	bytes := f.bytes()
	s.aloft.Add(bytes)
	defer s.aloft.Add(-bytes)
	published := make(chan struct{})
	go func() {
		defer close(published)
		s.publish(ctx, f.list, f.tell)
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-published:
		_ = s.land(ctx, f) // f keeps the error for launch
		s.health.release(held)
		close(f.left)
		return
	case <-timer.C:
	}
	more := f.waiting()
	s.health.hold(more)
	_ = s.land(ctx, f) // as above
	close(f.left)
	<-published
	if err := s.land(ctx, f); err != nil {
		s.report("relay", err)
	}
	s.health.release(append(held, more...))
	s.Wake()
}

// land settles the tasks whose outcome is known by now.
func (s *Store) land(ctx context.Context, f *flight) error {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	outcomes := f.take()
	now := s.now()
	ok := make([]*claimed, 0, len(outcomes))
	failed := map[*claimed]error{}
	for _, c := range f.list {
		if err, known := outcomes[c]; known && err == nil {
			ok = append(ok, c)
		} else if known {
			failed[c] = err
		}
	}
	if len(ok) > 0 {
		s.health.confirmed(now)
	}
	s.health.learn(tallies(outcomes), f.began, now)
	err := s.markSent(ctx, ok)
	if err == nil && len(ok) > 0 && s.cfg.Hooks.Relayed != nil {
		s.observed(func() { s.cfg.Hooks.Relayed(len(ok), f.k == toResend) })
	}
	err = errors.Join(err, s.settleFailures(ctx, failed))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent += len(ok)
	f.err = errors.Join(f.err, err)
	return err
}

// tallies counts outcomes by target.
func tallies(outcomes map[*claimed]error) map[target]*tally {
	found := map[target]*tally{}
	for c, err := range outcomes {
		x := found[c.target()]
		if x == nil {
			x = &tally{}
			found[c.target()] = x
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

// fate is what becomes of a task that was not sent.
type fate struct {
	cause  string
	failed bool
	until  time.Time // given back until then
}

// fateOf decides it. retry is when the task's target is tried again.
func (c *claimed) fateOf(err error, retry, now time.Time, maxFailures int) fate {
	f := fate{cause: text(reason(err))}
	switch judge(err) {
	case impossible:
		f.failed = true
		return f
	case destination:
		f.failed = gone(err) && c.failures+1 >= maxFailures
		f.until = now.Add(backoff(c.failures, longestDestinationPause))
		if !gone(err) && !retry.IsZero() {
			f.until = retry
		}
	default:
		f.until = now.Add(backoff(c.failures, longestBrokerPause))
	}
	if f.failed {
		f.until = time.Time{}
	}
	return f
}

// settleFailures gives failed tasks back, or ends them. Tasks with the same
// fate share a statement.
func (s *Store) settleFailures(ctx context.Context, failures map[*claimed]error) error {
	now := s.now()
	groups := map[fate][]*claimed{}
	for c, err := range failures {
		f := c.fateOf(err, s.health.retry(c.target()), now, s.cfg.MaxSendFailures)
		groups[f] = append(groups[f], c)
	}
	var errs []error
	for f, list := range groups {
		switch {
		case list[0].bad != nil:
			errs = append(errs, s.failUnreadable(ctx, list, f.cause))
		case f.failed:
			errs = append(errs, s.fail(ctx, list, f.cause))
		default:
			errs = append(errs, s.giveBack(ctx, list, f.cause, f.until))
		}
		s.log.Warn("tasks could not be sent", zap.Int("tasks", len(list)), zap.String("first", list[0].ID), zap.Bool("failed", f.failed), zap.String("error", f.cause))
		if s.cfg.Hooks.SendFailed != nil {
			for _, c := range list {
				s.observed(func() { s.cfg.Hooks.SendFailed(c.Task, failures[c], f.failed) })
			}
		}
	}
	return errors.Join(errs...)
}
