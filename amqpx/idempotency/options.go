package idempotency

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Dialect is the name of a family of databases that understand the same SQL.
type Dialect string

// The supported dialects.
const (
	PostgreSQL Dialect = "postgres"
	MySQL      Dialect = "mysql" // and MariaDB
	SQLite     Dialect = "sqlite"
)

// Database is the interface of a *sql.DB. Package pgxtx passes its own implementation for a pgx pool.
type Database interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// SkipReason is the reason why an effect was skipped.
type SkipReason string

// The reasons why effects are skipped.
const (
	// SkipDuplicate means that the message id is already recorded.
	SkipDuplicate SkipReason = "duplicate"
	// SkipGuarded means that When or OnlyIf declined the effect. The message is recorded anyway, so a later delivery of
	// it is a duplicate.
	SkipGuarded SkipReason = "guarded"
)

// HandlerOption configures a Handler.
type HandlerOption func(*handler)

// OnlyIf makes the effect depend on the state of the business data. The query runs before the effect, in the same
// transaction. If it finds no row, the effect is skipped, and the message is acknowledged, recorded and counted as
// SkipGuarded.
//
//	// only if the order is still unpaid and due at this time
//	idempotency.OnlyIf("SELECT 1 FROM orders WHERE id = $1 AND status = 'unpaid' AND due_ms <= $2 FOR UPDATE",
//		func(d *amqpx.Delivery) []any { return []any{string(d.Body), d.DueAt.UnixMilli()} })
//
// Placeholders are in the driver's own syntax. Compare with <= and not =, because the DueAt of a retry is the time of
// the retry. FOR UPDATE makes a concurrent payment wait for the effect. SQLite does not support FOR UPDATE, and does
// not need it because it has only one writer.
func OnlyIf(query string, args func(*amqpx.Delivery) []any) HandlerOption {
	return guardedBy(func(ctx context.Context, tx sqldb.Tx, d *amqpx.Delivery) (bool, error) {
		var list []any
		if args != nil {
			list = args(d)
		}
		rows, err := tx.QueryContext(ctx, query, list...)
		if err != nil {
			return false, err
		}
		defer func() { _ = rows.Close() }() // must happen before fn uses the transaction's connection
		found := rows.Next()
		return found, rows.Err()
	})
}

// When guards the effect like OnlyIf, but with a function that reports whether the effect is still wanted. The function
// runs in the effect's transaction. If there are several guards, they are called in the given order, and all of them
// must return true. T is the type of the handler's transaction: *sql.Tx, or pgx.Tx for pgxtx.IdempotentHandler. With
// any other T, every message fails.
func When[T any](guard func(ctx context.Context, tx T, d *amqpx.Delivery) (bool, error)) HandlerOption {
	return guardedBy(func(ctx context.Context, tx sqldb.Tx, d *amqpx.Delivery) (bool, error) {
		own, err := sqldb.As[T](ctx, tx)
		if err != nil {
			return false, fmt.Errorf("idempotency.When: %w", err)
		}
		return guard(ctx, own, d)
	})
}

func guardedBy(guard func(ctx context.Context, tx sqldb.Tx, d *amqpx.Delivery) (bool, error)) HandlerOption {
	return func(h *handler) { h.guards = append(h.guards, guard) }
}

// WithScope sets the scope within which message ids are unique. The default is the name of the queue, so that each of
// several queues that receive a copy of a message has its own effect. A scope has at most 255 bytes.
func WithScope(scope string) HandlerOption { return func(h *handler) { h.scope = scope } }

// WithKey sets a function that returns the key of a message, such as a header or a field of the body, to be used
// instead of the message id. A key has at most 255 bytes of UTF-8 without NUL. A message for which the function returns
// an empty key or an error is rejected.
func WithKey(key func(*amqpx.Delivery) (string, error)) HandlerOption {
	return func(h *handler) { h.key = key }
}

// WithGroup lets up to n messages that are being handled concurrently share a transaction. The default is 1. No message
// waits for others to arrive. Grouping helps if most of the time is spent on beginning, recording and committing: at a
// concurrency of 64 with a nearby database, a handler without any effect processed about three times as many messages a
// second, and one with an insert twice as many. An n over 1000 is reduced to 1000.
//
// The effects of a group run one after another. Two groups of one handler run concurrently, or up to four while n or
// more messages are waiting. If fn itself waits, for example for a remote database, keep n at 1 unless measurements
// show that grouping helps.
//
// The guarantee is the same as without groups. If anything in a shared transaction fails (an error or a panic of fn, a
// message that is already recorded, a deadlock), the transaction is rolled back and each of its messages is handled in
// a separate transaction, so that the failure of one message never affects another. An fn that often fails therefore
// often runs twice. Locks that fn takes are held until its whole group has committed.
//
// fn must not end the transaction. In a group, Commit and Rollback return an error. So does every statement that might
// end the transaction: in MySQL, for example, CREATE TABLE commits implicitly, and a procedure may commit. Only SELECT,
// INSERT, UPDATE, DELETE, WITH, VALUES, MERGE, REPLACE, COPY, NOTIFY and the savepoint statements are allowed, one
// statement in each call. After such an error, the group's messages are handled in separate transactions, where fn can
// run any statement. The same happens if fn uses the Conn of a pgx.Tx, or a statement that it prepared on the *sql.DB.
// Never end the transaction through that Conn.
func WithGroup(n int) HandlerOption { return func(h *handler) { h.group = min(n, maxGroup) } }

const maxGroup = 1000

// OnSkip sets a function that is called after a message was skipped, for example for counting. It runs in the goroutine
// that handles the message.
func OnSkip(hook func(ctx context.Context, d *amqpx.Delivery, reason SkipReason)) HandlerOption {
	return func(h *handler) { h.onSkip = hook }
}

// WithDialect sets the dialect. Use it for a driver that is not recognised and whose answer to SELECT version() would
// be misleading.
func WithDialect(d Dialect) HandlerOption { return func(h *handler) { h.given = sqldb.Dialect(d) } }

// WithTxOptions sets the isolation level of the transactions. The default is the database's. The record is correct at
// every level, so set a higher one only if the effect needs it. Transactions with serialization failures are run again.
func WithTxOptions(opts *sql.TxOptions) HandlerOption { return func(h *handler) { h.txOpts = opts } }
