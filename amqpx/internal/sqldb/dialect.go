// Package sqldb is what amqpx/idempotency and amqpx/schedule share to speak to a
// business database through database/sql without importing any driver: the SQL
// dialect, the errors that mean "run it again", transactions and migrations.
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

// The dialects there are.
const (
	PostgreSQL Dialect = "postgres"
	MySQL      Dialect = "mysql" // and MariaDB
	SQLite     Dialect = "sqlite"
)

// ErrDialect is in the error of a database that is none of the dialects.
var ErrDialect = errors.New("database is not recognised as PostgreSQL, MySQL, MariaDB or SQLite")

// Valid reports whether d is one of the dialects.
func (d Dialect) Valid() bool { return d == PostgreSQL || d == MySQL || d == SQLite }

// Bind writes the placeholders of query, which are question marks, the way the
// dialect wants them. The query must not contain a question mark otherwise.
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

// InsertMissing returns the statement that inserts into a table, given with its columns and
// values, and leaves rows that exist as they are.
func (d Dialect) InsertMissing(into string) string {
	if d == MySQL {
		return "INSERT IGNORE INTO " + into
	}
	return "INSERT INTO " + into + " ON CONFLICT DO NOTHING"
}

// JSON is the placeholder for a JSON text in a query of PostgreSQL: rows or values,
// any number of them, as one parameter, so that the query is planned once. It is
// passed as a string, which every driver can do.
const JSON = "CAST(CAST(? AS text) AS json)"

// OfDriver recognises the well-known drivers by the name of their type. It says
// false for others, for instance one that wraps a driver for tracing.
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

// Detect asks the database what it is. version() exists everywhere but on
// SQLite, so the query never fails, and aborts the transaction it may run in, on
// the databases where a failed statement does that.
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
		return "", fmt.Errorf("%w: its version() is %q; name the dialect", ErrDialect, version)
	}
	if lite := c.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&version); lite == nil {
		return SQLite, nil
	}
	return "", fmt.Errorf("asking the database for its version: %w", err)
}

// Resolver finds the dialect of one database once.
type Resolver struct {
	known atomic.Value // Dialect
}

// NewResolver takes the dialect given, or the driver's when it is empty, or
// leaves it to the first Resolve.
func NewResolver(db DB, given Dialect) *Resolver {
	r := &Resolver{}
	if given != "" {
		r.known.Store(given)
	} else if d, ok := db.Dialect(); ok {
		r.known.Store(d)
	}
	return r
}

// Resolve returns the dialect. It asks through c, not through the pool, because a
// caller may hold the pool's only connection.
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
