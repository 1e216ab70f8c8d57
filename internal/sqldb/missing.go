package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
)

// Errors for missing arguments.
var (
	ErrNoExecutor = errors.New("the executor is nil; pass the transaction in which the change is to be committed, or schedule.NoTx to use the store's database without a transaction")
	ErrNoDatabase = errors.New("the database is nil; pass an open *sql.DB, or an open pool of pgx")
)

// nowhere replaces a nil executor or database. All its methods return err.
type nowhere struct{ err error }

func (n nowhere) ExecContext(context.Context, string, ...any) (sql.Result, error) { return nil, n.err }

func (n nowhere) QueryContext(context.Context, string, ...any) (*sql.Rows, error) { return nil, n.err }

func (n nowhere) BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error) { return nil, n.err }

// IsNil reports whether an interface is nil or contains a nil pointer.
func IsNil(x any) bool {
	v := reflect.ValueOf(x)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}
