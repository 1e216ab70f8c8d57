// Package hung provides a database that accepts connections but never answers, for tests.
package hung

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"
)

// DB returns a database whose connections wait until their context ends.
func DB(t *testing.T) *sql.DB {
	t.Helper()
	db := sql.OpenDB(connector{})
	t.Cleanup(func() { _ = db.Close() })
	return db
}

type connector struct{}

func (connector) Driver() driver.Driver { return nil }

func (connector) Connect(ctx context.Context) (driver.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
