package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/faketime"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// clockQueries give the database's clock in milliseconds since the Unix epoch.
var clockQueries = map[Dialect]string{
	PostgreSQL: "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)",
	MySQL:      "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000",
	SQLite:     "SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}

// ownClock reports whether this process's clock is the one to go by: SQLite is a part of
// the process, and a bubble's time is not known outside of it.
func ownClock(d Dialect) bool { return d == SQLite || faketime.Inside() }

// readClock reads the database's clock, by which relays and handlers go.
func readClock(ctx context.Context, c sqldb.Conn, d Dialect, local func() time.Time) (time.Time, error) {
	if ownClock(d) {
		return local(), nil
	}
	var ms int64
	if err := c.QueryRowContext(ctx, clockQueries[d]).Scan(&ms); err != nil {
		return time.Time{}, fmt.Errorf("reading the database's clock: %w", err)
	}
	return time.UnixMilli(ms), nil
}

func (s *Store) readClock(ctx context.Context) (time.Time, error) {
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return time.Time{}, err
	}
	return readClock(ctx, s.db, d, s.local)
}

// sample is one measurement of the database's clock minus this process's: the
// true difference is within uncertainty of skew.
type sample struct{ skew, uncertainty time.Duration }

// samples are as many as are taken at a time, of which the best counts.
const samples = 3

func (s *Store) sample(ctx context.Context) (sample, error) {
	before := s.local()
	at, err := s.clock(ctx)
	took := s.local().Sub(before)
	return sample{at.Sub(before.Add(took / 2)), took/2 + time.Millisecond}, err
}

// leastSkew is the difference of clocks below which they count as the same: it
// may come from their adjustment, and would only make instants jump.
const leastSkew = 20 * time.Millisecond

// correction is what the sample says that this process's clock is to be corrected
// by.
func (x sample) correction() time.Duration {
	if x.skew.Abs() <= x.uncertainty+leastSkew {
		return 0
	}
	return x.skew.Round(time.Millisecond)
}

// ClockSkew measures the database's clock minus this process's, as the best of
// three tries; on SQLite, and in a testing/synctest bubble, it is 0. The true difference is within uncertainty of
// it. The relay goes by the database's clock: Run measures the difference before
// it begins, and regularly after that, corrects this process's clock by it, and
// warns beyond MaxClockSkew. Due instants come from the clocks of the programs
// that write tasks; if those differ from the database's, their tasks are early or
// late by as much.
func (s *Store) ClockSkew(ctx context.Context) (skew, uncertainty time.Duration, err error) {
	best, err := s.measure(ctx)
	return best.skew, best.uncertainty, err
}

func (s *Store) measure(ctx context.Context) (best sample, err error) {
	for i := range samples {
		x, err := s.sample(ctx)
		if err != nil {
			return sample{}, err
		}
		if i == 0 || x.uncertainty < best.uncertainty {
			best = x
		}
	}
	if best.skew.Abs()-best.uncertainty > s.cfg.MaxClockSkew {
		s.log.Warn("the database's clock differs from this process's, and is the one that the relay goes by; synchronise the clocks",
			zap.Duration("difference", best.skew), zap.Duration("uncertainty", best.uncertainty), zap.Duration("bound", s.cfg.MaxClockSkew))
	}
	if s.cfg.Hooks.ClockSkew != nil {
		s.observed(func() { s.cfg.Hooks.ClockSkew(best.skew, best.uncertainty) })
	}
	return best, nil
}

// farthestClock is how far the database's clock may be from this process's. What is
// farther is no clock that runs wrong: a machine has not been set, or time is simulated.
const farthestClock = 24 * time.Hour

// adjust corrects the store's clock. It returns ErrClock, and leaves it as it was, where
// the correction is no correction.
func (s *Store) adjust(ctx context.Context) error {
	return s.answered(ctx, func(ctx context.Context) error {
		x, err := s.measure(ctx)
		if err == nil && x.skew.Abs()-x.uncertainty > farthestClock {
			err = ErrClock
		}
		if err == nil {
			s.offset.Store(int64(x.correction()))
		}
		return err
	})
}

// setClock adjusts the clock before the first claim. It tries again until ctx ends, but
// for ErrClock.
func (s *Store) setClock(ctx context.Context) error {
	for {
		err := s.adjust(ctx)
		if err == nil || errors.Is(err, ErrClock) {
			return err
		}
		if ctx.Err() == nil {
			s.report("clock", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.cfg.PollInterval):
		}
	}
}

// corrected is the database's clock as this process knows it: its own, corrected
// by the difference that was measured last.
func (s *Store) corrected() time.Time { return s.local().Add(time.Duration(s.offset.Load())) }
