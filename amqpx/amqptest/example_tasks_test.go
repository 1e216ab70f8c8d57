//go:build !race

package amqptest_test

import (
	"context"
	"database/sql"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// A customer is reminded after a month, and every week after that.
func TestReminders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close(context.Background())
		db, err := sql.Open("sqlite", ":memory:")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		db.SetMaxOpenConns(1) // each connection to :memory: opens its own database, so use only one
		if err := schedule.Migrate(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		store, err := schedule.New(db, client, schedule.Config{VirtualTime: true})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		relayed, consumed := make(chan error, 1), make(chan error, 1)
		defer func() { stop(); <-relayed; <-consumed }()
		go func() { relayed <- store.Run(ctx) }()

		// The code under test.
		var reminded atomic.Int64
		remind := func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
			reminded.Add(1)
			next := schedule.Task{ID: "remind-" + time.Now().Format(time.DateOnly), Queue: "reminders", DeliverAt: d.DueAt.Add(7 * 24 * time.Hour)}
			return store.Schedule(ctx, tx, next)
		}
		go func() { consumed <- client.Consume(ctx, "reminders", schedule.Handler(db, remind)) }()
		first := schedule.Task{ID: "remind", Queue: "reminders", DeliverAt: time.Now().Add(30 * 24 * time.Hour)}
		if err := store.Schedule(ctx, schedule.NoTx, first); err != nil {
			t.Fatal(err)
		}

		for _, step := range []struct {
			wait     time.Duration
			reminded int64
		}{{30*24*time.Hour - time.Minute, 0}, {2 * time.Minute, 1}, {7 * 24 * time.Hour, 2}, {28 * 24 * time.Hour, 6}} {
			time.Sleep(step.wait)
			synctest.Wait()
			if got := reminded.Load(); got != step.reminded {
				t.Errorf("%d reminders were handled after another %v, want %d", got, step.wait, step.reminded)
			}
		}
	})
}

// RunUntilIdle, called as in docs/testing.md, does not return while a task is pending.
func TestRunUntilTasksAreDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.Start(t, amqptest.Options{})
		client := opened(t, srv, amqpx.Config{})
		db, err := sql.Open("sqlite", ":memory:")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		db.SetMaxOpenConns(1)
		if err := schedule.Migrate(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		store, err := schedule.New(db, client, schedule.Config{VirtualTime: true})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		defer func() { stop(); <-ended; <-ended }()
		var done atomic.Int64
		go func() { ended <- store.Run(ctx) }()
		go func() {
			ended <- client.Consume(ctx, "q", schedule.Handler(db, func(context.Context, *sql.Tx, *amqpx.Delivery) error { done.Add(1); return nil }))
		}()
		for id, in := range map[string]time.Duration{"soon": time.Minute, "late": 2 * 24 * time.Hour} {
			if err := store.Schedule(ctx, schedule.NoTx, schedule.Task{ID: id, Queue: "q", DeliverAt: time.Now().Add(in)}); err != nil {
				t.Fatal(err)
			}
		}
		srv.RunUntilIdle(t, 7*24*time.Hour, func() time.Time {
			for task := range store.List(t.Context(), schedule.NoTx, schedule.Filter{Status: schedule.StatusPending, Limit: 1}) {
				return task.DeliverAt
			}
			return time.Time{} // no task is waiting for its due time
		})
		if done.Load() != 2 {
			t.Errorf("%d tasks are done, want 2", done.Load())
		}
	})
}
