package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// table keeps tasks in an indexed table of PostgreSQL that a poller reads. A transaction locks tasks that are due,
// handles them and deletes them.
type table struct {
	pool *pgxpool.Pool
	dsn  string
	drop func(ctx context.Context) error
}

const polledTable = `CREATE TABLE tasks (id BIGSERIAL PRIMARY KEY, due TIMESTAMPTZ NOT NULL, payload BYTEA NOT NULL);
CREATE INDEX ON tasks (due)`

func openTable(ctx context.Context, e *env) (system, error) {
	dsn, drop, err := e.database(ctx)
	if err != nil {
		return nil, err
	}
	pool, err := e.pool(ctx, dsn)
	if err != nil {
		return nil, errors.Join(err, drop(ctx))
	}
	t := &table{pool, dsn, drop}
	if _, err := pool.Exec(ctx, polledTable); err != nil {
		return nil, errors.Join(err, t.close(ctx))
	}
	return t, nil
}

func (t *table) schedule(ctx context.Context, one task) error {
	return pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO tasks (due, payload) VALUES ($1, $2)", one.due, one.payload())
		return err
	})
}

func (t *table) scheduleAll(ctx context.Context, list []task) error {
	dues, payloads := make([]time.Time, len(list)), make([][]byte, len(list))
	for i, one := range list {
		dues[i], payloads[i] = one.due, one.payload()
	}
	_, err := t.pool.Exec(ctx, "INSERT INTO tasks (due, payload) SELECT * FROM unnest($1::timestamptz[], $2::bytea[])", dues, payloads)
	return err
}

type polledRow struct {
	ID      int64
	Payload []byte
}

func (t *table) run(ctx context.Context, h handler) error {
	return poll(ctx, func() (n int, err error) {
		err = pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "SELECT id, payload FROM tasks WHERE due <= now() ORDER BY due LIMIT $1 FOR UPDATE SKIP LOCKED", pollTake)
			if err != nil {
				return err
			}
			list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[polledRow])
			if err != nil {
				return err
			}
			done := make([]int64, len(list))
			for i, row := range list {
				if err := h(ctx, row.Payload, onPgx(tx)); err != nil {
					return err
				}
				done[i] = row.ID
			}
			n = len(list)
			_, err = tx.Exec(ctx, "DELETE FROM tasks WHERE id = ANY($1)", done)
			return err
		})
		return n, err
	})
}

func (t *table) database() string { return t.dsn }

func (t *table) close(ctx context.Context) error {
	t.pool.Close()
	return t.drop(ctx)
}
