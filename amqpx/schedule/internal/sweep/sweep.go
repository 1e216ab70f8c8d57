package sweep

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// Inspector reads the state of a queue; see schedule.QueueInspector.
type Inspector interface {
	QueueInfo(ctx context.Context, queue string) (amqpx.QueueInfo, error)
}

// Sweeper sends overdue tasks again. It shares the database and the configuration of a relay.
type Sweeper struct {
	*relay.Relay

	Interval  time.Duration
	Inspector Inspector // nil if the depth of queues cannot be determined

	overdueAt polling.Instant // when the next task becomes overdue
	claimed   atomic.Bool     // whether this sweep has claimed tasks to send again
	idle      int             // consecutive sweeps that found overdue tasks and sent none again

	mu      sync.Mutex
	windows map[relay.Target]*window // windows of the destinations with overdue tasks
}

// Next returns the pause until the next sweep. Outside of virtual time, that is the interval. In virtual time the pause
// may be longer, because each sweep takes real time: the pause lasts until the next task becomes overdue, and while
// there are overdue tasks that may not be sent again yet, it doubles up to one Grace. While tasks are running under
// leases, which may end at any time, the pause is the interval.
func (s *Sweeper) Next(ctx context.Context) time.Duration {
	if !s.Poller.Virtual() {
		return s.Interval
	}
	c, err := s.DB.Conn(ctx)
	if err != nil {
		return s.Interval
	}
	if running, err := c.CountRunning(ctx); err != nil || running > 0 {
		return s.Interval
	}
	if s.idle > 0 {
		return max(s.Interval, min(s.Interval<<min(s.idle, maxDoublings), s.Grace))
	}
	return max(s.Interval, s.overdueAt.Until(s.Poller.Now(), s.Poller.Longest(s.Interval)))
}

// maxDoublings limits how many times the interval, which is at most a day, is doubled, so that the result does not
// overflow.
const maxDoublings = 10

// Sweep ends the leases of dead processes, fails tasks without a valid due time, and sends overdue
// tasks again.
func (s *Sweeper) Sweep(ctx context.Context) error {
	c, err := s.DB.Conn(ctx)
	if err != nil {
		return err
	}
	return errors.Join(s.endLeases(ctx, c), s.failTimeless(ctx, c), s.resendOverdue(ctx, c))
}

// endLeases makes tasks pending again if their leases have ended without an outcome, usually because their processes
// have died. The broker redelivers their messages. Once pending, the tasks can also be cancelled. See rows.EndLease for
// a task whose unique key another pending task has.
func (s *Sweeper) endLeases(ctx context.Context, c rows.Conn) error {
	now := s.Poller.Now().UnixMilli()
	ids, err := c.EndedLeases(ctx, now)
	if err != nil {
		return fmt.Errorf("finding leases that have ended: %w", err)
	}
	for _, id := range ids {
		status, err := c.EndLease(ctx, id, now)
		if err != nil {
			return fmt.Errorf("ending the lease of task %s: %w", id, err)
		}
		if status != "" {
			s.Log.Warn("a lease has ended without an outcome", zap.String("id", id), zap.String("status", status))
		}
	}
	return nil
}

// failTimeless fails pending tasks whose due_at is not a valid time, because they would never be due.
func (s *Sweeper) failTimeless(ctx context.Context, c rows.Conn) error {
	list, err := c.Timeless(ctx)
	if err != nil {
		return fmt.Errorf("finding tasks without a due time: %w", err)
	}
	failures := map[*rows.Task]error{}
	for _, t := range list {
		failures[t] = t.Bad
	}
	return s.SettleFailures(ctx, failures)
}

// sweepers is how many destinations are swept concurrently, so that a destination that does not
// answer or confirm delays few others.
const sweepers = 8

