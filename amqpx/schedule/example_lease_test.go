package schedule_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// charge stands in for a call to a payment provider, which charges once for each key.
func charge(_ context.Context, order []byte, idempotencyKey string) (receipt string, err error) {
	fmt.Printf("charging order %s\n", order)
	return "receipt of " + idempotencyKey, nil
}

// Charges an invoice through a provider. The call cannot be part of a transaction, so it runs under a lease, with a key
// by which the provider recognises a repeated call. The receipt is stored in the transaction that marks the task as
// done.
func ExampleLeaseHandler() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		panic(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1) // each connection to :memory: opens its own database, so use only one
	if err := schedule.Migrate(ctx, db); err != nil {
		panic(err)
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE receipts (order_id TEXT, receipt TEXT)"); err != nil {
		panic(err)
	}
	// A process that relays passes an *amqpx.Client instead of nil, and calls Run.
	tasks, err := schedule.New(db, nil, schedule.Config{})
	if err != nil {
		panic(err)
	}
	at := time.Date(2026, 1, 2, 8, 0, 0, 0, time.UTC)
	if err := tasks.Schedule(ctx, schedule.NoTx, schedule.Task{ID: "order-42-charge", Queue: "orders.charge", DeliverAt: at, Body: []byte("42")}); err != nil {
		panic(err)
	}

	handle := schedule.LeaseHandler(db, func(ctx context.Context, d *amqpx.Delivery, key string) (schedule.Func, error) {
		receipt, err := charge(ctx, d.Body, key)
		if err != nil {
			return nil, err // the task is retried with the same key
		}
		return func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO receipts VALUES (?, ?)", string(d.Body), receipt)
			return err
		}, nil
	}, schedule.WithLease(30*time.Second))
	// client.Consume(ctx, "orders.charge", handle) would call it like this:
	for range 2 {
		d := &amqpx.Delivery{ID: "order-42-charge", Version: 1, DueAt: at, Queue: "orders.charge", Body: []byte("42")}
		if err := handle(ctx, d); err != nil {
			panic(err)
		}
	}
	task, err := tasks.Get(ctx, schedule.NoTx, "order-42-charge")
	if err != nil {
		panic(err)
	}
	fmt.Println(task.Status)
	// Output:
	// charging order 42
	// done
}

// Two services act on one task, which takes effect once in each queue that is bound to the exchange.
func ExampleHandler_subscribers() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		panic(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1)
	if err := schedule.Migrate(ctx, db); err != nil {
		panic(err)
	}
	tasks, err := schedule.New(db, nil, schedule.Config{})
	if err != nil {
		panic(err)
	}
	at := time.Date(2026, 1, 2, 8, 0, 0, 0, time.UTC)
	if err := tasks.Schedule(ctx, schedule.NoTx, schedule.Task{ID: "post-7", Exchange: "events", RoutingKey: "post.publish", DeliverAt: at}); err != nil {
		panic(err)
	}
	handle := schedule.Handler(db, func(_ context.Context, _ *sql.Tx, d *amqpx.Delivery) error {
		fmt.Printf("%s: %s\n", d.Queue, d.ID)
		return nil
	})
	// client.Consume(ctx, queue, handle) would call it like this, and a message may be delivered
	// twice:
	for _, queue := range []string{"mail", "search", "mail"} {
		d := &amqpx.Delivery{ID: "post-7", Version: 1, DueAt: at, Queue: queue, Exchange: "events", RoutingKey: "post.publish"}
		if err := handle(ctx, d); err != nil {
			panic(err)
		}
	}
	// Output:
	// mail: post-7
	// search: post-7
}
