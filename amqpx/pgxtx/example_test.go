package pgxtx_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/pgxtx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// An order and the task that expires it are stored in one pgx.Tx.
func ExampleOn() {
	place := func(ctx context.Context, pool *pgxpool.Pool, tasks *schedule.Store, order string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO orders (id, status) VALUES ($1, 'unpaid')", order); err != nil {
				return err
			}
			return tasks.Schedule(ctx, pgxtx.On(tx), schedule.Task{
				ID: "expire-" + order, Queue: "orders.expire", DeliverAt: time.Now().Add(30 * time.Minute), Body: []byte(order),
			})
		})
	}
	pay := func(ctx context.Context, pool *pgxpool.Pool, tasks *schedule.Store, order string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "UPDATE orders SET status = 'paid' WHERE id = $1", order); err != nil {
				return err
			}
			return tasks.Cancel(ctx, pgxtx.On(tx), "expire-"+order)
		})
	}
	_, _ = place, pay
}

// A process relays and handles tasks. Its relay is notified of tasks that other processes schedule.
func ExampleNew() {
	run := func(ctx context.Context, pool *pgxpool.Pool, client *amqpx.Client) error {
		if err := pgxtx.Migrate(ctx, pool); err != nil {
			return err
		}
		tasks, err := pgxtx.New(pool, client, schedule.Config{})
		if err != nil {
			return err
		}
		go func() { _ = tasks.Run(ctx) }() // Run returns nil when ctx is cancelled
		return client.Consume(ctx, "orders.expire", pgxtx.TaskHandler(pool,
			func(ctx context.Context, tx pgx.Tx, d *amqpx.Delivery) error {
				_, err := tx.Exec(ctx, "UPDATE orders SET status = 'expired' WHERE id = $1 AND status = 'unpaid'", string(d.Body))
				return err
			}, schedule.WithGroup(20)))
	}
	_ = run
}

// The handler charges an order through a payment provider. A transaction cannot undo the charge, but the provider
// recognises a repeated one by its key. The receipt is stored in the pgx.Tx that marks the task as done.
func ExampleLeaseHandler() {
	handler := func(pool *pgxpool.Pool, charge func(ctx context.Context, order, key string) (receipt string, err error)) amqpx.Handler {
		return pgxtx.LeaseHandler(pool, func(ctx context.Context, d *amqpx.Delivery, key string) (pgxtx.Func, error) {
			receipt, err := charge(ctx, string(d.Body), key)
			if err != nil {
				return nil, err // the task is retried with the same key
			}
			return func(ctx context.Context, tx pgx.Tx, d *amqpx.Delivery) error {
				_, err := tx.Exec(ctx, "INSERT INTO receipts (order_id, receipt) VALUES ($1, $2)", string(d.Body), receipt)
				return err
			}, nil
		}, schedule.WithLease(30*time.Second))
	}
	_ = handler
}

// The handler cancels an order only if it is still unpaid, and only once, even if the message is delivered several
// times.
func ExampleIdempotentHandler() {
	handler := func(pool *pgxpool.Pool) amqpx.Handler {
		return pgxtx.IdempotentHandler(pool,
			func(ctx context.Context, tx pgx.Tx, d *amqpx.Delivery) error {
				tag, err := tx.Exec(ctx, "UPDATE orders SET status = 'cancelled' WHERE id = $1", string(d.Body))
				if err == nil && tag.RowsAffected() == 0 {
					err = amqpx.Reject(fmt.Errorf("there is no order %s", d.Body))
				}
				return err
			},
			idempotency.When(func(ctx context.Context, tx pgx.Tx, d *amqpx.Delivery) (unpaid bool, err error) {
				err = tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM orders WHERE id = $1 AND status = 'unpaid' FOR UPDATE)", string(d.Body)).Scan(&unpaid)
				return unpaid, err
			}))
	}
	_ = handler
}
