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
// # Unique keys
//
// Store.ScheduleUnique merges a task with the pending one of its key: keeps that,
// replaces it or pushes it back. That is the same change of a row as a move, so the
// messages of before have no effect.
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
//
// # Rooms
//
// This package is the face: its types, the conversions between them and rows, and the
// handlers. It has no SQL and no loop. Below internal, each room importing only those
// before it:
//
//	rows   all SQL, and in what the dialects differ; knows no message
//	pace   pauses, waking and the clock of Run's loops
//	relay  claims tasks, sends their messages, settles what became of them
//	sweep  what is sent again, and when
//	recur  recurring tasks, by a timetable; needs rows and pace only
//
// A task goes from write.go into rows, from there through relay to the broker, and
// comes back as a message to handler.go, which asks fence.go before its effect.
//
//	task.go, filter.go, errors.go        what callers give and get
//	config.go, store.go                  settings, and the store that is made of them
//	write.go, read.go, backlog.go        the store's tasks; ended.go: how they ended
//	unique.go                            at most one pending task of a key
//	bulk.go, bulk_run.go                 changing many
//	held.go, unlisted.go                 destinations that are paused, have a ceiling, or are on no list
//	recurring.go, schedules.go           recurring tasks
//	run.go, health.go, relays.go         the loops, how they are, and who runs them
//	handler.go, group.go, lease.go       a message's effect
//	fence.go, attempt.go, failure.go     what a message may do, and what is recorded of it
//	requeue.go, instant.go               dead letters; instants as people write them
package schedule
