package schedule

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/pace"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// Run relays tasks, makes those of recurring ones, sweeps overdue ones and purges
// finished ones until ctx ends. It then settles the running batches (within
// PublishTimeout and some seconds) and returns nil. Several processes may run it on
// one database; they share the work without a leader. Errors on the way go to
// Hooks.Error, Health and the log, and it goes on. It returns ErrNoSender at once
// when the store has no sender, and as it begins ErrClock when the database's clock
// is more than a day from this process's, and ErrDenied when the database's user
// lacks a right.
//
// In a testing/synctest bubble, where a year passes at once, it goes by the bubble's
// clock whatever the database. Instead of looking at intervals it waits for what is
// due and for what stores on the same *sql.DB or pool write; what is written past them
// it finds within 10 minutes, or by Wake. Make the store in the bubble.
func (s *Store) Run(ctx context.Context) error {
	if s.sender == nil {
		return ErrNoSender
	}
	defer s.pace.Begin(s.db.DB)()
	s.faults.begin()
	defer s.faults.end()
	if err := s.pace.SetClock(ctx, s.cfg.PollInterval, s.reports("clock")); err != nil || ctx.Err() != nil {
		return err
	}
	if err := s.pace.Answered(ctx, s.db.CheckRights); err != nil {
		return err
	}
	locked := s.setCeilings(ctx, s.cfg.Ceilings)
	// Before the first task is sent, so that what was missed is not sent before its
	// misfire policy is asked.
	_, err := s.planner.PlanAll(ctx)
	s.reports("recurring")(err)
	var wg sync.WaitGroup
	every := func(part string, interval time.Duration, do func() (pause time.Duration, err error)) {
		wg.Go(func() { s.pace.Every(ctx, interval, s.reports(part), do) })
	}
	wg.Go(func() {
		for len(locked) > 0 && pace.Sleep(ctx, s.cfg.PollInterval) == nil {
			locked = s.setCeilings(ctx, locked)
		}
	})
	wg.Go(func() { s.planner.Loop(ctx, s.reports("recurring")) })
	for range s.pace.Workers(s.cfg.Workers) {
		wg.Go(func() { s.relay.Loop(ctx) })
	}
	every("sweep", s.cfg.SweepInterval, func() (time.Duration, error) {
		err := s.sweeper.Sweep(ctx)
		return s.sweeper.Next(ctx), err
	})
	every("recall", s.cfg.PollInterval, func() (time.Duration, error) { return s.relay.Recall(ctx) })
	every("purge", s.cfg.Retention.Every, func() (time.Duration, error) {
		return s.pace.Rarely(s.cfg.Retention.Every), s.purge(ctx)
	})
	every("clock", s.cfg.ClockInterval, func() (time.Duration, error) {
		return s.cfg.ClockInterval, s.pace.Adjust(ctx)
	})
	wg.Go(func() { s.relay.Beat(ctx) })
	if s.cfg.Listener != nil {
		wg.Go(func() { s.listen(ctx) })
	}
	wg.Wait()
	s.reports("relay")(s.relay.Finish(ctx))
	return nil
}

// Health returns nil while Run runs and each part of it succeeded when it last ran,
// ErrNotRunning while Run does not run, and else a *HealthError. It asks nobody, so
// a probe may call it each second. A part that failed is tried again within 15
// seconds. A database that hangs is a failure after a minute (Lease, if that is
// longer). A destination in trouble is no fault: it delays its own tasks only,
// which say so. Nor is a recurring task whose row is wrong, which Recurring.LastError
// says; one that only this process cannot read is. For the sender see amqpx.Client's Health.
func (s *Store) Health() error { return s.faults.health() }

// Wake makes the relays of this process that run on the store's database look for
// tasks now. Schedule and the changes do it by themselves, but cannot know when the
// caller's transaction commits; a relay looks several times in the moments after.
func (s *Store) Wake() { pace.Wake(s.db.DB) }

// Ping returns nil where the database answers a statement that reads nothing within
// patience, and else why it does not.
func (s *Store) Ping(ctx context.Context, patience time.Duration) error {
	return sqldb.Answers(ctx, s.db, patience)
}

// listenPause is the pause before listening again after the connection was lost.
const listenPause = time.Second

func (s *Store) listen(ctx context.Context) {
	report := s.reports("listen")
	wake := func() {
		report(nil) // it listens
		s.Wake()
	}
	for {
		err := s.cfg.Listener.Listen(ctx, wake)
		if ctx.Err() != nil {
			return
		}
		report(err)
		if pace.Sleep(ctx, listenPause) != nil {
			return
		}
	}
}

func (s *Store) purge(ctx context.Context) error {
	n, err := s.Purge(ctx, s.cfg.Retention)
	if n > 0 {
		s.log.Debug("finished tasks purged", zap.Int64("tasks", n))
		if s.cfg.Hooks.Purged != nil {
			s.observed(func() { s.cfg.Hooks.Purged(n) })
		}
	}
	return err
}

// Purge deletes tasks that finished longer ago than r allows, with the records of
// their effects, and returns the number of tasks. It deletes r.Batch rows at a time,
// each batch in a transaction of its own. Fields of r that are zero take the
// store's configuration. Run does it by itself.
func (s *Store) Purge(ctx context.Context, r Retention) (int64, error) {
	setDefault(&r.Keep, s.cfg.Retention.Keep)
	setDefault(&r.KeepFailed, s.cfg.Retention.KeepFailed)
	setDefault(&r.Batch, s.cfg.Retention.Batch)
	return s.db.Purge(ctx, rows.Keep{Finished: r.Keep, Failed: r.KeepFailed, Batch: r.Batch}, s.nowIn(ctx, NoTx))
}

// ClockSkew measures the database's clock minus this process's, as the best of
// three tries; on SQLite, and in a testing/synctest bubble, it is 0. The true difference
// is within uncertainty of it. Store and handlers go by the database's clock: they measure it
// once a minute as they use the database, Run every ClockInterval, and the store warns beyond
// MaxClockSkew. Between two measurements a step of this process's clock changes nothing. Due instants come from
// the clocks of the programs that write tasks; if those differ from the database's, their tasks
// are early or late by as much.
func (s *Store) ClockSkew(ctx context.Context) (skew, uncertainty time.Duration, err error) {
	best, err := s.pace.Measure(ctx)
	return best.Skew, best.Uncertainty, err
}

// ceilingPatience bounds how long the start of a relay waits for ceilings that other sessions keep locked: those stop
// their own destinations, and must not stop all others.
const ceilingPatience = 5 * time.Second

// setCeilings writes ceilings of the configuration that were not changed by hand since, and returns those that it
// could not write.
func (s *Store) setCeilings(ctx context.Context, ceilings []Ceiling) (left []Ceiling) {
	bounded, cancel := context.WithTimeout(ctx, ceilingPatience)
	defer cancel()
	var errs []error
	for _, x := range ceilings {
		kept, err := s.setCeiling(bounded, NoTx, x, true)
		if err != nil {
			left, errs = append(left, x), append(errs, err)
		}
		if kept.Queue+kept.Exchange != "" {
			s.log.Warn("the ceiling of a destination was changed since this configuration wrote it, and stays so",
				zap.String("queue", x.Queue), zap.String("exchange", x.Exchange), zap.Float64("per_second", kept.PerSecond), zap.Float64("configured", x.PerSecond))
		}
	}
	if ctx.Err() == nil {
		s.reports("relay")(errors.Join(errs...))
	}
	return left
}
