package sqldb

import (
	"context"
	"database/sql"
	"errors"
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
	// Own returns the transaction itself, of the type that its package calls one.
	Own(ctx context.Context) (any, error)
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

// Database is an Executor that begins transactions, a *sql.DB.
type Database interface {
	Executor
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// On returns the Conn of an Executor, which is a DB for a database. The statements of
// one that is nil, or a nil pointer, fail with ErrNoExecutor.
func On(ex Executor) Conn {
	if f, ok := ex.(foreign); ok {
		return f.Conn
	}
	ex = unwrap(ex)
	if IsNil(ex) {
		return conn{nowhere{ErrNoExecutor}}
	}
	if db, ok := ex.(*sql.DB); ok {
		return pool{conn{db}, db}
	}
	return conn{ex}
}

// Of returns the DB of a Database. The statements of one that is nil, or a nil pointer, fail
// with ErrNoDatabase.
func Of(db Database) DB {
	if IsNil(db) {
		none := nowhere{ErrNoDatabase}
		return pool{conn{none}, none}
	}
	if own, ok := On(db).(DB); ok {
		return own
	}
	return pool{conn{db}, db}
}

// Executes returns the Executor of a Tx.
func Executes(t Tx) Executor {
	if own, ok := t.(tx); ok {
		return own.tx
	}
	return Foreign(t)
}

// Foreign returns a Database that stands for a connection of another package than
// database/sql: On and Of return the connection again. Its own methods only return
// errors.
func Foreign(c Conn) Database { return foreign{c} }

type foreign struct{ Conn }

// IsForeign reports whether Foreign made a Database.
func IsForeign(db Database) bool {
	_, ok := db.(foreign)
	return ok
}

var errForeign = errors.New("this connection is not database/sql's; run statements of your own on the driver's")

func (foreign) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	return nil, errForeign
}

func (foreign) BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error) { return nil, errForeign }

// As returns the transaction as its package's type.
func As[T any](ctx context.Context, t Tx) (own T, err error) {
	x, err := t.Own(ctx)
	if err != nil {
		return own, err
	}
	own, ok := x.(T)
	if !ok {
		return own, fmt.Errorf("the handler's transactions are of type %T, and this function takes %v", x, reflect.TypeFor[T]())
	}
	return own, nil
}

// Hand returns what a function with a *sql.Tx is called with. For a transaction of
// another package the *sql.Tx is nil, and Handed finds the transaction in ctx.
func Hand(ctx context.Context, t Tx) (context.Context, *sql.Tx) {
	if own, ok := t.(tx); ok {
		return ctx, own.tx
	}
	return context.WithValue(ctx, handed{}, t), nil
}

type handed struct{}

// Handed returns the transaction that Hand left in ctx, as its package's type.
func Handed[T any](ctx context.Context) (own T, err error) {
	t, ok := ctx.Value(handed{}).(Tx)
	if !ok {
		return own, errors.New("no transaction was handed over")
	}
	return As[T](ctx, t)
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

	db Database
}

func (p pool) Begin(ctx context.Context, opts *sql.TxOptions) (Tx, error) {
	t, err := p.db.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return tx{conn{t}, t}, nil
}

func (p pool) Session(ctx context.Context) (Session, error) {
	db, ok := p.db.(*sql.DB)
	if !ok { // one connection already
		return held{p.conn}, nil
	}
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return session{conn{c}, c}, nil
}

func (p pool) Dialect() (Dialect, bool) {
	db, ok := p.db.(*sql.DB)
	if !ok {
		return "", false
	}
	return OfDriver(db)
}

// held is a Session that ends with its owner.
type held struct{ conn }

func (held) Close() error { return nil }

type tx struct {
	conn

	tx *sql.Tx
}

func (t tx) Commit(context.Context) error   { return t.tx.Commit() }
func (t tx) Rollback(context.Context) error { return t.tx.Rollback() }

func (t tx) Own(context.Context) (any, error) { return t.tx, nil }

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
		return &silentError{patience, bounded.Err()}
	}
	return err
}

// silentError is a database that says nothing.
type silentError struct {
	patience time.Duration
	cause    error
}

// Public returns what may be told to everybody.
func (e *silentError) Public() string {
	return fmt.Sprintf("the database has not answered within %v", e.patience)
}

func (e *silentError) Error() string { return e.Public() + ": " + e.cause.Error() }

func (e *silentError) Unwrap() error { return e.cause }
