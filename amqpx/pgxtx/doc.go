// Package pgxtx runs tasks and idempotent handlers on pgx itself: a task is
// scheduled in a pgx.Tx, and a handler's function gets the pgx.Tx that commits
// with the task's status or the message's record. A program that works with
// database/sql, also with pgx below it, does not need this package.
//
//	tasks, err := pgxtx.New(pool, client, schedule.Config{})
//	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		// ... INSERT INTO orders ... with tx
//		return tasks.Schedule(ctx, pgxtx.On(tx), schedule.Task{ID: "order-42-expire", Queue: "orders.expire", DeliverAt: t, Body: b})
//	})
//	go tasks.Run(ctx) // woken by NOTIFY, without further settings
//	err = client.Consume(ctx, "orders.expire", pgxtx.TaskHandler(pool, func(ctx context.Context, tx pgx.Tx, d *amqpx.Delivery) error {
//		return expire(ctx, tx, d)
//	}))
//
// The first statement of each transaction of a handler or a relay travels
// together with its BEGIN, which saves one of the round trips that database/sql
// needs.
package pgxtx