// resendOverdue sends overdue tasks of each destination again, as far as the evidence allows.
func (s *Sweeper) resendOverdue(ctx context.Context, c rows.Conn) error {
	now := s.Poller.Now().UnixMilli()
	lanes, next, err := s.Look(ctx, rows.ToResend, now)
	if err != nil {
		return err
	}
	if len(lanes) > 0 {
		next = now
	}
	s.overdueAt.Set(next)
	s.claimed.Store(false)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	collect := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	slots := make(chan struct{}, sweepers)
	for _, w := range lanes {
		found, err := s.suspicions(ctx, c, w, now)
		collect(err)
		for _, x := range found {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				collect(s.sweepTarget(ctx, c, x))
			})
		}
	}
	wg.Wait()
	if s.idle++; len(lanes) == 0 || s.claimed.Load() {
		s.idle = 0
	}
	s.forgetWindows(now)
	return errors.Join(errs...)
}

// suspicion is a destination whose messages may be lost, with the evidence.
type suspicion struct {
	relay.Target
	evidence
}

// suspicions returns the destinations of a lane that have tasks whose resend_at has passed, with the
// progress of their consumers according to the table.
func (s *Sweeper) suspicions(ctx context.Context, c rows.Conn, w rows.Waiting, now int64) ([]suspicion, error) {
	firsts := map[string]int64{"": w.First}
	if w.Exchange != "" {
		var err error
		if firsts, err = c.FirstOverdue(ctx, w.Lane, now); err != nil {
			return nil, fmt.Errorf("finding overdue tasks: %w", err)
		}
	}
	passages, err := c.Passages(ctx, w.Lane, now)
	if err != nil {
		return nil, fmt.Errorf("reading the progress of consumers: %w", err)
	}
	list := make([]suspicion, 0, len(firsts))
	for key, first := range firsts {
		list = append(list, suspicion{relay.Target{Queue: w.Queue, Exchange: w.Exchange, Key: key}, evidence{
			now: now, grace: s.Grace.Milliseconds(), first: first, Passage: passages[key], ready: undecided,
		}})
	}
	return list, nil
}

// sweepTarget sends the overdue tasks of one destination again, as far as the evidence allows.
func (s *Sweeper) sweepTarget(ctx context.Context, c rows.Conn, x suspicion) error {
	g, ask := x.ground()
	var info amqpx.QueueInfo
	if ask {
		var err error
		if x.ready, info, err = s.depth(ctx, x.Target); err != nil {
			return err
		}
		g, _ = x.ground()
	}
	w := s.window(x.Target)
	switch g {
	case noGround:
		if x.ready > 0 && w.worthLogging(x.now) {
			s.Log.Warn("overdue tasks are waiting in their queue, but its consumers make no progress; the tasks are not sent again",
				zap.Stringer("destination", x.Target), zap.Int("ready", info.Ready), zap.Int("consumers", info.Consumers))
		}
		return nil
	case passedBy:
		_, err := s.resend(ctx, x, g, math.MaxInt)
		return err
	}
	unsettled, err := c.CountUnsettled(ctx, w.out)
	if err != nil {
		return fmt.Errorf("counting tasks that were sent again: %w", err)
	}
	if w.failing(x.now, x.grace, int(unsettled)) && w.worthLogging(x.now) {
		s.Log.Warn("tasks were sent again, but no handler settles them; is their consumer running, and is its handler wrapped in schedule.Handler?",
			zap.Stringer("destination", x.Target), zap.Int64("tasks", unsettled))
	}
	tried, err := s.resend(ctx, x, g, w.allowed(g, x.now, x.grace, int(unsettled)))
	w.remember(tried, x.now)
	return err
}

