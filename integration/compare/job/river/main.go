// Command river expires unpaid orders with jobs of River.
package main

import (
	"context"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/rabbitdelay/rabbitdelay/integration/compare/job/shop"
)

type orders struct {
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
}

// expireArgs are the arguments of the job.
type expireArgs struct {
	ID string `json:"id"`
}

func (expireArgs) Kind() string { return "orders.expire" }

// Place writes the order and its job in one transaction, and keeps the job's ID for Pay.
func (o orders) Place(ctx context.Context, id string) error {
	return pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error {
		inserted, err := o.client.InsertTx(ctx, tx, expireArgs{id}, &river.InsertOpts{ScheduledAt: time.Now().Add(shop.TimeToPay())})
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO orders (id, job) VALUES ($1, $2)", id, inserted.Job.ID)
		return err
	})
}

// Pay pays the order and cancels its job in one transaction.
func (o orders) Pay(ctx context.Context, id string) error {
	return pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error {
		var job int64
		err := tx.QueryRow(ctx, "UPDATE orders SET status = 'paid' WHERE id = $1 AND status = 'unpaid' RETURNING job", id).Scan(&job)
		if err != nil {
			return err // pgx.ErrNoRows if the order has expired
		}
		_, err = o.client.JobCancelTx(ctx, tx, job)
		return err
	})
}

// expirer cancels orders. A job can run again after a crash, which changes nothing here.
type expirer struct {
	river.WorkerDefaults[expireArgs]

	pool *pgxpool.Pool
}

func (e *expirer) Work(ctx context.Context, job *river.Job[expireArgs]) error {
	_, err := e.pool.Exec(ctx, "UPDATE orders SET status = 'cancelled' WHERE id = $1 AND status = 'unpaid'", job.Args.ID)
	return err
}

func run(ctx context.Context) error {
	pool, err := shop.Open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &expirer{pool: pool})
	client, err := river.NewClient(driver, &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
		Workers: workers,
	})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	defer func() { _ = client.Stop(ctx) }()
	return shop.Run(ctx, pool, orders{pool, client})
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
