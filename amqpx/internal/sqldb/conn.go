package sqldb

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"time"
)

// Conn runs statements: on a database, on one connection of it, or in a
// transaction.
type Conn interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (Rows, error)
	// QueryRowContext reads one row. Its Scan returns sql.ErrNoRows when there is
	// none.
	QueryRowContext(ctx context.Context, query string, args ...any) Row
}

// Rows are the rows of a query. *sql.Rows has the same contract.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close() error
}

// Row is at most one row of a query.
type Row interface {
	Scan(dest ...any) error
}

// Tx is a transaction.
type Tx interface {
	Conn
	// Commit returns sql.ErrTxDone when the transaction has ended already.
	Commit(ctx context.Context) error
	// Rollback works also when ctx has ended.
	Rollback(ctx context.Context) error
}

// Session is one connection, which the caller has for itself until Close.
type Session interface {
	Conn
	Close() error
}

// DB is a database. Values of one database are equal.
type DB interface {
	Conn
	Begin(ctx context.Context, opts *sql.TxOptions) (Tx, error)
	Session(ctx context.Context) (Session, error)
	// Dialect is what the driver says, false if it does not.
	Dialect() (Dialect, bool)
}

// Executor is what callers of database/sql hand in: *sql.DB, *sql.Tx, *sql.Conn
// and what wraps them.
type Executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Native is an Executor of another package than database/sql.
type Native interface {
	Executor
	Native() Conn
}

// On is the Conn of an Executor; a DB for a database.
func On(ex Executor) Conn {
	if n, ok := ex.(Native); ok {
		return n.Native()
	}
	ex = unwrap(ex)
	if db, ok := ex.(*sql.DB); ok {
		return Of(db)
	}
	return conn{ex}
}

// Of is the DB of a *sql.DB.
func Of(db *sql.DB) DB { return pool{conn{db}, db} }

// SQL is the *sql.Tx of a Tx, false if it is another package's.
func SQL(t Tx) (*sql.Tx, bool) {
	own, ok := t.(tx)
	return own.tx, ok
}

// unwrap takes the *sql.DB, *sql.Tx or *sql.Conn out of the wrappers of sqlx and
// bun. bun writes arguments into the query by itself and understands no $1, and
// of a *sqlx.DB one can not see that it is a database.
func unwrap(ex Executor) Executor {
	v := reflect.Indirect(reflect.ValueOf(ex))
	if v.Kind() != reflect.Struct {
		return ex
	}
	switch v.Type().PkgPath() {
	case "github.com/jmoiron/sqlx", "github.com/uptrace/bun":
	default:
		return ex
	}
	for _, name := range []string{"DB", "Tx", "Conn"} {
		if f := v.FieldByName(name); f.IsValid() {
			switch inner := f.Interface().(type) {
			case *sql.DB:
				return inner
			case *sql.Tx:
				return inner
			case *sql.Conn:
				return inner
			}
		}
	}
	return ex
}

type conn struct{ ex Executor }

func (c conn) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return c.ex.ExecContext(ctx, query, args...)
}

func (c conn) QueryContext(ctx context.Context, query string, args ...any) (Rows, error) {
	rows, err := c.ex.QueryContext(ctx, query, args...) //nolint:rowserrcheck // the caller checks
	if err != nil {
		return nil, err // and no interface with a nil pointer in it
	}
	return rows, nil
}

func (c conn) QueryRowContext(ctx context.Context, query string, args ...any) Row {
	return OneRow(c.QueryContext(ctx, query, args...))
}

type pool struct {
	conn

	db *sql.DB
}

func (p pool) Begin(ctx context.Context, opts *sql.TxOptions) (Tx, error) {
	t, err := p.db.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return tx{conn{t}, t}, nil
}

func (p pool) Session(ctx context.Context) (Session, error) {
	c, err := p.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return session{conn{c}, c}, nil
}

func (p pool) Dialect() (Dialect, bool) { return OfDriver(p.db) }

type tx struct {
	conn

	tx *sql.Tx
}

func (t tx) Commit(context.Context) error   { return t.tx.Commit() }
func (t tx) Rollback(context.Context) error { return t.tx.Rollback() }

type session struct {
	conn

	c *sql.Conn
}

func (s session) Close() error { return s.c.Close() }

// OneRow is the first of the rows of a query, or the query's error.
func OneRow(rows Rows, err error) Row { return oneRow{rows, err} }

type oneRow struct {
	rows Rows
	err  error
}

func (r oneRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer func() { _ = r.rows.Close() }()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return sql.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	return r.rows.Close()
}

// Answers returns nil where the database answers a statement that reads nothing within
// patience, and else why not. A server that hangs accepts connections and says nothing,
// which no driver takes for an error.
func Answers(ctx context.Context, c Conn, patience time.Duration) error {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var one int
	err := c.QueryRowContext(bounded, "SELECT 1").Scan(&one)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("the database has not answered within %v: %w", patience, bounded.Err())
	}
	return err
}
