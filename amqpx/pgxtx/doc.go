// Package pgxtx runs tasks and idempotent handlers on pgx directly. A task is scheduled in a pgx.Tx, and a handler's
// function gets the pgx.Tx in which the task's status or the message's record is committed. A program that uses
// database/sql does not need this package, even if its driver is pgx.
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
// In each transaction of a handler or a relay, BEGIN is sent together with the first statement, which saves one of the
// round trips that database/sql needs.
package pgxtx
