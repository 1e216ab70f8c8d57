package sqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"reflect"
)

// ErrLent is returned by Commit and Rollback of a transaction that is shared, and wrapped by the errors of statements
// that may end it.
var ErrLent = errors.New("this transaction is shared with other messages and is ended by their handler; return an error to roll it back")

// lender is a Tx of another package that can be lent.
type lender interface {
	Lend(ctx context.Context) (lent Tx, ended func() bool)
}

// Lend calls the function do with a transaction that executes its statements in t. The function cannot end t: Commit
// and Rollback of its transaction return ErrLent, and so do statements that CheckSharable refuses, such as COMMIT. If
// the function tried to end t, or ignored the error of a statement that may have made the database roll t back, Lend
// returns an error.
func Lend(ctx context.Context, t Tx, do func(Tx) error) error {
	if own, ok := t.(lender); ok {
		lent, ended := own.Lend(ctx)
		err := do(lent)
		if err == nil && ended() {
			err = ErrLent
		}
		return err
	}
	own, ok := t.(tx)
	if !ok {
		return do(t)
	}
	c := &lentConn{tx: own.tx}
	db := sql.OpenDB(lentConnector{c})
	defer func() { _ = db.Close() }()
	lent, err := db.BeginTx(context.WithoutCancel(ctx), nil) // ends with this function, even if ctx ends first
	if err != nil {
		return fmt.Errorf("sharing a transaction: %w", err)
	}
	defer func() { _ = lent.Rollback() }() // also closes statements and rows that do has left open
	err = do(tx{conn{lent}, lent, own.hold})
	if err == nil && c.ended {
		err = ErrLent
	}
	return err
}

// lentConnector is a connector with a single connection.
type lentConnector struct{ c *lentConn }

func (l lentConnector) Connect(context.Context) (driver.Conn, error) { return l.c, nil }
func (l lentConnector) Driver() driver.Driver                        { return lentDriver{} }

type lentDriver struct{}

func (lentDriver) Open(string) (driver.Conn, error) { return nil, ErrLent }

// lentConn is the driver connection of a lent transaction. It executes every statement in the original transaction.
type lentConn struct {
	tx    *sql.Tx
	ended bool // do tried to end the transaction, or the database may have
}

var _ interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
} = (*lentConn)(nil)

func (c *lentConn) Begin() (driver.Tx, error)                                    { return c, nil }
func (c *lentConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return c, nil }
func (c *lentConn) Close() error                                                 { return nil }
func (c *lentConn) CheckNamedValue(*driver.NamedValue) error                     { return nil } // the original connection checks it
func (c *lentConn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// Commit returns ErrLent without committing.
func (c *lentConn) Commit() error {
	c.ended = true
	return ErrLent
}

// Rollback returns ErrLent without rolling back.
func (c *lentConn) Rollback() error {
	c.ended = true
	return ErrLent
}

// check refuses statements that may end the transaction.
func (c *lentConn) check(query string) error {
	err := CheckSharable(query)
	c.ended = c.ended || err != nil
	return err
}

// note returns a statement's error unchanged, and records whether the statement may have ended the transaction.
func (c *lentConn) note(err error) error {
	c.ended = c.ended || mayHaveEnded(err)
	return err
}

func (c *lentConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.check(query); err != nil {
		return nil, err
	}
	s, err := c.tx.PrepareContext(ctx, query)
	if err != nil {
		return nil, c.note(err)
	}
	return lentStmt{s, c}, nil
}

func (c *lentConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.check(query); err != nil {
		return nil, err
	}
	res, err := c.tx.ExecContext(ctx, query, given(args)...)
	return res, c.note(err)
}

func (c *lentConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.check(query); err != nil {
		return nil, err
	}
	return c.rows(c.tx.QueryContext(ctx, query, given(args)...))
}

// given converts the driver's arguments back to the values that the caller passed.
func given(args []driver.NamedValue) []any {
	out := make([]any, len(args))
	for i, a := range args {
		out[i] = a.Value
		if a.Name != "" {
			out[i] = sql.Named(a.Name, a.Value)
		}
	}
	return out
}

type lentStmt struct {
	s *sql.Stmt
	c *lentConn
}

var _ interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
	driver.NamedValueChecker
} = lentStmt{}

func (s lentStmt) Close() error                               { return s.s.Close() }
func (s lentStmt) NumInput() int                              { return -1 } // the original driver counts them
func (s lentStmt) CheckNamedValue(*driver.NamedValue) error   { return nil }
func (s lentStmt) Exec([]driver.Value) (driver.Result, error) { return nil, driver.ErrSkip }
func (s lentStmt) Query([]driver.Value) (driver.Rows, error)  { return nil, driver.ErrSkip }

func (s lentStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	res, err := s.s.ExecContext(ctx, given(args)...)
	return res, s.c.note(err)
}

func (s lentStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.c.rows(s.s.QueryContext(ctx, given(args)...))
}

// lentRows presents rows of the original transaction as a driver's rows.
type lentRows struct {
	c       *lentConn
	rows    *sql.Rows
	columns []string
	types   []*sql.ColumnType
	values  []any // pointers that Scan fills
}

// rows wraps the result of a query in a lentRows. It passes the error of the query to note.
func (c *lentConn) rows(rows *sql.Rows, err error) (driver.Rows, error) {
	if err != nil {
		return nil, c.note(err)
	}
	columns, err := rows.Columns()
	if err != nil {
		return nil, errors.Join(err, rows.Close())
	}
	r := &lentRows{c: c, rows: rows, columns: columns, values: make([]any, len(columns))}
	for i := range r.values {
		r.values[i] = new(any)
	}
	r.types, _ = rows.ColumnTypes()
	return r, nil
}

func (r *lentRows) Columns() []string { return r.columns }
func (r *lentRows) Close() error      { return r.rows.Close() }

func (r *lentRows) Next(dest []driver.Value) error {
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return r.c.note(err)
		}
		return io.EOF
	}
	if err := r.rows.Scan(r.values...); err != nil {
		return err
	}
	for i, v := range r.values {
		dest[i] = *v.(*any) //nolint:errcheck,forcetypeassert // r.values contains only pointers of this type
	}
	return nil
}

// ColumnTypeDatabaseTypeName returns the original driver's value.
func (r *lentRows) ColumnTypeDatabaseTypeName(i int) string {
	if i < len(r.types) {
		return r.types[i].DatabaseTypeName()
	}
	return ""
}

// ColumnTypeScanType returns the original driver's value.
func (r *lentRows) ColumnTypeScanType(i int) reflect.Type {
	if i < len(r.types) {
		return r.types[i].ScanType()
	}
	return reflect.TypeFor[any]()
}

// ColumnTypeNullable returns the original driver's value.
func (r *lentRows) ColumnTypeNullable(i int) (nullable, ok bool) {
	if i < len(r.types) {
		return r.types[i].Nullable()
	}
	return false, false
}
