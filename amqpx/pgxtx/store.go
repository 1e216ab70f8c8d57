package pgxtx

import (
	"context"
	"database/sql"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// New returns a store on a pool, like schedule.New. schedule.NoTx executes on the pool, and On returns an Executor for
// a transaction. Unless cfg has a Listener, Run itself listens for notifications. While Run is running, it takes one
// connection out of the pool, and the pool may open another one instead.
//
// A pooler such as PgBouncer in transaction mode neither delivers notifications nor supports prepared statements.
// Behind such a pooler, add default_query_exec_mode=exec to the pool's URL. Run then finds tasks that other processes
// have written at its next poll (Config.PollInterval).
func New(pool *pgxpool.Pool, sender schedule.Sender, cfg schedule.Config) (*schedule.Store, error) {
	return schedule.New(Database(pool), sender, cfg)
}

// Database returns the pool as a schedule.Database, for example for service.Options. If the pool is nil, every use of
// the result fails with schedule.ErrNoDatabase.
func Database(pool *pgxpool.Pool) schedule.Database {
	if pool == nil {
		return (*sql.DB)(nil)
	}
	return sqldb.Foreign(onPool(pool))
}

// Migrate creates the tables of schedule and idempotency or migrates them to the newest version; see schedule.Migrate.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	db := Database(pool)
	if err := idempotency.Migrate(ctx, db); err != nil {
		return err
	}
	return schedule.Migrate(ctx, db)
}

// Purge works like idempotency.Purge, on a pool. Finished tasks are purged by Run of their store.
func Purge(ctx context.Context, pool *pgxpool.Pool, olderThan time.Duration, batch int) (int64, error) {
	return idempotency.Purge(ctx, Database(pool), olderThan, batch)
}

// RunPurge works like idempotency.RunPurge, on a pool.
func RunPurge(ctx context.Context, pool *pgxpool.Pool, r idempotency.Retention, report func(deleted int64, err error)) error {
	return idempotency.RunPurge(ctx, Database(pool), r, report)
}
