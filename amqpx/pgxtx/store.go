package pgxtx

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// New is schedule.New on a pool. A nil Executor stands for the pool; On makes one
// of a transaction. Unless cfg has a Listener, Run listens by itself: it takes one
// connection out of the pool for that, for as long as it runs, and the pool may
// open another in its place. A pooler such as PgBouncer in transaction mode
// delivers no notifications; behind one, tasks that other processes wrote are
// found at the next look (Config.PollInterval).
func New(pool *pgxpool.Pool, sender schedule.Sender, cfg schedule.Config) (*schedule.Store, error) {
	if cfg.Listener == nil {
		cfg.Listener = Listener(func(ctx context.Context) (*pgx.Conn, error) {
			c, err := pool.Acquire(ctx)
			if err != nil {
				return nil, err
			}
			return c.Hijack(), nil
		})
	}
	return schedule.NewOn(onPool(pool), sender, cfg)
}

// Migrate creates the tables of schedule and idempotency, or brings them to the
// newest version; see schedule.Migrate.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if err := idempotency.MigrateOn(ctx, onPool(pool)); err != nil {
		return err
	}
	return schedule.MigrateOn(ctx, onPool(pool))
}

// Purge is idempotency.Purge on a pool. Finished tasks are purged by Run of their
// store.
func Purge(ctx context.Context, pool *pgxpool.Pool, olderThan time.Duration, batch int) (int64, error) {
	return idempotency.PurgeOn(ctx, onPool(pool), olderThan, batch)
}

// RunPurge is idempotency.RunPurge on a pool.
func RunPurge(ctx context.Context, pool *pgxpool.Pool, r idempotency.Retention, report func(deleted int64, err error)) error {
	return idempotency.RunPurgeOn(ctx, onPool(pool), r, report)
}
