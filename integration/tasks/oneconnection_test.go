package tasks_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// onePools lists functions that open a pool with one connection.
var onePools = map[string]func(t *testing.T, dsn string) businessDB{
	"database/sql": func(t *testing.T, dsn string) businessDB {
		t.Helper()
		db, err := sql.Open("pgx", dsn)
		suite.MustSucceed(t, err)
		db.SetMaxOpenConns(1)
		t.Cleanup(func() { _ = db.Close() })
		return businessDB{DB: db, dialect: idempotency.PostgreSQL, dsn: dsn}
	},
	"pgx": func(t *testing.T, dsn string) businessDB {
		t.Helper()
		cfg, err := pgxpool.ParseConfig(dsn)
		suite.MustSucceed(t, err)
		cfg.MaxConns = 1
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		suite.MustSucceed(t, err)
		t.Cleanup(pool.Close)
		return businessDB{dialect: idempotency.PostgreSQL, dsn: dsn, pool: pool}
	},
}

// OpenDB keeps the connections that concurrent handlers use, so that the next handlers need not connect again.
func TestOpenDBKeepsConnections(t *testing.T) {
	t.Parallel()
	for _, product := range []database.Kind{database.PostgreSQL, database.MariaDB} {
		t.Run(string(product), func(t *testing.T) {
			t.Parallel()
			db, _, err := config.OpenDB(config.URL(database.Shared(t, product).URL()))
			suite.MustSucceed(t, err)
			defer func() { _ = db.Close() }()
			for range 3 {
				var all []*sql.Conn
				for range 16 {
					c, err := db.Conn(t.Context())
					suite.MustSucceed(t, err)
					all = append(all, c)
				}
				for _, c := range all {
					suite.MustSucceed(t, c.Close())
				}
			}
			if s := db.Stats(); s.Idle != 16 || s.MaxIdleClosed != 0 {
				t.Errorf("%d connections are idle and %d were closed, want 16 and 0", s.Idle, s.MaxIdleClosed)
			}
		})
	}
}

// No part of this library needs two connections of a pool at the same time: stores, relays, handlers and listeners all
// work with a pool of one.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	for name, open := range onePools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct := openServer(t, idempotency.PostgreSQL, database.PostgreSQL)
			db := open(t, direct.dsn)
			ctx, cancel := context.WithTimeout(t.Context(), suite.Patience)
			defer cancel()
			must := func(what string, err error) {
				t.Helper()
				if err != nil {
					t.Fatalf("%s: got %v, want no error", what, err)
				}
			}
			must("migrating", db.migrateTasks(ctx))
			must("migrating", db.migrateRecords(ctx))
			cfg := schedule.Config{
				PollInterval: 5 * time.Millisecond, SweepInterval: 5 * time.Millisecond, Retention: schedule.Retention{Every: 5 * time.Millisecond},
				RateLimits: []schedule.RateLimit{{Queue: "limited", PerSecond: 100}},
			}
			if db.pool == nil { // a pgx pool has its own listener
				l, err := config.Listener(config.URL(direct.dsn))
				suite.MustSucceed(t, err)
				cfg.Listener = l
			}
			s, err := db.newStore(&outbox{}, cfg)
			suite.MustSucceed(t, err)
			stop := runStore(t, s)
			due := time.Now().Add(time.Hour)
			batch := make([]schedule.Task, 1200)
			for i := range batch {
				batch[i] = orderTask(fmt.Sprintf("b%04d", i), due)
			}
			must("scheduling a batch", s.ScheduleBatch(ctx, schedule.NoTx, batch))
			for x, err := range s.List(ctx, schedule.NoTx, schedule.Filter{IDPrefix: "b0"}) {
				must("listing", err)
				must("cancelling a task while listing tasks", s.Cancel(ctx, schedule.NoTx, x.ID))
			}
			_, err = s.Bulk(ctx, schedule.Filter{Status: schedule.StatusPending}, schedule.BulkRescheduleBy(time.Minute), schedule.BulkOptions{})
			must("a bulk change", err)
			unique := orderTask("unique", due)
			unique.UniqueKey = "key"
			_, err = s.ScheduleUnique(ctx, schedule.NoTx, unique, schedule.Unique{Cooldown: time.Hour})
			must("scheduling with a unique key", err)
			_, err = s.Recurring().Put(ctx, schedule.NoTx, schedule.Recurring{Name: "r", Every: time.Second, Task: schedule.Task{Queue: "limited"}})
			must("adding a recurring task", err)
			for r, err := range s.Recurring().List(ctx, schedule.NoTx) {
				must("listing recurring tasks", err)
				_, err = s.Recurring().RunNow(ctx, schedule.NoTx, r.Name)
				must("running a recurring task while listing recurring tasks", err)
			}
			_, err = s.Backlog(ctx, []time.Duration{time.Hour}, 100)
			must("counting the backlog", err)
			must("handling", handleOnOne(ctx, db, s))
			must("health", s.Health())
			stop()
		})
	}
}

