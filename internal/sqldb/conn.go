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

// DB is a database. Two DB values for the same *sql.DB, or for the same pool of another package, are equal.
type DB interface {
	Conn
	Begin(ctx context.Context, opts *sql.TxOptions) (Tx, error)
	Session(ctx context.Context) (Session, error)
	// Dialect returns the dialect that the driver implies. The result is false if the driver implies none.
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

// Executes returns an Executor that runs its statements in a Tx.
func Executes(t Tx) Executor {
	if own, ok := t.(tx); ok {
		return own.tx
	}
	return Foreign(t)
}

// Foreign returns a Database that wraps a connection of a package other than database/sql. On and Of return the wrapped
// connection. The QueryContext and BeginTx of the Database always return an error.
func Foreign(c Conn) Database { return foreign{c} }

type foreign struct{ Conn }

// IsForeign reports whether a Database was returned by Foreign.
func IsForeign(db Database) bool {
	_, ok := db.(foreign)
	return ok
}

var errForeign = errors.New("this connection does not belong to database/sql; run your own statements on the driver's connection")

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
		return own, fmt.Errorf("the handler's transactions have type %T, but this function expects %v", x, reflect.TypeFor[T]())
	}
	return own, nil
}

// Hand returns the arguments for a handler's function that takes a *sql.Tx. If the transaction belongs to another
// package, the *sql.Tx is nil, and the function gets the transaction from the context with Handed. The context also
// tells Free that the transaction holds a connection.
func Hand(ctx context.Context, t Tx) (context.Context, *sql.Tx) {
	ctx = withHold(ctx, t)
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
		return own, errors.New("the context contains no transaction; pass the context that the handler received")
	}
	return As[T](ctx, t)
}

// unwrap returns the *sql.DB, *sql.Tx or *sql.Conn inside a wrapper of sqlx or bun. This is necessary because bun
// formats arguments into the query and does not understand $1, and because a *sqlx.DB would not be recognised as a
// database.
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
	res, err := c.ex.ExecContext(ctx, query, args...)
	return res, ExplainServer(err)
}

func (c conn) QueryContext(ctx context.Context, query string, args ...any) (Rows, error) {
	rows, err := c.ex.QueryContext(ctx, query, args...) //nolint:rowserrcheck // the caller checks
	if err != nil {
		return nil, ExplainServer(err) // an interface with a nil pointer would not be nil
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

// free returns ErrOneConnection if ctx belongs to a function whose transaction holds the only connection of the pool.
func (p pool) free(ctx context.Context) error {
	db, ok := p.db.(*sql.DB)
	if !ok {
		return nil
	}
	return Free(ctx, db, func() int { return db.Stats().MaxOpenConnections })
}

// Pool is implemented by a DB that shares a limited number of connections.
type Pool interface {
	// PoolUse returns how the pool is used. The result is false if the pool has no limit.
	PoolUse() (PoolUse, bool)
}

// PoolUse describes the current use of a pool.
type PoolUse struct {
	Waited time.Duration // the time for which all callers together have waited for a connection so far
	Max    int           // the maximum number of connections
	Full   bool          // whether Max connections are open
}

// PoolUse implements Pool.
func (p pool) PoolUse() (PoolUse, bool) {
	db, ok := p.db.(*sql.DB)
	if !ok {
		return PoolUse{}, false
	}
	s := db.Stats()
	return PoolUse{s.WaitDuration, s.MaxOpenConnections, s.OpenConnections >= s.MaxOpenConnections}, s.MaxOpenConnections > 0
}

func (p pool) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := p.free(ctx); err != nil {
		return nil, err
	}
	return p.conn.ExecContext(ctx, query, args...)
}

func (p pool) QueryContext(ctx context.Context, query string, args ...any) (Rows, error) {
	if err := p.free(ctx); err != nil {
		return nil, err
	}
	return p.conn.QueryContext(ctx, query, args...)
}

func (p pool) QueryRowContext(ctx context.Context, query string, args ...any) Row {
	return OneRow(p.QueryContext(ctx, query, args...))
}

func (p pool) Begin(ctx context.Context, opts *sql.TxOptions) (Tx, error) {
	if err := p.free(ctx); err != nil {
		return nil, err
	}
	t, err := p.db.BeginTx(ctx, opts)
	if err != nil {
		return nil, ExplainServer(err)
	}
	return tx{conn{t}, t, NewHold(p.db)}, nil
}

func (p pool) Session(ctx context.Context) (Session, error) {
	db, ok := p.db.(*sql.DB)
	if !ok { // the Conn is already a single connection
		return held{p.conn}, nil
	}
	if err := p.free(ctx); err != nil {
		return nil, err
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

	tx   *sql.Tx
	hold *Hold
}

func (t tx) Commit(context.Context) error {
	defer t.hold.End()
	return ExplainServer(t.tx.Commit())
}

func (t tx) Rollback(context.Context) error {
	defer t.hold.End()
	return t.tx.Rollback()
}

// Held returns the record of the connection that the transaction holds.
func (t tx) Held() *Hold { return t.hold }

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
			return ExplainServer(err)
		}
		return sql.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	return r.rows.Close()
}

// Answers returns nil if the database answers a query within the given patience. Otherwise it returns the reason why
// the database does not answer. The query reads no table. A separate timeout is needed, because a server that hangs
// still accepts connections, and no driver reports that as an error.
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

// silentError is returned if a database does not answer.
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
