// Package sqldb is shared by amqpx/idempotency and amqpx/schedule. It accesses an application's database through
// database/sql without importing a driver, and provides the SQL dialects, the classification of errors, transactions
// and migrations.
package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
)

// Dialect is a family of databases that understand the same SQL.
type Dialect string

// The supported dialects.
const (
	PostgreSQL Dialect = "postgres"
	MySQL      Dialect = "mysql" // and MariaDB
	SQLite     Dialect = "sqlite"
)

// ErrDialect is wrapped by the error for a database that has none of the dialects.
var ErrDialect = errors.New("database is not recognised as PostgreSQL, MySQL, MariaDB or SQLite")

// Valid reports whether d is one of the dialects.
func (d Dialect) Valid() bool { return d == PostgreSQL || d == MySQL || d == SQLite }

// Bind replaces the question marks in query with the dialect's placeholders. The query must not contain question marks
// for any other purpose.
func (d Dialect) Bind(query string) string {
	if d != PostgreSQL {
		return query
	}
	var b strings.Builder
	b.Grow(len(query) + 16)
	n := 0
	for {
		i := strings.IndexByte(query, '?')
		if i < 0 {
			b.WriteString(query)
			return b.String()
		}
		n++
		b.WriteString(query[:i])
		b.WriteByte('$')
		b.WriteString(strconv.Itoa(n))
		query = query[i+1:]
	}
}

// InsertMissing returns a statement that inserts rows and leaves existing rows unchanged. The parameter into is the
// part after INSERT INTO: the table with its columns and values.
func (d Dialect) InsertMissing(into string) string {
	if d == MySQL {
		return "INSERT IGNORE INTO " + into
	}
	return "INSERT INTO " + into + " ON CONFLICT DO NOTHING"
}

// JSON is the placeholder for a JSON document in a query for PostgreSQL. It passes any number of rows or values as one
// parameter, so that the query is planned once. The parameter is a string, which every driver supports.
const JSON = "CAST(CAST(? AS text) AS json)"

// OfDriver recognises well-known drivers by the name of their type. It returns false for other drivers, such as one
// that wraps a driver for tracing.
func OfDriver(db *sql.DB) (Dialect, bool) {
	switch name := fmt.Sprintf("%T", db.Driver()); name {
	case "*stdlib.Driver", "*pq.Driver", "pq.Driver":
		return PostgreSQL, true
	case "*mysql.MySQLDriver", "mysql.MySQLDriver":
		return MySQL, true
	case "*sqlite.Driver", "*sqlite3.SQLiteDriver":
		return SQLite, true
	}
	return "", false
}

// Detect determines the dialect by querying the database. Every supported database except SQLite has the function
// version(), so only SQLite rejects the query. There, a failed statement does not abort the surrounding transaction.
func Detect(ctx context.Context, c Conn) (Dialect, error) {
	var version string
	err := c.QueryRowContext(ctx, "SELECT version()").Scan(&version)
	if err == nil {
		lower := strings.ToLower(version)
		switch {
		case strings.HasPrefix(lower, "postgresql"):
			return PostgreSQL, nil
		case version != "" && version[0] >= '0' && version[0] <= '9':
			return MySQL, nil
		}
		return "", fmt.Errorf("%w: version() returned %q; set the dialect explicitly", ErrDialect, version)
	}
	if lite := c.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&version); lite == nil {
		return SQLite, nil
	}
	return "", fmt.Errorf("querying the database's version: %w", err)
}

// Resolver determines the dialect of a database, and remembers it.
type Resolver struct {
	known atomic.Value // Dialect
}

// NewResolver returns a Resolver that uses the given dialect or, if that is empty, the driver's. If neither is known,
// the first call to Resolve determines the dialect.
func NewResolver(db DB, given Dialect) *Resolver {
	r := &Resolver{}
	if given != "" {
		r.known.Store(given)
	} else if d, ok := db.Dialect(); ok {
		r.known.Store(d)
	}
	return r
}

// Resolve returns the dialect. It queries c instead of the pool, because the caller may hold the pool's only
// connection.
func (r *Resolver) Resolve(ctx context.Context, c Conn) (Dialect, error) {
	if d, ok := r.known.Load().(Dialect); ok {
		if !d.Valid() {
			return "", fmt.Errorf("%w: %q was given, expected %q, %q or %q", ErrDialect, d, PostgreSQL, MySQL, SQLite)
		}
		return d, nil
	}
	d, err := Detect(ctx, c)
	if err != nil {
		return "", err
	}
	r.known.Store(d)
	return d, nil
}
