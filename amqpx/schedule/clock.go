package schedule

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// clockQueries give the database's clock in milliseconds since the Unix epoch.
var clockQueries = map[Dialect]string{
	PostgreSQL: "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)",
	MySQL:      "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000",
	SQLite:     "SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}

// readClock reads the database's clock. SQLite is a part of this process, and has
// no other clock.
func (s *Store) readClock(ctx context.Context) (time.Time, error) {
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil || d == SQLite {
		return s.local(), err
	}
	var ms int64
	if err := s.db.QueryRowContext(ctx, clockQueries[d]).Scan(&ms); err != nil {
		return time.Time{}, fmt.Errorf("reading the database's clock: %w", err)
	}
	return time.UnixMilli(ms), nil
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
// three tries; on SQLite it is 0. The true difference is within uncertainty of
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
		s.cfg.Hooks.ClockSkew(best.skew, best.uncertainty)
	}
	return best, nil
}

// adjust corrects the store's clock.
func (s *Store) adjust(ctx context.Context) error {
	return s.answered(ctx, func(ctx context.Context) error {
		x, err := s.measure(ctx)
		if err == nil {
			s.offset.Store(int64(x.correction()))
		}
		return err
	})
}

// setClock adjusts the clock before the first claim, and says whether it could
// until ctx ended.
func (s *Store) setClock(ctx context.Context) bool {
	for {
		err := s.adjust(ctx)
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			return true
		}
		s.report("clock", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(s.cfg.PollInterval):
		}
	}
}

// corrected is the database's clock as this process knows it: its own, corrected
// by the difference that was measured last.
func (s *Store) corrected() time.Time { return s.local().Add(time.Duration(s.offset.Load())) }
