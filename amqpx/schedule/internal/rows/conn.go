package rows

import (
	"context"
	"database/sql"
	"embed"
	"errors"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

//go:embed migrations
var files embed.FS

// Migrations create and upgrade the tables.
var Migrations = sqldb.Migrations{Component: "schedule", Files: files}

// DB is a database that has the tables of Migrations.
type DB struct {
	sqldb.DB

	dialect *sqldb.Resolver
}

// Open returns a DB. Unless the dialect is given, it is detected with the first statement.
func Open(db sqldb.DB, given sqldb.Dialect) *DB {
	return &DB{db, sqldb.NewResolver(db, given)}
}

// Conn is a database or a transaction whose dialect is known.
type Conn struct {
	sqldb.Conn

	dialect sqldb.Dialect
}

// On returns the Conn of a database or transaction.
func (db *DB) On(ctx context.Context, c sqldb.Conn) (Conn, error) {
	d, err := db.dialect.Resolve(ctx, c)
	return Conn{c, d}, err
}

// Conn returns the Conn of the database itself.
func (db *DB) Conn(ctx context.Context) (Conn, error) { return db.On(ctx, db.DB) }

// Within runs do on c. If c is a database, it runs do in a new transaction.
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

// Transact runs do in a transaction with the isolation level READ COMMITTED, which prevents MySQL from
// locking the gaps between rows, into which other transactions insert.
func (db *DB) Transact(ctx context.Context, do func(Conn) error) error {
	c, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	return db.transact(ctx, db.DB, c.readCommitted(), do)
}

// TransactAt runs do in a transaction with the options of a caller.
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

// Undoable runs do, and rolls back the changes of do if do asks for it, while the transaction continues. It
// reports whether it rolled back, which is impossible if each statement is a separate transaction. SQLite
// does not need it, because it has one writer.
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
		return false, err // after an *ExistsError nothing has changed, and other errors end the transaction
	}
	if undo {
		if _, err := c.exec(ctx, "ROLLBACK TO "+savepoint); err != nil {
			if sqldb.NoTransaction(err) { // MySQL has ignored the savepoint
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
	return sqldb.Explain(c.QueryRowContext(ctx, c.dialect.Bind(query), args...).Scan(dest...))
}

// number reads a query of one number.
func (c Conn) number(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = c.one(ctx, query, args, &n)
	return n, err
}

type scanner func(dest ...any) error

// each calls row for every row of a query.
func (c Conn) each(ctx context.Context, query string, args []any, row func(scan scanner) error) error {
	found, err := c.QueryContext(ctx, c.dialect.Bind(query), args...)
	if err != nil {
		return sqldb.Explain(err)
	}
	defer func() { _ = found.Close() }() // once more after an error
	for found.Next() {
		if err := row(found.Scan); err != nil {
			return err
		}
	}
	return sqldb.Explain(errors.Join(found.Err(), found.Close()))
}

// texts reads a query of one text.
func (c Conn) texts(ctx context.Context, query string, args ...any) (list []string, err error) {
	err = c.each(ctx, query, args, func(scan scanner) error {
		var s string
		err := scan(&s)
		list = append(list, s)
		return err
	})
	return list, err
}
