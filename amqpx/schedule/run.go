package schedule

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
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
	defer s.begin()()
	s.faults.run(true)
	defer s.faults.run(false)
	if err := s.setClock(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	if err := s.answered(ctx, s.checkRights); err != nil {
		return err
	}
	// Before the first task is sent, so that what was missed is not sent before its
	// misfire policy is asked.
	_, err := s.planAll(ctx)
	s.report("recurring", err)
	var wg sync.WaitGroup
	wg.Go(func() { s.recur(ctx) })
	for range s.pace.workers(s.cfg.Workers) {
		wg.Go(func() { s.relay(ctx) })
	}
	wg.Go(func() {
		s.every(ctx, s.cfg.SweepInterval, "sweep", func() (time.Duration, error) {
			err := errors.Join(s.endLeases(ctx), s.failTimeless(ctx), s.sweep(ctx))
			return s.untilSweep(ctx), err
		})
	})
	wg.Go(func() {
		s.every(ctx, s.cfg.Retention.Every, "purge", func() (time.Duration, error) { return s.pace.rarely(s.cfg.Retention.Every), s.purge(ctx) })
	})
	wg.Go(func() {
		s.every(ctx, s.cfg.ClockInterval, "clock", func() (time.Duration, error) { return s.cfg.ClockInterval, s.adjust(ctx) })
	})
	wg.Go(func() { s.beat(ctx) })
	if s.cfg.Listener != nil {
		wg.Go(func() { s.listen(ctx) })
	}
	wg.Wait()
	s.flying.Wait()
	// What cannot be marked now is published again when the lease ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	defer cancel()
	s.report("relay", s.settleHeld(ctx, lastTries))
	return nil
}

// lastTries is how often the rows that others hold are looked at when Run ends,
// within a third of a second.
const lastTries = 7

// Wake makes the relays of this process that run on the store's database look for
// tasks now. Schedule and the changes do it by themselves, but cannot know when the
// caller's transaction commits; a relay looks several times in the moments after.
func (s *Store) Wake() {
	for _, x := range running(s.db) {
		x.pace.ring()
		select {
		case x.wake <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// wakeFor wakes the relay for tasks that could be due before its next look.
func (s *Store) wakeFor(due int64) {
	wrote(s.db)
	if due <= s.now().Add(2*s.cfg.PollInterval).UnixMilli() {
		s.Wake()
	}
}

// firstLook is the pause between the looks after a wake; it doubles up to
// PollInterval.
const firstLook = 4 * time.Millisecond

func (s *Store) relay(ctx context.Context) {
	pause, longest := s.cfg.PollInterval, s.pace.longest(s.cfg.PollInterval)
	for {
		written := s.pace.written()
		found, sent, err := s.step(ctx)
		if ctx.Err() != nil {
			return
		}
		s.report("relay", err)
		if err == nil && sent > 0 && s.more.Load() {
			continue
		}
		if err != nil || (found > 0 && sent == 0) {
			pause = s.cfg.PollInterval // do not spin on a fault
		}
		now := s.now()
		wait := s.ahead.until(now.Add(s.cfg.Horizon), pause)
		if !s.health.next(now).IsZero() {
			wait = min(wait, s.health.next(now).Sub(now))
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-s.wake:
				pause, waiting = firstLook, false
			case <-written:
				pause, written = s.cfg.PollInterval, nil
				wait = min(wait, pause)
			case <-time.After(wait):
				pause, waiting = min(2*pause, longest), false
			}
		}
	}
}

// againAfter is the longest pause after a part of Run has failed.
const againAfter = 15 * time.Second

// every does something now and at each interval, or after the pauses that do returns;
// sooner after it failed.
func (s *Store) every(ctx context.Context, interval time.Duration, what string, do func() (pause time.Duration, err error)) {
	for {
		began, written := time.Now(), s.pace.written()
		pause, err := do()
		if ctx.Err() != nil {
			return
		}
		s.report(what, err)
		if err != nil {
			pause = min(interval, againAfter)
		}
		if !wait(ctx, pause-time.Since(began), interval, written) {
			return
		}
	}
}

// listenPause is the pause before listening again after the connection was lost.
const listenPause = time.Second

func (s *Store) listen(ctx context.Context) {
	wake := func() {
		s.report("listen", nil) // it listens
		s.Wake()
	}
	for {
		err := s.cfg.Listener.Listen(ctx, wake)
		if ctx.Err() != nil {
			return
		}
		s.report("listen", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(listenPause):
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
// their effects, and returns the tasks' number. It deletes r.Batch rows at a time,
// each batch in a transaction of its own. Fields of r that are zero take the
// store's configuration. Run does it by itself.
func (s *Store) Purge(ctx context.Context, r Retention) (int64, error) {
	setDefault(&r.Keep, s.cfg.Retention.Keep)
	setDefault(&r.KeepFailed, s.cfg.Retention.KeepFailed)
	setDefault(&r.Batch, s.cfg.Retention.Batch)
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return 0, err
	}
	var total int64
	for _, e := range []struct {
		status Status
		keep   time.Duration
	}{{StatusDone, r.Keep}, {StatusCancelled, r.Keep}, {StatusExpired, r.Keep}, {StatusFailed, r.KeepFailed}} {
		n, err := sqldb.Purge(ctx, s.db, d, sqldb.Expired{
			Table: "rabbitdelay_tasks", Key: "id",
			Where: "status = '" + string(e.status) + "' AND finished_at < ?", Args: []any{s.now().Add(-e.keep).UnixMilli()},
			Order: "finished_at",
		}, r.Batch)
		total += n
		if err != nil {
			return total, err
		}
	}
	_, err = sqldb.Purge(ctx, s.db, d, sqldb.Expired{
		Table: "rabbitdelay_effects", Key: "task_id, created_at, version, queue",
		Where: "updated_at < ? AND lease_until < ?", Args: []any{s.now().Add(-r.Keep).UnixMilli(), s.now().UnixMilli()}, Order: "updated_at",
	}, r.Batch)
	return total, err
}
