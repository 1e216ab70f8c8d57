// Package idempotency makes a message take effect only once, even if the message is delivered several times. The
// handler's effect and the record of the message id are committed in one transaction of the application's database:
//
//	client.Consume(ctx, "orders.expire", idempotency.Handler(db,
//		func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
//			_, err := tx.ExecContext(ctx, `UPDATE orders SET status = 'cancelled' WHERE id = $1`, orderID(d))
//			return err
//		}))
//
// PostgreSQL, MySQL from 8.0, MariaDB from 10.6 and SQLite are supported through database/sql with the caller's driver.
// PostgreSQL is also supported through pgx, by package pgxtx. Migrate, or the SQL that Migrations returns, creates the
// table rabbitdelay_processed. RunPurge keeps the table small.
//
// On SQLite, set a busy timeout (for modernc.org/sqlite
// file:app.db?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)), so that consumers wait for the single writer
// instead of running a transaction again.
package idempotency
