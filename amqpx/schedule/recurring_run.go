package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// longestLook bounds the pause between two looks for recurring tasks, so that one
// that was just written is planned long before its tasks run out.
const longestLook = 15 * time.Second

// recur plans recurring tasks until ctx ends.
func (s *Store) recur(ctx context.Context) {
	for {
		written := s.pace.written()
		pause, err := s.planAll(ctx)
		if ctx.Err() != nil {
			return
		}
		s.report("recurring", err)
		if !wait(ctx, pause, min(pause, s.cfg.PollInterval), written) {
			return
		}
	}
}

// mostFailures is how many rows may fail in one look. The others are planned all
// the same; more than that is the database's trouble. Rows that failed are left alone
// for a time, so that the next look comes to others.
const mostFailures = 10

// aside is a row that this relay leaves alone for a time, because it could not plan it.
type aside struct {
	until time.Time
	err   error
}

const (
	failurePause = 5 * time.Second
	limitPause   = time.Minute // of a row that another relay may be able to read
	mostAside    = 5000        // placeholders of a statement
)

// planAll plans all rows that are to be looked at by now, each in a transaction of
// its own, and returns how long to wait.
func (s *Store) planAll(ctx context.Context) (pause time.Duration, err error) {
	pause = min(s.cfg.PollInterval, longestLook)
	longest := s.pace.longest(pause)
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return pause, err
	}
	maps.DeleteFunc(s.asides, func(_ string, a aside) bool { return !a.until.After(s.now()) })
	for failures := 0; failures < mostFailures && len(s.asides) < mostAside && ctx.Err() == nil; {
		var next time.Duration
		err := s.answered(ctx, func(ctx context.Context) (err error) { next, err = s.nextLook(ctx, d, longest); return err })
		if err != nil {
			return pause, errors.Join(s.leftAside(), sqldb.Explain(err))
		}
		if next > 0 {
			if len(s.asides) > 0 {
				next = min(pause, next)
			}
			return next, s.leftAside()
		}
		var r *row
		err = s.answered(ctx, func(ctx context.Context) (err error) { r, err = s.planNext(ctx, d); return err })
		switch {
		case r == nil || ctx.Err() != nil: // the end of this relay is no row's failure
			return pause, errors.Join(s.leftAside(), sqldb.Explain(err))
		case err == nil && r.limit != nil:
			a := aside{until: s.now().Add(limitPause)}
			if r.LastError == "" { // or the row says it
				a.err = r.limit
			}
			s.asides[r.Name] = a
		case err != nil && sqldb.Refused(err) && s.blame(ctx, d, r, err) == nil:
		case err != nil:
			s.asides[r.Name] = aside{s.now().Add(failurePause), fmt.Errorf("%s: %w", of(r.Name), sqldb.Explain(err))}
			failures++
		}
	}
	return pause, s.leftAside()
}

// leftAside are the errors of the rows that are left alone.
func (s *Store) leftAside() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s.asides)) {
		errs = append(errs, s.asides[name].err)
	}
	return errors.Join(errs...)
}

// notAside excludes the rows that are left alone.
func (s *Store) notAside() (where string, args []any) {
	for name := range s.asides {
		args = append(args, name)
	}
	if len(args) == 0 {
		return "1 = 1", nil
	}
	return "name NOT IN (" + marks(len(args)) + ")", args
}

// blame writes into a row why the database refuses its tasks, and lets it wait.
func (s *Store) blame(ctx context.Context, d Dialect, r *row, why error) error {
	s.log.Warn("the database refuses the tasks of a recurring task", zap.String("name", r.Name), zap.Error(why))
	_, err := s.db.ExecContext(ctx, d.Bind("UPDATE rabbitdelay_schedules SET last_error = ?, plan_at = ? WHERE name = ? AND version = ?"),
		text(why), s.now().Add(limitPause).UnixMilli(), r.Name, r.Version)
	return err
}

// nextLook is how long it takes until a row is to be looked at, at most longest; 0 for
// now.
func (s *Store) nextLook(ctx context.Context, d Dialect, longest time.Duration) (time.Duration, error) {
	var at sql.NullInt64
	where, args := s.notAside()
	if err := s.db.QueryRowContext(ctx, d.Bind("SELECT MIN(plan_at) FROM rabbitdelay_schedules WHERE "+where), args...).Scan(&at); err != nil {
		return 0, err
	}
	now := s.now().UnixMilli()
	if !at.Valid || at.Int64-now > longest.Milliseconds() {
		return longest, nil
	}
	return max(0, time.Duration(at.Int64-now)*time.Millisecond), nil
}

// planNext plans the row that has waited longest. It returns nil when there is none,
// or another relay has it; and the row with an error that is about it.
func (s *Store) planNext(ctx context.Context, d Dialect) (r *row, err error) {
	err = sqldb.Transact(ctx, s.db, readCommitted(d), func(tx sqldb.Tx) (err error) {
		if r, err = s.claimRow(ctx, tx, d); err != nil || r == nil {
			return err
		}
		return s.plan(ctx, tx, d, r)
	})
	return r, err
}

// claimRow takes a row for the time of the transaction, nil for none.
func (s *Store) claimRow(ctx context.Context, tx sqldb.Tx, d Dialect) (*row, error) {
	where, args := s.notAside()
	pick := "FROM rabbitdelay_schedules WHERE plan_at <= ? AND " + where + " ORDER BY plan_at LIMIT 1"
	cols := scheduleColumns(d, false)
	query := "SELECT " + cols + " " + pick + " FOR UPDATE SKIP LOCKED"
	if d == SQLite { // a statement that writes from its start, see claim
		query = "UPDATE rabbitdelay_schedules SET plan_at = plan_at WHERE name IN (SELECT name " + pick + ") RETURNING " + cols
	}
	list, err := readRows(ctx, tx, d.Bind(query), append([]any{s.now().UnixMilli()}, args...)...)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return list[0], nil
}
