package config

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config/internal/dbdriver"
	"github.com/rabbitdelay/rabbitdelay/internal/brokerurl"
)

// OpenDB opens the database at a URL and returns its dialect. These forms are supported:
//
//	postgres://user:password@host:5432/database?sslmode=…   (postgresql:// too)
//	mysql://user:password@host:3306/database?tls=…          (mariadb:// too)
//	sqlite:path/to/file.db, sqlite:///path/to/file.db, sqlite::memory:
//
// The program links the drivers that it uses by blank imports of config/postgres, config/mysql and config/sqlite. If
// the driver is not linked, the error wraps ErrNoDriver and names the package to import.
//
// Connections have these properties:
//
//   - PostgreSQL and MySQL: the pool keeps up to 32 idle connections, each for up to a minute, and has no limit. Change
//     that with the methods of the *sql.DB.
//   - MySQL: times are parsed, and one Exec runs one statement.
//   - SQLite: a transaction acquires the write lock when it begins, for which it waits up to 20 s, and the database
//     uses a write-ahead log.
//   - PostgreSQL: the first connection detects whether a pooler such as PgBouncer is in between. If so, no statements
//     are prepared, unless the URL has a default_query_exec_mode.
//
// OpenDB does not connect. Its errors never contain the URL.
func OpenDB(u URL) (*sql.DB, idempotency.Dialect, error) {
	d, dialect, err := driverOf(u)
	if err != nil {
		return nil, "", err
	}
	db, err := d.Open(string(u))
	if err != nil {
		return nil, "", err
	}
	if dialect != idempotency.SQLite {
		db.SetMaxIdleConns(maxIdle)
		db.SetConnMaxIdleTime(idleTime)
	}
	return db, dialect, nil
}

// By default, database/sql keeps only two idle connections, so a program with more concurrent handlers would constantly
// open and close connections. Each new connection costs the database a login, and PostgreSQL a process.
const (
	maxIdle  = 32
	idleTime = time.Minute
)

// Listener returns a listener that wakes a relay by LISTEN and NOTIFY if the database is PostgreSQL. For other
// databases it returns nil, and the relay polls the table. The listener opens its own connection. A connection pooler
// in transaction mode does not deliver notifications; the listener notices that, and the relay polls. Listener does not
// connect. Its errors are the same as OpenDB's.
func Listener(u URL) (schedule.Listener, error) {
	d, _, err := driverOf(u)
	if err != nil || d.Listener == nil {
		return nil, err
	}
	return d.Listener(string(u))
}

// ErrNoDriver is wrapped by the error for a database URL if the program does not link the driver.
var ErrNoDriver = errors.New("no driver for this database is linked into the program")

var errScheme = errors.New("expected a database URL: postgres://…, mysql://… or sqlite:path")

func driverOf(u URL) (dbdriver.Driver, idempotency.Dialect, error) {
	dialect, err := Dialect(u)
	if err != nil {
		return dbdriver.Driver{}, "", err
	}
	if dialect != idempotency.SQLite {
		if err := brokerurl.Check(string(u)); err != nil {
			return dbdriver.Driver{}, "", err
		}
	}
	d, ok := dbdriver.Of(dialect)
	if !ok {
		return d, "", fmt.Errorf("%w; add import _ %q", ErrNoDriver, "github.com/rabbitdelay/rabbitdelay/config/"+dialect)
	}
	return d, dialect, nil
}

// checkDatabase validates a database URL. A program without the driver might not use the database at all, so in that
// case only the scheme is checked.
func checkDatabase(u URL) error {
	d, _, err := driverOf(u)
	if errors.Is(err, ErrNoDriver) {
		return nil
	}
	if err != nil {
		return err
	}
	return d.Check(string(u))
}

// Dialect returns the dialect of a database URL. It only needs the URL's scheme.
func Dialect(u URL) (idempotency.Dialect, error) {
	scheme, _, _ := strings.Cut(string(u), ":")
	switch scheme {
	case "postgres", "postgresql":
		return idempotency.PostgreSQL, nil
	case "mysql", "mariadb":
		return idempotency.MySQL, nil
	case "sqlite":
		return idempotency.SQLite, nil
	}
	return "", errScheme
}
