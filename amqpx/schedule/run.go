package schedule

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Run relays tasks, creates a task for each occurrence of a recurring task, sends overdue tasks again and purges
// finished tasks until ctx ends. It then finishes the running batches, within PublishTimeout and a few
// seconds, and returns nil. Several processes may run it on one database. They share the work without
// a leader.
//
// Run reports errors that occur while it runs through Hooks.Error, Health and the log, and continues. It returns
// ErrNoSender immediately if the store has no sender. When it starts, it returns ErrClock if the database's clock is
// more than a day from this process's, and ErrDenied if the database user lacks a permission.
//
// In a testing/synctest bubble, where a year passes immediately, set Config.VirtualTime and create the store inside the
// bubble. Instead of polling at intervals, Run then waits until something is due, or until a store on the same *sql.DB
// or pool writes. It finds tasks that are written in other ways within 10 minutes, or after Wake.
func (s *Store) Run(ctx context.Context) error {
	if s.sender == nil {
		return ErrNoSender
	}
	defer s.poller.Begin(s.db.DB)()
	s.faults.begin()
	defer s.faults.end()
	if err := s.poller.SetClock(ctx, s.cfg.PollInterval, s.reports("clock")); err != nil || ctx.Err() != nil {
		return err
	}
	if err := s.poller.Answered(ctx, s.db.CheckRights); err != nil {
		return err
	}
	locked := s.setRateLimits(ctx, s.cfg.RateLimits)
	// Plan recurring tasks before sending the first task, so that the misfire policy is applied to missed occurrences
	// before they are sent.
	_, err := s.planner.PlanAll(ctx)
	s.reports("recurring")(err)
	var wg sync.WaitGroup
	every := func(part string, interval time.Duration, do func() (pause time.Duration, err error)) {
		wg.Go(func() { s.poller.Every(ctx, interval, s.reports(part), do) })
	}
	wg.Go(func() {
		for len(locked) > 0 && polling.Sleep(ctx, s.cfg.PollInterval) == nil {
			locked = s.setRateLimits(ctx, locked)
		}
	})
	wg.Go(func() { s.planner.Loop(ctx, s.reports("recurring")) })
	for range s.poller.Workers(s.cfg.Workers) {
		wg.Go(func() { s.relay.Loop(ctx) })
	}
	every("sweep", s.cfg.SweepInterval, func() (time.Duration, error) {
		err := s.sweeper.Sweep(ctx)
		return s.sweeper.Next(ctx), err
	})
	every("recall", s.cfg.PollInterval, func() (time.Duration, error) { return s.relay.Recall(ctx) })
	every("purge", s.cfg.Retention.Every, func() (time.Duration, error) {
		return s.poller.Rarely(s.cfg.Retention.Every), s.purge(ctx)
	})
	every("clock", s.cfg.clockInterval, func() (time.Duration, error) {
		return s.cfg.clockInterval, s.poller.Adjust(ctx)
	})
	wg.Go(func() { s.relay.Beat(ctx) })
	if !s.cfg.VirtualTime { // in virtual time, statements and waiting for a connection take no time
		wg.Go(func() { s.watchPool(ctx) })
		wg.Go(func() { s.relay.KeepStatistics(ctx) })
	}
	if s.cfg.Listener != nil {
		wg.Go(func() { s.listen(ctx) })
	}
	wg.Wait()
	s.reports("relay")(s.relay.Finish(ctx))
	return nil
}

// Health reports whether Run works. It returns ErrNotRunning while Run is not running. While Run is running, it returns
// nil if the last attempt of each of Run's parts succeeded, and a *HealthError otherwise. It does no I/O, so a probe
// may call it every second.
//
// A part that failed is retried within 5 seconds. A database that hangs is reported as a failure after a minute, or
// after Lease if that is longer. A destination that rejects its messages is not a fault, because it delays only its own
// tasks, whose LastError shows it. A recurring task with an invalid row is not a fault either; see Recurring.LastError.
// A recurring task that only this process cannot plan is a fault. For the health of the sender, see amqpx.Client's
// Health.
func (s *Store) Health() error { return s.faults.health() }

// Wake makes this process's relays on the store's database poll for tasks now, and several times shortly afterwards,
// because they cannot know when the caller's transaction commits. Schedule and the methods that change tasks do that
// automatically.
func (s *Store) Wake() { polling.Wake(s.db.DB) }

// Ping checks whether the database answers within patience. The statement reads no table.
func (s *Store) Ping(ctx context.Context, patience time.Duration) error {
	return sqldb.Answers(ctx, s.db, patience)
}

