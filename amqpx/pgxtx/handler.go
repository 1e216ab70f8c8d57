package pgxtx

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Func is the effect of a task or a message. Everything that it does with tx is committed together with the task's
// status or the message's record, or not at all. It must return every error of tx, because PostgreSQL has aborted the
// transaction by then, and it must neither commit nor roll back. It may create savepoints with tx.Begin. It may run
// again for the same delivery if the database rolled back the transaction because of another one (a deadlock, a
// serialization failure).
type Func func(ctx context.Context, tx pgx.Tx, d *amqpx.Delivery) error

// TaskHandler is like schedule.Handler, but passes fn a pgx.Tx. It accepts the same options, including WithTxOptions
// with the types of database/sql. It uses one connection from the pool for each message or group that it is handling.
func TaskHandler(pool *pgxpool.Pool, fn Func, opts ...schedule.HandlerOption) amqpx.Handler {
	if fn == nil || pool == nil {
		return nil
	}
	return schedule.Handler(Database(pool), fn.handed, opts...)
}

// LeaseFunc is like schedule.LeaseFunc, but the function that it returns gets a pgx.Tx.
type LeaseFunc func(ctx context.Context, d *amqpx.Delivery, key string) (complete Func, err error)

// LeaseHandler is like schedule.LeaseHandler, but passes a pgx.Tx to the function that fn returns. It accepts the same
// options. While fn runs, it uses a connection from the pool only for the statements that renew the lease.
func LeaseHandler(pool *pgxpool.Pool, fn LeaseFunc, opts ...schedule.HandlerOption) amqpx.Handler {
	if fn == nil || pool == nil {
		return nil
	}
	return schedule.LeaseHandler(Database(pool), func(ctx context.Context, d *amqpx.Delivery, key string) (schedule.Func, error) {
		complete, err := fn(ctx, d, key)
		if complete == nil || err != nil {
			return nil, err
		}
		return complete.handed, nil
	}, opts...)
}

// IdempotentHandler is like idempotency.Handler, but passes fn a pgx.Tx. It accepts the same options. The guard of
// idempotency.When also gets a pgx.Tx.
func IdempotentHandler(pool *pgxpool.Pool, fn Func, opts ...idempotency.HandlerOption) amqpx.Handler {
	if fn == nil || pool == nil {
		return nil
	}
	return idempotency.Handler(Database(pool), fn.handed, opts...)
}

// handed calls fn with the pgx.Tx in the context. It has the signature of schedule.Func and idempotency.Func.
func (fn Func) handed(ctx context.Context, _ *sql.Tx, d *amqpx.Delivery) error {
	tx, err := sqldb.Handed[pgx.Tx](ctx)
	if err != nil {
		return err
	}
	return fn(ctx, tx, d)
}
