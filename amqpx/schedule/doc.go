// Package schedule keeps delayed tasks in the business database and lets RabbitMQ time them. A task is written in the
// caller's own transaction. While it is pending, it can be cancelled, rescheduled, run early, listed and counted. Each
// task takes effect once. Losing the whole broker delays tasks, but no task is lost.
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
// Every task is a row in rabbitdelay_tasks. The relay claims the rows that are due within its horizon, publishes them
// with the remaining delay and marks them as sent. Every change of a task gives the row a new version. The message of
// an older version, wherever it is by then, no longer matches the row, so Handler acknowledges it without an effect. A
// task that is still pending some time after its due time is published again by the sweeper if its message appears to
// be lost.
//
// Use Handler for effects in the business database, which are committed together with the task's status. Use
// LeaseHandler for work that does not fit into one transaction, such as a call to a payment provider or an e-mail.
// docs/guarantees-details.md compares what can happen twice.
//
// # Unique keys
//
// Store.ScheduleUnique merges a task with the pending task that has the same key: it keeps the pending task, replaces
// it or postpones it. A replaced or rescheduled task gets a new version, so its earlier messages have no effect.
//
// # Recurring tasks
//
// Store.Recurring manages tasks that recur by a cron expression in a time zone or at an interval. Each occurrence is a
// task, which Run creates in advance.
//
// # The table as a contract
//
// Any program in any language may write rows, and any consumer may check a message against its row before it acts.
// Migrations returns the SQL that defines the columns, and docs/tasks.md contains the statements for each database,
// which run as tests. Times are in milliseconds since the Unix epoch.
//
// PostgreSQL, MySQL from 8.0.16, MariaDB from 10.6 and SQLite from 3.35 are
// supported through database/sql with the caller's driver. PostgreSQL is also supported through
// pgx, by package pgxtx. On SQLite, set a busy timeout, and begin transactions
// that read before they write with BEGIN IMMEDIATE (modernc.org/sqlite:
// file:app.db?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)&_txlock=immediate).
package schedule

// Packages and files, for contributors to this package:
//
// This package contains the public types, their conversions to and from rows, and the handlers. It contains no SQL and
// no loop. Each of the packages under internal imports only packages that are above it in this list:
//
//	rows     (internal/rows) all SQL and the differences between dialects; knows nothing about messages
//	polling  pauses, waking and the clock of Run's loops
//	relay    claims tasks, publishes their messages and records the outcomes
//	sweep    decides which tasks are sent again, and when
//	recur    recurring tasks and their timetables; needs rows and polling only
//
// A task goes from write.go into rows and from there through relay to the broker. It
// comes back as a message to handler.go, which checks it with fence.go before its effect.
//
//	task.go, filter.go, errors.go        arguments and results
//	config.go, store.go                  the configuration, and the Store
//	write.go, read.go, backlog.go        writing and reading tasks
//	unique.go                            at most one pending task per unique key
//	bulk.go, bulk_run.go                 changing many tasks
//	held.go                              destinations that are paused or have a rate limit
//	recurring.go, schedules.go           recurring tasks
//	run.go, health.go, pool.go           the loops and their health, and a warning about a small database pool
//	handler.go, group.go, lease.go       handling a message
//	fence.go, attempt.go, failure.go     checking a message against its row, and recording attempts
//	requeue.go                           what to do with the dead letters of tasks
//	instant.go                           parsing times in human-readable formats
