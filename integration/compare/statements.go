package main

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/rabbitdelay/rabbitdelay/integration/bench"
)

// statements counts what PostgreSQL executes and logs from the scheduling of tasks at a steady rate until the last of
// them has been handled. That includes the polling of the contender's workers during that time. A statement that begins
// or commits a transaction counts as a statement.
func statements(ctx context.Context, r *run, c contender, row *bench.Case) error {
	if c.keeper != postgreSQL {
		return nil
	}
	return r.with(ctx, c, func(s system) error {
		l := newLedger()
		return working(ctx, s, l, func() error {
			return onDatabase(ctx, r.postgres.URL(), func(conn *pgx.Conn) error {
				if _, err := conn.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"); err != nil {
					return err
				}
				var before, after executed
				if err := before.read(ctx, conn); err != nil {
					return err
				}
				if _, err := r.pace(ctx, s, l, 0); err != nil {
					return err
				}
				missing, err := l.wait(ctx, r.sizes.patience)
				if err != nil {
					return err
				}
				if err := after.read(ctx, conn); err != nil {
					return err
				}
				r.once(c, l, missing)
				n := float64(len(l.lateness()))
				if n == 0 {
					return nil
				}
				row.Add(metricExecuted, "", (after.calls-before.calls)/n)
				row.Add(metricCommits, "", (after.commits-before.commits)/n)
				row.Add(metricLogged, "", (after.logged-before.logged)/n)
				return nil
			})
		})
	})
}

// executed has the counters of a PostgreSQL server since its start.
type executed struct{ calls, commits, logged float64 }

func (x *executed) read(ctx context.Context, conn *pgx.Conn) error {
	return conn.QueryRow(ctx, `SELECT coalesce(sum(calls), 0)::float8,
		coalesce(sum(calls) FILTER (WHERE lower(query) LIKE 'commit%'), 0)::float8,
		pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8
		FROM pg_stat_statements`).Scan(&x.calls, &x.commits, &x.logged)
}
