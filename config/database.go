package config

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx/brokerurl"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config/internal/dbdriver"
)

// OpenDB opens the database of a URL and returns its dialect:
//
//	postgres://user:password@host:5432/database?sslmode=…   (postgresql:// too)
//	mysql://user:password@host:3306/database?tls=…          (mariadb:// too)
//	sqlite:path/to/file.db, sqlite:///path/to/file.db, sqlite::memory:
//
// The program links the drivers that it uses, by blank imports of config/postgres,
// config/mysql and config/sqlite; ErrNoDriver says which one is missing.
//
// MySQL's times are parsed, and one Exec runs one statement. SQLite gets a write
// lock at the begin of a transaction, waits 20 s for it, and keeps a write-ahead
// log. OpenDB does not connect. Its errors never contain the URL.
func OpenDB(u URL) (*sql.DB, idempotency.Dialect, error) {
	d, dialect, err := driverOf(u)
	if err != nil {
		return nil, "", err
	}
	db, err := d.Open(string(u))
	if err != nil {
		return nil, "", err
	}
	return db, dialect, nil
}

// Listener wakes a relay by LISTEN and NOTIFY, where the database is PostgreSQL.
// Elsewhere it is nil, and the relay looks at the table now and then. It opens a
// connection of its own, which must reach the server itself: a pooler that hands
// out connections by transaction delivers no notifications. It does not connect
// yet. Its errors are those of OpenDB.
func Listener(u URL) (schedule.Listener, error) {
	d, _, err := driverOf(u)
	if err != nil || d.Listener == nil {
		return nil, err
	}
	return d.Listener(string(u))
}

// ErrNoDriver is in the error of a database URL whose driver the program does not
// link.
var ErrNoDriver = errors.New("the program links no driver for this database")

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
		return d, "", fmt.Errorf("%w; add to it: import _ %q", ErrNoDriver, "github.com/rabbitdelay/rabbitdelay/config/"+dialect)
	}
	return d, dialect, nil
}

// checkDatabase returns what is wrong with a database's URL. A program without its driver may
// have nothing to do with the database, so then only the scheme is checked.
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

// Dialect is what a database's URL says it is; of the URL, the scheme is enough.
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

// Migration is the tables of one component in the business database.
type Migration struct {
	Component string
	Migrate   func(ctx context.Context, db *sql.DB) error
	Script    func(d idempotency.Dialect) string
}

// Migrations are those of all components, in the order in which they run.
func Migrations() []Migration {
	return []Migration{
		{"idempotency", func(ctx context.Context, db *sql.DB) error { return idempotency.Migrate(ctx, db) }, idempotency.Migrations},
		{"schedule", func(ctx context.Context, db *sql.DB) error { return schedule.Migrate(ctx, db) }, schedule.Migrations},
	}
}