// handleOnOne handles tasks and messages of three kinds concurrently, alone and in groups, and returns the first error.
func handleOnOne(ctx context.Context, db businessDB, s *schedule.Store) error {
	next := txFunc(func(ctx context.Context, ex schedule.Executor, d *amqpx.Delivery) error {
		return s.Schedule(ctx, ex, orderTask("next-"+d.ID, time.Now().Add(time.Hour)))
	})
	lease := func(ctx context.Context, d *amqpx.Delivery, _ string) (txFunc, error) {
		return next, s.Schedule(ctx, schedule.NoTx, orderTask("during-"+d.ID, time.Now().Add(time.Hour)))
	}
	handlers := []amqpx.Handler{
		db.taskHandler(next, schedule.WithGroup(20)),
		db.leaseHandler(lease, schedule.WithLease(time.Minute)),
		db.idempotentHandler(next, idempotency.WithGroup(20)),
	}
	const each = 30
	errs := make(chan error)
	for i, handle := range handlers {
		for j := range each {
			d := &amqpx.Delivery{ID: fmt.Sprintf("b1%d%02d", i, j), Queue: "orders.expire", Version: 2, DueAt: time.Now()}
			if i == 2 {
				d = &amqpx.Delivery{ID: fmt.Sprintf("m%d", j), Queue: "orders.expire"}
			}
			go func() { errs <- handle(ctx, d) }()
		}
	}
	var first error
	for range len(handlers) * each {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}

// A handler that uses the store outside its transaction would wait forever for the connection that this transaction
// holds. It gets an error that explains this. After the transaction, and on a larger pool, the same call succeeds.
func TestOneConnectionIsHeld(t *testing.T) {
	t.Parallel()
	for name, open := range onePools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct := openServer(t, idempotency.PostgreSQL, database.PostgreSQL)
			db := open(t, direct.dsn)
			suite.MustSucceed(t, db.migrateRecords(t.Context()))
			s := newStore(t, db, nil, schedule.Config{})
			ctx, cancel := context.WithTimeout(t.Context(), suite.Patience)
			defer cancel()
			var inside context.Context //nolint:containedctx // a goroutine of a handler may keep it
			outside := txFunc(func(ctx context.Context, _ schedule.Executor, d *amqpx.Delivery) error {
				inside = ctx
				return s.Schedule(ctx, schedule.NoTx, orderTask("next-"+d.ID, time.Now().Add(time.Hour)))
			})
			suite.MustSucceed(t, s.Schedule(ctx, schedule.NoTx, orderTask("t", time.Now())))
			for name, handle := range map[string]amqpx.Handler{
				"a task's":   db.taskHandler(outside),
				"a group's":  db.taskHandler(outside, schedule.WithGroup(20)),
				"idempotent": db.idempotentHandler(outside),
			} {
				err := handle(ctx, &amqpx.Delivery{ID: "t", Queue: "orders.expire", Version: 1, DueAt: time.Now()})
				if name == "idempotent" {
					err = handle(ctx, &amqpx.Delivery{ID: "m", Queue: "orders.expire"})
				}
				if err == nil || !strings.Contains(err.Error(), "pass the transaction instead of schedule.NoTx") {
					t.Errorf(`%s handler: got %v, want an error with "pass the transaction instead of schedule.NoTx"`, name, err)
				}
			}
			suite.MustSucceed(t, s.Schedule(inside, schedule.NoTx, orderTask("after", time.Now().Add(time.Hour))))
			if db.pool == nil {
				db.SetMaxOpenConns(2)
				suite.MustSucceed(t, db.idempotentHandler(outside)(ctx, &amqpx.Delivery{ID: "m", Queue: "orders.expire"}))
			}
		})
	}
}

// A relay warns if callers continuously wait for its pool's connections, and does not warn if the pool is large enough.
func TestTooFewConnections(t *testing.T) {
	t.Parallel()
	for name, open := range onePools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct := openServer(t, idempotency.PostgreSQL, database.PostgreSQL)
			suite.MustSucceed(t, direct.migrateTasks(t.Context()))
			core, logged := observer.New(zap.WarnLevel)
			cfg := schedule.Config{Logger: zap.New(core)}
			busy := open(t, direct.dsn)
			s, err := busy.newStore(&outbox{}, cfg)
			suite.MustSucceed(t, err)
			defer runStore(t, s)()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var writers sync.WaitGroup
			for range 4 {
				writers.Go(func() {
					for ctx.Err() == nil {
						if busy.pool != nil {
							_, _ = busy.pool.Exec(ctx, "SELECT pg_sleep(0.05)")
						} else {
							_, _ = busy.ExecContext(ctx, "SELECT pg_sleep(0.05)")
						}
					}
				})
			}
			warned := func() bool {
				return logged.FilterMessageSnippet("the database's pool has too few connections").FilterField(zap.Int("connections", 1)).Len() > 0
			}
			suite.Eventually(t, "the relay warns about its pool", warned)
			cancel()
			writers.Wait()
		})
	}
}
