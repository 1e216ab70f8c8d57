package tasks_test

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/pgxtx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// In a synctest bubble, hours pass immediately with every database. By the bubble's clock, tasks are handled
// when they are due, under leases, and expire.
func TestHoursInABubble(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db businessDB) {
		suite.MustSucceed(t, schedule.Migrate(t.Context(), db.DB))
		driver := map[schedule.Dialect]string{schedule.SQLite: "sqlite", schedule.MySQL: "mysql", schedule.PostgreSQL: "pgx"}[db.dialect]
		synctest.Test(t, func(t *testing.T) { hoursInABubble(t, driver, db.dsn) })
	})
	t.Run("pgxpool", func(t *testing.T) {
		db := openPgx(t)
		suite.MustSucceed(t, pgxtx.Migrate(t.Context(), db.pool))
		synctest.Test(t, func(t *testing.T) { hoursInABubble(t, "", db.dsn) })
	})
}

func hoursInABubble(t *testing.T, driver, dsn string) {
	t.Helper()
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
	suite.MustSucceed(t, err)
	defer func() { _ = client.Close(t.Context()) }()

	began := time.Now()
	var mu sync.Mutex
	var handled []time.Duration
	work := func(_ context.Context, d *amqpx.Delivery) {
		mu.Lock()
		handled = append(handled, time.Since(began).Truncate(time.Minute))
		mu.Unlock()
		if d.ID == "slow" {
			<-time.After(20 * time.Minute) // the handler works under its lease
		}
	}
	var store *schedule.Store
	var handler amqpx.Handler
	if cfg := (schedule.Config{VirtualTime: true}); driver == "" {
		pool, err := pgxpool.New(t.Context(), dsn)
		suite.MustSucceed(t, err)
		defer pool.Close()
		store, err = pgxtx.New(pool, client, cfg)
		suite.MustSucceed(t, err)
		handler = pgxtx.LeaseHandler(pool, func(ctx context.Context, d *amqpx.Delivery, _ string) (pgxtx.Func, error) {
			work(ctx, d)
			return nil, nil
		}, schedule.WithDatabaseNow(time.Now))
	} else {
		db, err := sql.Open(driver, dsn)
		suite.MustSucceed(t, err)
		defer func() { _ = db.Close() }()
		store, err = schedule.New(db, client, cfg)
		suite.MustSucceed(t, err)
		handler = schedule.LeaseHandler(db, func(ctx context.Context, d *amqpx.Delivery, _ string) (schedule.Func, error) {
			work(ctx, d)
			return nil, nil
		}, schedule.WithDatabaseNow(time.Now))
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	relayed, consumed := make(chan error, 1), make(chan error, 1)
	go func() { relayed <- store.Run(ctx) }()
	suite.MustSucceed(t, store.ScheduleBatch(ctx, schedule.NoTx, []schedule.Task{
		{ID: "soon", Queue: "q", DeliverAt: began.Add(time.Minute)},
		{ID: "slow", Queue: "q", DeliverAt: began.Add(3 * time.Hour)},
		{ID: "expires", Queue: "other", DeliverAt: began.Add(time.Hour), ExpiresAfter: 30 * time.Minute},
	}))
	go func() { consumed <- client.Consume(ctx, "q", handler) }()
	<-time.After(2 * time.Hour)
	go func() { _ = client.Consume(ctx, "other", handler) }()
	<-time.After(2 * time.Hour)
	synctest.Wait()
	if want := []time.Duration{time.Minute, 3 * time.Hour}; !slices.Equal(handled, want) {
		t.Errorf("handled after %v, want %v", handled, want)
	}
	for id, want := range map[string]schedule.Status{"soon": schedule.StatusDone, "slow": schedule.StatusDone, "expires": schedule.StatusExpired} {
		if got, err := store.Get(ctx, schedule.NoTx, id); err != nil || got.Status != want {
			t.Errorf("task %s: got status %s (error %v), want %s", id, got.Status, err, want)
		}
	}
	suite.MustSucceed(t, store.Health())
	stop()
	suite.MustSucceed(t, <-relayed)
	<-consumed
}
