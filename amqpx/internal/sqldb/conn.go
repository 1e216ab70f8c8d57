package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"time"
)

// Conn executes statements on a database, on one of its connections, or in a transaction.
type Conn interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (Rows, error)
	// QueryRowContext reads one row. The row's Scan returns sql.ErrNoRows if there is none.
	QueryRowContext(ctx context.Context, query string, args ...any) Row
}

// Rows is the result of a query. *sql.Rows has the same contract.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close() error
}

// Row is the result of a query for at most one row.
type Row interface {
	Scan(dest ...any) error
}

// Tx is a transaction.
type Tx interface {
	Conn
	// Commit returns sql.ErrTxDone if the transaction has already ended.
	Commit(ctx context.Context) error
	// Rollback works even if ctx has ended.
	Rollback(ctx context.Context) error
	// Own returns the underlying transaction, such as a *sql.Tx or a pgx.Tx.
	Own(ctx context.Context) (any, error)
}

// Session is one connection that is reserved for the caller until Close.
type Session interface {
	Conn
	Close() error
}

// DB is a database. Two DB values of the same database are equal.
type DB interface {
	Conn
	Begin(ctx context.Context, opts *sql.TxOptions) (Tx, error)
	Session(ctx context.Context) (Session, error)
	// Dialect returns the dialect that the driver implies, and false if it implies none.
	Dialect() (Dialect, bool)
}

// Executor is the type that callers of database/sql pass: *sql.DB, *sql.Tx, *sql.Conn and wrappers of these.
type Executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Database is an Executor that can begin transactions, such as a *sql.DB.
type Database interface {
	Executor
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// On returns the Conn of an Executor. For a *sql.DB the Conn is also a DB. If the Executor is nil or a nil pointer, all
// statements fail with ErrNoExecutor.
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

// Of returns the DB of a Database. If the Database is nil or a nil pointer, all statements fail with ErrNoDatabase.
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

// Executes returns an Executor for a Tx.
func Executes(t Tx) Executor {
	if own, ok := t.(tx); ok {
		return own.tx
	}
	return Foreign(t)
}

// Foreign returns a Database that wraps a connection of a package other than database/sql. On and Of return the wrapped
// connection. Its QueryContext and BeginTx only return errors.
func Foreign(c Conn) Database { return foreign{c} }

type foreign struct{ Conn }

// IsForeign reports whether a Database was returned by Foreign.
func IsForeign(db Database) bool {
	_, ok := db.(foreign)
	return ok
}

var errForeign = errors.New("this connection is not database/sql's; run statements of your own on the driver's")

func (foreign) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	return nil, errForeign
}

func (foreign) BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error) { return nil, errForeign }

// As returns the underlying transaction as the type T of its package.
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

// Hand returns the arguments for a function that takes a *sql.Tx. For a transaction of another package the *sql.Tx is
// nil, and Handed retrieves the transaction from the context.
func Hand(ctx context.Context, t Tx) (context.Context, *sql.Tx) {
	if own, ok := t.(tx); ok {
		return ctx, own.tx
	}
	return context.WithValue(ctx, handed{}, t), nil
}

type handed struct{}

// Handed returns the transaction that Hand put into ctx, as the type T of its package.
func Handed[T any](ctx context.Context) (own T, err error) {
	t, ok := ctx.Value(handed{}).(Tx)
	if !ok {
		return own, errors.New("no transaction was handed over")
	}
	return As[T](ctx, t)
}

// unwrap returns the *sql.DB, *sql.Tx or *sql.Conn inside a wrapper of sqlx or bun. It is necessary because bun formats
// arguments into the query and does not understand $1, and because a *sqlx.DB cannot be recognised as a database.
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
		return nil, err // do not return an interface that contains a nil pointer
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
	if !ok { // it is already a single connection
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

// held is a Session whose connection is closed by its owner and not by Close.
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

// OneRow returns the first row of a query's result, or the query's error.
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

// Answers returns nil if the database answers a query within patience, and otherwise the reason why it does not. The
// query reads no table. A server that hangs accepts connections and does not answer, which no driver reports as an
// error.
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

// silentError is the error for a database that does not answer.
type silentError struct {
	patience time.Duration
	cause    error
}

// Public returns the part of the message that may be shown to any user.
func (e *silentError) Public() string {
	return fmt.Sprintf("the database has not answered within %v", e.patience)
}

func (e *silentError) Error() string { return e.Public() + ": " + e.cause.Error() }

func (e *silentError) Unwrap() error { return e.cause }
