package tasks_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/pgxtx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// eachDriver runs test on an empty database of every kind with database/sql, and on PostgreSQL also
// with pgx.
func eachDriver(t *testing.T, test func(t *testing.T, db businessDB)) {
	t.Helper()
	eachDatabase(t, test)
	t.Run("pgx", func(t *testing.T) { test(t, openPgx(t)) })
}

func openPgx(t testing.TB) businessDB {
	t.Helper()
	db := openServer(t, idempotency.PostgreSQL, database.PostgreSQL)
	cfg, err := pgxpool.ParseConfig(db.dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 8
	if db.pool, err = pgxpool.NewWithConfig(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.pool.Close)
	return db
}

// txFunc is the work of a handler in its transaction, with either driver.
type txFunc func(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error

func (f txFunc) sql(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error { return f(ctx, tx, d) }

func (f txFunc) pgx(ctx context.Context, tx pgx.Tx, d *amqpx.Delivery) error {
	return f(ctx, pgxtx.On(tx), d)
}

func (b businessDB) taskHandler(f txFunc, opts ...schedule.HandlerOption) amqpx.Handler {
	if b.pool != nil {
		return pgxtx.TaskHandler(b.pool, f.pgx, opts...)
	}
	return schedule.Handler(b.DB, f.sql, opts...)
}

// txLease is work under a lease. Its complete is nil if there is nothing to complete.
type txLease func(ctx context.Context, d *amqpx.Delivery, key string) (txFunc, error)

func (b businessDB) leaseHandler(f txLease, opts ...schedule.HandlerOption) amqpx.Handler {
	if b.pool != nil {
		return pgxtx.LeaseHandler(b.pool, func(ctx context.Context, d *amqpx.Delivery, key string) (pgxtx.Func, error) {
			complete, err := f(ctx, d, key)
			if complete == nil {
				return nil, err
			}
			return complete.pgx, err
		}, opts...)
	}
	return schedule.LeaseHandler(b.DB, func(ctx context.Context, d *amqpx.Delivery, key string) (schedule.Func, error) {
		complete, err := f(ctx, d, key)
		if complete == nil {
			return nil, err
		}
		return complete.sql, err
	}, opts...)
}

func (b businessDB) idempotentHandler(f txFunc, opts ...idempotency.HandlerOption) amqpx.Handler {
	if b.pool != nil {
		return pgxtx.IdempotentHandler(b.pool, f.pgx, opts...)
	}
	return idempotency.Handler(b.DB, f.sql, opts...)
}

func (b businessDB) newStore(sender schedule.Sender, cfg schedule.Config) (*schedule.Store, error) {
	if b.pool != nil {
		return pgxtx.New(b.pool, sender, cfg)
	}
	return schedule.New(b.DB, sender, cfg)
}

// view returns a store for reading, as an operator's program would open it.
func (b businessDB) view(t *testing.T) *taskview.Store {
	t.Helper()
	db := schedule.Database(b.DB)
	if b.pool != nil {
		db = pgxtx.Database(b.pool)
	}
	s, err := taskview.New(db, schedule.Config{Dialect: b.dialect})
	suite.MustSucceed(t, err)
	return s
}

// migrateTasks and migrateRecords create all tables with pgx.
func (b businessDB) migrateTasks(ctx context.Context) error {
	if b.pool != nil {
		return pgxtx.Migrate(ctx, b.pool)
	}
	return schedule.Migrate(ctx, b.DB)
}

func (b businessDB) migrateRecords(ctx context.Context) error {
	if b.pool != nil {
		return pgxtx.Migrate(ctx, b.pool)
	}
	return idempotency.Migrate(ctx, b.DB)
}

func (b businessDB) purgeRecords(ctx context.Context, olderThan time.Duration, batch int) (int64, error) {
	if b.pool != nil {
		return pgxtx.Purge(ctx, b.pool, olderThan, batch)
	}
	return idempotency.Purge(ctx, b.DB, olderThan, batch)
}

// begin starts a transaction and returns functions that commit it and roll it back.
func (b businessDB) begin(t testing.TB) (tx schedule.Executor, commit, rollback func()) {
	t.Helper()
	must := func(end func() error) func() {
		return func() {
			t.Helper()
			if err := end(); err != nil {
				t.Fatal(err)
			}
		}
	}
	ctx := context.Background()
	if b.pool != nil {
		own, err := b.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return pgxtx.On(own), must(func() error { return own.Commit(ctx) }), must(func() error { return own.Rollback(ctx) })
	}
	own, err := b.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	return own, must(own.Commit), must(own.Rollback)
}
