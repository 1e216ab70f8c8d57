package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// longestLook bounds the pause between two looks for recurring tasks, so that one
// that was just written is planned long before its tasks run out.
const longestLook = 15 * time.Second

// recur plans recurring tasks until ctx ends.
func (s *Store) recur(ctx context.Context) {
	for {
		pause, err := s.planAll(ctx)
		if ctx.Err() != nil {
			return
		}
		s.report("recurring", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// mostFailures is how many rows may fail in one look. The others are planned all
// the same; more than that is the database's trouble.
const mostFailures = 10

// planAll plans all rows that are to be looked at by now, each in a transaction of
// its own, and says how long to wait.
func (s *Store) planAll(ctx context.Context) (pause time.Duration, err error) {
	pause = min(s.cfg.PollInterval, longestLook)
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return pause, err
	}
	var failed []any
	var errs []error
	for len(failed) < mostFailures && ctx.Err() == nil {
		var next time.Duration
		err := s.answered(ctx, func(ctx context.Context) (err error) { next, err = s.nextLook(ctx); return err })
		if err != nil {
			return pause, errors.Join(append(errs, sqldb.Explain(err))...)
		}
		if next > 0 {
			return min(pause, next), errors.Join(errs...)
		}
		var name string
		err = s.answered(ctx, func(ctx context.Context) (err error) { name, err = s.planNext(ctx, d, failed); return err })
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", of(name), sqldb.Explain(err)))
		}
		if name == "" {
			break
		}
		if err != nil {
			failed = append(failed, name)
		}
	}
	return pause, errors.Join(errs...)
}

// nextLook is how long it takes until a row is to be looked at, 0 for now.
func (s *Store) nextLook(ctx context.Context) (time.Duration, error) {
	var at sql.NullInt64
	if err := s.db.QueryRowContext(ctx, "SELECT MIN(plan_at) FROM rabbitdelay_schedules").Scan(&at); err != nil {
		return 0, err
	}
	now := s.now().UnixMilli()
	if !at.Valid || at.Int64-now > longestLook.Milliseconds() {
		return longestLook, nil
	}
	return max(0, time.Duration(at.Int64-now)*time.Millisecond), nil
}

// planNext plans the row that has waited longest, without those that failed. Its
// name is empty when there is none, or another relay has it.
func (s *Store) planNext(ctx context.Context, d Dialect, failed []any) (name string, err error) {
	err = sqldb.Transact(ctx, s.db, readCommitted(d), func(tx sqldb.Tx) error {
		name = ""
		r, err := s.claimRow(ctx, tx, d, failed)
		if err != nil || r == nil {
			return err
		}
		name = r.Name
		return s.plan(ctx, tx, d, r)
	})
	return name, err
}

// claimRow takes a row for the time of the transaction, nil for none.
func (s *Store) claimRow(ctx context.Context, tx sqldb.Tx, d Dialect, failed []any) (*row, error) {
	pick := "FROM rabbitdelay_schedules WHERE plan_at <= ?"
	if len(failed) > 0 {
		pick += " AND name NOT IN (" + marks(len(failed)) + ")"
	}
	pick += " ORDER BY plan_at LIMIT 1"
	cols := scheduleColumns(d, false)
	query := "SELECT " + cols + " " + pick + " FOR UPDATE SKIP LOCKED"
	if d == SQLite { // a statement that writes from its start, see claim
		query = "UPDATE rabbitdelay_schedules SET plan_at = plan_at WHERE name IN (SELECT name " + pick + ") RETURNING " + cols
	}
	list, err := readRows(ctx, tx, d.Bind(query), append([]any{s.now().UnixMilli()}, failed...)...)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return list[0], nil
}