// resend sends tasks of a destination again, in batches and at most limit in all, and returns the ids of the tasks that
// it tried to send.
func (s *Sweeper) resend(ctx context.Context, x suspicion, g ground, limit int) (tried []string, err error) {
	total := 0
	defer func() {
		if total > 0 {
			s.Log.Info("sent overdue tasks again", zap.Int("tasks", total), zap.Stringer("destination", x.Target), zap.String("because", string(g)))
		}
	}()
	for limit > 0 && err == nil && ctx.Err() == nil {
		most := min(limit, s.Allowance(x.Target))
		if most == 0 {
			break // the destination is in back-off
		}
		list, claimErr := s.Claim(ctx, rows.ToResend, []rows.ClaimRequest{x.request(g, most, s.MaxSends)})
		if claimErr != nil || len(list) == 0 {
			return tried, claimErr
		}
		s.claimed.Store(true)
		rest, failErr := s.giveUp(ctx, x.Target, list)
		sent, sendErr := s.PublishClaimed(context.WithoutCancel(ctx), rows.ToResend, rest)
		for _, t := range rest {
			tried = append(tried, t.ID)
		}
		total, err = total+sent, errors.Join(failErr, sendErr)
		if limit -= len(list); sent < len(rest) {
			break // the broker does not accept messages
		}
	}
	return tried, err
}

// request returns the request for tasks to claim. If the ground is allQuiet, there is no proof that messages are lost,
// so request leaves out tasks that were already sent MaxSends times, because the sweeper would fail them.
func (x suspicion) request(g ground, most, maxSends int) rows.ClaimRequest {
	w := rows.ClaimRequest{Lane: rows.Lane{Queue: x.Queue, Exchange: x.Exchange}, Until: x.until(g), Most: most, Keys: []string{x.Key}}
	if g == allQuiet {
		w.SendsLess = maxSends
	}
	return w
}

// giveUp fails the tasks that were sent MaxSends times, and returns the others.
func (s *Sweeper) giveUp(ctx context.Context, t relay.Target, list []*rows.Task) (rest []*rows.Task, err error) {
	failures := map[*rows.Task]error{}
	for _, c := range list {
		if c.Sends < s.MaxSends {
			rest = append(rest, c)
			continue
		}
		failures[c] = fmt.Errorf("%w, which was sent %d times (MaxSends); check whether the handler of %s is wrapped in schedule.Handler, then revive the task", relay.ErrMaxSends, c.Sends, t)
		if c.LastError != "" {
			failures[c] = fmt.Errorf("%w; previous error: %s", failures[c], c.LastError)
		}
	}
	return rest, s.SettleFailures(ctx, failures)
}

// depthTimeout is the time limit of a request for a queue's depth.
const depthTimeout = 5 * time.Second

// depth asks the broker for the number of ready messages in a queue. It returns unknownDepth for an exchange, and if
// the broker does not let this user read the queue, and 0 if the queue does not exist.
func (s *Sweeper) depth(ctx context.Context, t relay.Target) (ready int, info amqpx.QueueInfo, err error) {
	if s.Inspector == nil || t.Queue == "" {
		return unknownDepth, info, nil
	}
	ctx, cancel := context.WithTimeout(ctx, depthTimeout)
	defer cancel()
	info, err = s.Inspector.QueueInfo(ctx, t.Queue)
	if err == nil {
		return info.Ready, info, nil
	}
	if ae, ok := errors.AsType[*amqp.Error](err); ok {
		switch ae.Code {
		case amqp.NotFound:
			return 0, info, nil
		case amqp.AccessRefused, amqp.ResourceLocked:
			return unknownDepth, info, nil
		}
	}
	return unknownDepth, info, err
}

// window returns the window of a destination, and creates it if there is none. It records the time of its use
// for forgetWindows.
func (s *Sweeper) window(t relay.Target) *window {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.windows == nil {
		s.windows = map[relay.Target]*window{}
	}
	w := s.windows[t]
	if w == nil {
		w = &window{}
		s.windows[t] = w
	}
	w.used = s.Poller.Now().UnixMilli()
	return w
}

// forgetWindows removes the windows of destinations that have had no overdue tasks for two Graces.
func (s *Sweeper) forgetWindows(now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t, w := range s.windows {
		if w.used+2*s.Grace.Milliseconds() < now {
			delete(s.windows, t)
		}
	}
}