// Pauses before listening again.
const (
	listenPause = time.Second      // after the connection was lost
	listenRetry = 10 * time.Minute // after notifications did not arrive
)

func (s *Store) listen(ctx context.Context) {
	report := s.reports("listen")
	polls := false // whether the relay polls because notifications do not arrive
	wake := func() {
		polls = false
		report(nil) // listening has started
		s.poller.Listening.Store(true)
		s.poller.Committed()
	}
	for {
		var err error
		// Listen may run user code, because a pgx connection calls its configuration's OnNotification.
		if p := guard.Call(s.log, "Listen of Config.Listener", func() { err = s.cfg.Listener.Listen(ctx, wake) }); p != nil {
			err = p
		}
		s.poller.Listening.Store(false)
		if ctx.Err() != nil {
			return
		}
		pause := listenPause
		if errors.Is(err, ErrNotNotified) {
			if !polls {
				s.log.Warn("the relay cannot receive notifications about tasks of other processes, so it polls for them",
					zap.Duration("poll_interval", s.cfg.PollInterval), zap.Error(err))
			}
			polls, pause, err = true, listenRetry, nil
		}
		report(err)
		if polling.Sleep(ctx, pause) != nil {
			return
		}
	}
}

func (s *Store) purge(ctx context.Context) error {
	n, err := s.Purge(ctx, s.cfg.Retention)
	if n > 0 {
		s.log.Debug("purged finished tasks", zap.Int64("tasks", n))
		if s.cfg.Hooks.Purged != nil {
			s.observed(func() { s.cfg.Hooks.Purged(n) })
		}
	}
	return err
}

// Purge deletes finished tasks whose retention has ended, with the records of their effects, and returns the number of
// deleted tasks. It deletes r.Batch rows at a time, each batch in a separate transaction. Zero fields of r default to
// the values of Config.Retention. Run purges regularly, so call Purge only to delete tasks sooner.
func (s *Store) Purge(ctx context.Context, r Retention) (int64, error) {
	setDefault(&r.Keep, s.cfg.Retention.Keep)
	setDefault(&r.KeepFailed, s.cfg.Retention.KeepFailed)
	setDefault(&r.Batch, s.cfg.Retention.Batch)
	now, err := s.nowIn(ctx, NoTx)
	if err != nil {
		return 0, err
	}
	return s.db.Purge(ctx, rows.Keep{Finished: r.Keep, Failed: r.KeepFailed, Batch: r.Batch}, now)
}

// ClockSkew measures the database's clock minus this process's clock, as the best of three samples. The true difference
// is within uncertainty of skew. On SQLite, and in virtual time, it is 0.
//
// Stores and handlers use the database's clock. They measure it once a minute as they use the database, and Run
// measures it once a minute. The store warns if the difference exceeds MaxClockSkew. Between two measurements, a
// change of this process's clock has no effect. Due times, however, are computed with the clocks of the programs that
// write tasks. If such a clock differs from the database's, that program's tasks are early or late by the difference.
func (s *Store) ClockSkew(ctx context.Context) (skew, uncertainty time.Duration, err error) {
	best, err := s.poller.Measure(ctx)
	return best.Skew, best.Uncertainty, err
}

// rateLimitPatience limits how long Run waits, when it starts, for rate limits that other sessions keep locked. Such a
// lock stops only the tasks of one destination, so Run must not wait longer for it.
const rateLimitPatience = 5 * time.Second

// setRateLimits writes the configured rate limits, except those that were changed by hand since they were last written.
// It returns the rate limits that it could not write.
func (s *Store) setRateLimits(ctx context.Context, rateLimits []RateLimit) (left []RateLimit) {
	bounded, cancel := context.WithTimeout(ctx, rateLimitPatience)
	defer cancel()
	var errs []error
	for _, x := range rateLimits {
		kept, err := s.setRateLimit(bounded, NoTx, x, true)
		if err != nil {
			left, errs = append(left, x), append(errs, err)
		}
		if kept.Queue+kept.Exchange != "" {
			s.log.Warn("a destination's rate limit was changed after this configuration had set it; the change is kept",
				zap.String("queue", x.Queue), zap.String("exchange", x.Exchange), zap.Float64("per_second", kept.PerSecond), zap.Float64("configured", x.PerSecond))
		}
	}
	if ctx.Err() == nil {
		s.reports("relay")(errors.Join(errs...))
	}
	return left
}
