// Command rabbitdelay expires unpaid orders with tasks of rabbitdelay.
package main

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/pgxtx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/compare/job/shop"
)

type orders struct {
	pool  *pgxpool.Pool
	tasks *schedule.Store
}

// Place writes the order and its task in one transaction.
func (o orders) Place(ctx context.Context, id string) error {
	return pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (id) VALUES ($1)", id); err != nil {
			return err
		}
		return o.tasks.Schedule(ctx, pgxtx.On(tx), schedule.Task{
			ID: id, Queue: "orders.expire", DeliverAt: time.Now().Add(shop.TimeToPay()), Body: []byte(id),
		})
	})
}

// Pay pays the order and cancels its task in one transaction.
func (o orders) Pay(ctx context.Context, id string) error {
	return pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "UPDATE orders SET status = 'paid' WHERE id = $1", id); err != nil {
			return err
		}
		return o.tasks.Cancel(ctx, pgxtx.On(tx), id) // an error if the order has expired
	})
}

// expire cancels the order. This commits together with the end of the task.
func expire(ctx context.Context, tx pgx.Tx, d *amqpx.Delivery) error {
	_, err := tx.Exec(ctx, "UPDATE orders SET status = 'cancelled' WHERE id = $1 AND status = 'unpaid'", string(d.Body))
	return err
}

func run(ctx context.Context) error {
	pool, err := shop.Open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := pgxtx.Migrate(ctx, pool); err != nil {
		return err
	}
	client, err := amqpx.Open(ctx, amqpx.Config{URL: os.Getenv("AMQP_URL")})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(ctx) }()
	tasks, err := pgxtx.New(pool, client, schedule.Config{})
	if err != nil {
		return err
	}
	return shop.Run(ctx, pool, orders{pool, tasks}, tasks.Run, func(ctx context.Context) error {
		return client.Consume(ctx, "orders.expire", pgxtx.TaskHandler(pool, expire))
	})
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
