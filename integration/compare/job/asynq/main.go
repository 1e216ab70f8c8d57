// Command asynq expires unpaid orders with tasks of asynq.
package main

import (
	"context"
	"errors"
	"log"
	"os"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rabbitdelay/rabbitdelay/integration/compare/job/shop"
)

type orders struct {
	pool      *pgxpool.Pool
	client    *asynq.Client
	inspector *asynq.Inspector
}

const (
	queue      = "default"
	expireType = "orders:expire"
)

// Place writes the order, and then its task. If the process dies in between, the order never expires.
func (o orders) Place(ctx context.Context, id string) error {
	if _, err := o.pool.Exec(ctx, "INSERT INTO orders (id) VALUES ($1)", id); err != nil {
		return err
	}
	_, err := o.client.EnqueueContext(ctx, asynq.NewTask(expireType, []byte(id)), asynq.TaskID(id), asynq.ProcessIn(shop.TimeToPay()))
	return err
}

// Pay pays the order, and then deletes its task.
func (o orders) Pay(ctx context.Context, id string) error {
	changed, err := o.pool.Exec(ctx, "UPDATE orders SET status = 'paid' WHERE id = $1 AND status = 'unpaid'", id)
	if err != nil {
		return err
	}
	if changed.RowsAffected() == 0 {
		return errors.New("the order has expired")
	}
	err = o.inspector.DeleteTask(queue, id)
	if errors.Is(err, asynq.ErrTaskNotFound) {
		err = nil // it was never enqueued, or Redis has lost it
	}
	return err
}

// expire cancels the order. A task can run again after a crash, which changes nothing here.
func (o orders) expire(ctx context.Context, t *asynq.Task) error {
	_, err := o.pool.Exec(ctx, "UPDATE orders SET status = 'cancelled' WHERE id = $1 AND status = 'unpaid'", string(t.Payload()))
	return err
}

func run(ctx context.Context) error {
	pool, err := shop.Open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	redis, err := asynq.ParseRedisURI(os.Getenv("REDIS_URL"))
	if err != nil {
		return err
	}
	o := orders{pool, asynq.NewClient(redis), asynq.NewInspector(redis)}
	defer func() { _ = o.client.Close() }()
	defer func() { _ = o.inspector.Close() }()
	server := asynq.NewServer(redis, asynq.Config{Queues: map[string]int{queue: 1}})
	mux := asynq.NewServeMux()
	mux.HandleFunc(expireType, o.expire)
	if err := server.Start(mux); err != nil {
		return err
	}
	defer server.Shutdown()
	return shop.Run(ctx, pool, o)
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
