package rows

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

//go:embed migrations
var files embed.FS

// Migrations create and upgrade the tables.
var Migrations = sqldb.Migrations{Component: "schedule", Files: files}

// DB is a database that contains the tables of Migrations.
type DB struct {
	sqldb.DB

	dialect *sqldb.Resolver
	clock   func() time.Time
}

// Open returns a DB. If the dialect is not given, and the driver does not imply it, the first statement determines it.
// If clock is not nil, it replaces the database's own clock.
func Open(db sqldb.DB, given sqldb.Dialect, clock func() time.Time) *DB {
	return &DB{db, sqldb.NewResolver(db, given), clock}
}

// Conn is a database or a transaction whose dialect is known.
type Conn struct {
	sqldb.Conn

	dialect sqldb.Dialect
	clock   func() time.Time // replaces the database's own clock; nil if the database is asked
	failed  *error           // why no further statement can succeed; nil for a database
}

// Failed returns the error with which reading the database's clock has failed in this transaction, or nil. After such
// an error PostgreSQL has aborted the transaction, and the errors of later statements do not show the cause.
func (c Conn) Failed() error {
	if c.failed == nil {
		return nil
	}
	return *c.failed
}

// On returns the Conn for a database or transaction.
func (db *DB) On(ctx context.Context, c sqldb.Conn) (Conn, error) {
	d, err := db.dialect.Resolve(ctx, c)
	x := Conn{Conn: c, dialect: d, clock: db.clock}
	if x.clock == nil && d == sqldb.SQLite {
		x.clock = time.Now // SQLite runs in this process, so both have the same clock
	}
	if _, database := c.(sqldb.DB); !database {
		x.failed = new(error)
	}
	return x, err
}

// Conn returns the Conn for the database itself.
func (db *DB) Conn(ctx context.Context) (Conn, error) { return db.On(ctx, db.DB) }

// Within calls the function do with c. If c is a database, Within begins a transaction, passes that to do, and commits
// it.
func (db *DB) Within(ctx context.Context, c sqldb.Conn, do func(Conn) error) error {
	x, err := db.On(ctx, c)
	if err != nil {
		return err
	}
	if own, ok := c.(sqldb.DB); ok {
		return db.transact(ctx, own, x.FreshReads(), do)
	}
	return do(x)
}

// Transact calls the function do in a transaction with the isolation level READ COMMITTED, which prevents MySQL from
// locking the gaps between rows, into which other transactions insert.
func (db *DB) Transact(ctx context.Context, do func(Conn) error) error {
	c, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	return db.transact(ctx, db.DB, c.readCommitted(), do)
}

// TransactAt calls the function do in a transaction with the caller's options.
func (db *DB) TransactAt(ctx context.Context, opts *sql.TxOptions, do func(Conn) error) error {
	return db.transact(ctx, db.DB, opts, do)
}

func (db *DB) transact(ctx context.Context, own sqldb.DB, opts *sql.TxOptions, do func(Conn) error) error {
	return sqldb.Explain(sqldb.Transact(ctx, own, opts, func(tx sqldb.Tx) error {
		c, err := db.On(ctx, tx)
		if err != nil {
			return err
		}
		return do(c)
	}))
}

// Undoable calls the function do. If do returns true, Undoable rolls back the changes that do made, while the
// transaction continues, and returns true. Outside of a transaction it cannot roll back anything. SQLite does not need
// a rollback, because it has only one writer.
func (c Conn) Undoable(ctx context.Context, do func() (undo bool, err error)) (undone bool, err error) {
	const savepoint = "SAVEPOINT rabbitdelay"
	marked := !c.sqlite()
	if marked {
		_, err := c.exec(ctx, savepoint)
		if marked = !sqldb.NoTransaction(err); marked && err != nil {
			return false, err
		}
	}
	undo, err := do()
	if err != nil || !marked {
		return false, err // an *ExistsError means that nothing was changed, and any other error ends the transaction
	}
	if undo {
		if _, err := c.exec(ctx, "ROLLBACK TO "+savepoint); err != nil {
			if sqldb.NoTransaction(err) { // MySQL ignores a savepoint outside of a transaction
				return false, nil
			}
			return false, err
		}
	}
	_, err = c.exec(ctx, "RELEASE "+savepoint)
	if sqldb.NoTransaction(err) {
		return false, nil
	}
	return undo, err
}

// exec runs a statement and returns the number of rows that it changed.
func (c Conn) exec(ctx context.Context, query string, args ...any) (int64, error) {
	if err := c.Failed(); err != nil {
		return 0, err
	}
	res, err := c.ExecContext(ctx, c.dialect.Bind(query), args...)
	if err != nil {
		return 0, sqldb.Explain(err)
	}
	return res.RowsAffected()
}

// changed runs a statement and reports whether it changed a row.
func (c Conn) changed(ctx context.Context, query string, args ...any) (bool, error) {
	n, err := c.exec(ctx, query, args...)
	return n > 0, err
}

// one reads the only row of a query. The error is sql.ErrNoRows if there is none.
func (c Conn) one(ctx context.Context, query string, args []any, dest ...any) error {
	if err := c.Failed(); err != nil {
		return err
	}
	return sqldb.Explain(c.QueryRowContext(ctx, c.dialect.Bind(query), args...).Scan(dest...))
}

// number runs a query that returns one number.
func (c Conn) number(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = c.one(ctx, query, args, &n)
	return n, err
}

type scanner func(dest ...any) error

// each calls the function row for every row of a query.
func (c Conn) each(ctx context.Context, query string, args []any, row func(scan scanner) error) error {
	if err := c.Failed(); err != nil {
		return err
	}
	found, err := c.QueryContext(ctx, c.dialect.Bind(query), args...)
	if err != nil {
		return sqldb.Explain(err)
	}
	defer func() { _ = found.Close() }() // closing twice after an error is harmless
	for found.Next() {
		if err := row(found.Scan); err != nil {
			return err
		}
	}
	return sqldb.Explain(errors.Join(found.Err(), found.Close()))
}

// texts runs a query that returns one column of strings.
func (c Conn) texts(ctx context.Context, query string, args ...any) (list []string, err error) {
	err = c.each(ctx, query, args, func(scan scanner) error {
		var s string
		err := scan(&s)
		list = append(list, s)
		return err
	})
	return list, err
}
