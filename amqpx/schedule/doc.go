// Package schedule keeps delayed tasks in the business database and lets
// RabbitMQ time them. A task is enlisted in the caller's own transaction, can be
// cancelled, moved, fired early, listed and counted while it waits, and happens
// once. Losing the whole broker delays tasks; it loses none.
//
//	tasks, err := schedule.New(db, client, schedule.Config{})
//	err = tasks.Schedule(ctx, tx, schedule.Task{ID: "order-42-expire", Queue: "orders.expire", DeliverAt: t, Body: b})
//	err = tasks.Cancel(ctx, tx, "order-42-expire")
//	go tasks.Run(ctx) // relay, sweeper and purge; several processes may run it
//	err = client.Consume(ctx, "orders.expire", schedule.Handler(db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
//		return expire(ctx, tx, d) // commits together with the task's status
//	}))
//
// # How it works
//
// Every task is a row of rabbitdelay_tasks. The relay claims the rows that are
// due within its horizon, publishes them with the remaining delay and marks
// them. A change of a task gives the row a new version; the message of an older
// version, wherever it is by then, no longer matches the row, and Handler
// acknowledges it without an effect. A task that is still pending some time
// after its due instant is published again by the sweeper.
//
// Handler is for effects in the business database, which commit with the task.
// LeaseHandler is for work that is not one transaction: a call to a payment
// provider, an e-mail. docs/guarantees.md compares what can happen twice.
//
// # Recurring tasks
//
// Store.Schedules has tasks that recur, by a cron expression in a time zone or by
// an interval. Each occurrence is a task, which Run makes ahead.
//
// # The table as a contract
//
// Any program in any language may write rows, and any consumer may check a
// message against its row before it acts. Migrations has the columns;
// docs/tasks.md has the statements, for each database, as the tests run them.
// Instants are milliseconds since the Unix epoch.
//
// PostgreSQL, MySQL from 8.0.16, MariaDB from 10.6 and SQLite from 3.35 are
// supported through database/sql, with the caller's driver, and PostgreSQL through
// pgx too, by package pgxtx. On SQLite set a busy timeout and begin transactions
// that read before they write with BEGIN IMMEDIATE (modernc.org/sqlite:
// file:app.db?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)&_txlock=immediate).
package schedule
