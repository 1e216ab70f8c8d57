package idempotency

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Dialect names a family of databases that understand the same SQL.
type Dialect = string

// The dialects.
const (
	PostgreSQL = "postgres"
	MySQL      = "mysql" // and MariaDB
	SQLite     = "sqlite"
)

// Database is a *sql.DB. Package pgxtx hands in its own for a pool of pgx.
type Database interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// SkipReason is why an effect was skipped.
type SkipReason string

// The reasons there are.
const (
	// SkipDuplicate: the message id is recorded already.
	SkipDuplicate SkipReason = "duplicate"
	// SkipGuarded: When or OnlyIf said no. The message is recorded all the same, so a repetition of it is a
	// duplicate.
	SkipGuarded SkipReason = "guarded"
)

// HandlerOption changes what Handler does.
type HandlerOption func(*handler)

// OnlyIf makes the effect depend on the state of the business: it happens only if query, run before it in the
// same transaction, finds a row. A message whose guard finds none is acknowledged, recorded and counted as
// SkipGuarded.
//
//	// only if the order is still unpaid and due at this instant
//	idempotency.OnlyIf("SELECT 1 FROM orders WHERE id = $1 AND status = 'unpaid' AND due_ms <= $2 FOR UPDATE",
//		func(d *amqpx.Delivery) []any { return []any{string(d.Body), d.DueAt.UnixMilli()} })
//
// Placeholders are the driver's own. Compare with <=, not =, because DueAt of a retry is the instant of the
// retry. FOR UPDATE (not on SQLite, which has one writer and needs none) makes a payment at the same moment wait
// for the effect.
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
		defer func() { _ = rows.Close() }() // before fn uses the transaction's connection
		found := rows.Next()
		return found, rows.Err()
	})
}

// When guards the effect like OnlyIf, with a function that answers whether it is still wanted. It is run in the
// effect's transaction. Several guards must all say yes; they are asked in the order given. T is the handler's
// transaction: *sql.Tx, or pgx.Tx for pgxtx.IdempotentHandler. With another T every message fails.
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

// WithScope sets the scope within which message ids are unique; the default is the name of the queue, so that
// each of several queues that get a copy of one message has its own effect. At most 255 bytes.
func WithScope(scope string) HandlerOption { return func(h *handler) { h.scope = scope } }

// WithKey sets what identifies a message, instead of its message id: a header, or a field of the body. It is at
// most 255 bytes of UTF-8 without NUL. A message for which it is empty or an error is rejected.
func WithKey(key func(*amqpx.Delivery) (string, error)) HandlerOption {
	return func(h *handler) { h.key = key }
}

// WithGroup has up to n messages that are being handled at the same time share a transaction; the default is 1.
// No message waits for others to arrive. It helps when beginning, record and commit dominate: at a concurrency of
// 64 with a nearby database, it handled some three times as many messages without an effect, and twice as many
// with an insert. n over 1000 counts as 1000.
//
// The effects of a group run one after another. Two groups of one handler run at a time, up to four while n or
// more messages wait. If fn itself waits, for example for a remote database, leave n at 1, or measure.
//
// The guarantee is the same. When anything in a shared transaction fails (an error or a panic of fn, a message
// that is recorded already, a deadlock), it is undone and each of its messages runs in a transaction of its own,
// so that one message's failure is never another's. An fn that often fails therefore often runs twice. Locks that
// fn takes are held until its whole group has committed.
func WithGroup(n int) HandlerOption { return func(h *handler) { h.group = min(n, maxGroup) } }

const maxGroup = 1000

// OnSkip is called after a message was skipped, for counting. It runs in the goroutine of the message.
func OnSkip(hook func(ctx context.Context, d *amqpx.Delivery, reason SkipReason)) HandlerOption {
	return func(h *handler) { h.onSkip = hook }
}

// WithDialect sets the dialect for a driver that is not well known and whose answer to SELECT version() would
// mislead.
func WithDialect(d Dialect) HandlerOption { return func(h *handler) { h.given = sqldb.Dialect(d) } }

// WithTxOptions sets the isolation of the transactions; the default is the database's. Every level is right for
// the record; only the effect may need a higher one. Transactions with serialization failures are repeated.
func WithTxOptions(opts *sql.TxOptions) HandlerOption { return func(h *handler) { h.txOpts = opts } }
