package pgxtx

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Lend returns a transaction that the application's function cannot end, and a function that reports whether the
// application's function tried to end it, or took the connection and so may have ended it. The application's function
// may create and release savepoints in that transaction.
func (t *transaction) Lend(context.Context) (sqldb.Tx, func() bool) {
	l := &lentTransaction{transaction: t}
	return l, func() bool { return l.ended }
}

// lentTransaction is a transaction that is shared with other messages.
type lentTransaction struct {
	*transaction

	ended bool
}

func (l *lentTransaction) Own(ctx context.Context) (any, error) {
	own, err := l.transaction.Own(ctx)
	if err != nil {
		return nil, err
	}
	return pgx.Tx(lentTx{lentSavepoint{own.(pgx.Tx), l}}), nil //nolint:errcheck,forcetypeassert // Own always returns a pgx.Tx
}

// check refuses statements that may end the transaction.
func (l *lentTransaction) check(query string) error {
	err := sqldb.CheckSharable(query)
	l.ended = l.ended || err != nil
	return err
}

// lentTx is a pgx.Tx whose Commit and Rollback return an error.
type lentTx struct{ lentSavepoint }

func (x lentTx) Commit(context.Context) error {
	x.l.ended = true
	return sqldb.ErrLent
}

func (x lentTx) Rollback(context.Context) error {
	x.l.ended = true
	return sqldb.ErrLent
}

// lentSavepoint is a pgx.Tx that refuses statements that may end the transaction. Its Commit and Rollback end a
// savepoint.
type lentSavepoint struct {
	pgx.Tx

	l *lentTransaction
}

func (x lentSavepoint) Begin(ctx context.Context) (pgx.Tx, error) {
	nested, err := x.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return lentSavepoint{nested, x.l}, nil
}

// Conn returns the connection. From then on the message is handled alone, because on the connection fn can run any
// statement, including those that end a transaction.
func (x lentSavepoint) Conn() *pgx.Conn {
	x.l.ended = true
	return x.Tx.Conn()
}

func (x lentSavepoint) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	if err := x.l.check(query); err != nil {
		return pgconn.CommandTag{}, err
	}
	return x.Tx.Exec(ctx, query, args...)
}

func (x lentSavepoint) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	if err := x.l.check(query); err != nil {
		return refusedRows{err: err}, err
	}
	return x.Tx.Query(ctx, query, args...)
}

func (x lentSavepoint) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	if err := x.l.check(query); err != nil {
		return refusedRows{err: err}
	}
	return x.Tx.QueryRow(ctx, query, args...)
}

func (x lentSavepoint) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	if err := x.l.check(query); err != nil {
		return nil, err
	}
	return x.Tx.Prepare(ctx, name, query)
}

func (x lentSavepoint) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		if err := x.l.check(q.SQL); err != nil {
			return refusedBatch{err}
		}
	}
	return x.Tx.SendBatch(ctx, b)
}

// refusedRows is the result of a query that was refused. As in pgx, the rows of a refused query are already closed.
type refusedRows struct{ err error }

func (refusedRows) Close()                                       {}
func (r refusedRows) Err() error                                 { return r.err }
func (refusedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (refusedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (refusedRows) Next() bool                                   { return false }
func (r refusedRows) Scan(...any) error                          { return r.err }
func (r refusedRows) Values() ([]any, error)                     { return nil, r.err }
func (refusedRows) RawValues() [][]byte                          { return nil }
func (refusedRows) Conn() *pgx.Conn                              { return nil }
func (refusedRows) TypeMap() *pgtype.Map                         { return nil }

// refusedBatch is the result of a batch that was refused.
type refusedBatch struct{ err error }

func (b refusedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b refusedBatch) Query() (pgx.Rows, error)         { return refusedRows(b), b.err }
func (b refusedBatch) QueryRow() pgx.Row                { return refusedRows(b) }
func (b refusedBatch) Close() error                     { return b.err }
func (refusedBatch) Tx() pgx.Tx                         { return nil }
