package config

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // the driver named sqlite

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// database is a URL that was taken apart.
type database struct {
	dialect  idempotency.Dialect
	postgres *pgx.ConnConfig
	mysql    *mysql.Config
	sqlite   string // data source name
	memory   bool   // every connection would be a database of its own
}

// OpenDB opens the database of a URL and returns its dialect:
//
//	postgres://user:password@host:5432/database?sslmode=…   (postgresql:// too)
//	mysql://user:password@host:3306/database?tls=…          (mariadb:// too)
//	sqlite:path/to/file.db, sqlite:///path/to/file.db, sqlite::memory:
//
// MySQL's times are parsed, and one Exec runs one statement. SQLite gets a write
// lock at the begin of a transaction, waits 20 s for it, and keeps a write-ahead
// log. OpenDB does not connect. Its errors never contain the URL.
func OpenDB(u URL) (*sql.DB, idempotency.Dialect, error) {
	d, err := parseDatabase(u)
	if err != nil {
		return nil, "", err
	}
	switch d.dialect {
	case idempotency.PostgreSQL:
		return stdlib.OpenDB(*d.postgres), d.dialect, nil
	case idempotency.MySQL:
		connector, err := mysql.NewConnector(d.mysql)
		if err != nil {
			return nil, "", errMySQL
		}
		return sql.OpenDB(connector), d.dialect, nil
	}
	db, err := sql.Open("sqlite", d.sqlite)
	if err != nil {
		return nil, "", errSQLite
	}
	if d.memory {
		db.SetMaxOpenConns(1)
	}
	return db, d.dialect, nil
}

var (
	errScheme   = errors.New("expected a database URL: postgres://…, mysql://… or sqlite:path")
	errPostgres = errors.New("expected a URL such as postgres://user:password@host:5432/database, with special characters in user and password percent-encoded")
	errMySQL    = errors.New("expected a URL such as mysql://user:password@host:3306/database, with special characters in user and password percent-encoded")
	errSQLite   = errors.New("expected a file, such as sqlite:orders.db or sqlite:///var/lib/orders.db")
)

func parseDatabase(u URL) (database, error) {
	scheme, rest, _ := strings.Cut(string(u), ":")
	if scheme != "sqlite" {
		if err := amqpx.CheckURL(string(u)); err != nil {
			return database{}, err
		}
	}
	switch scheme {
	case "postgres", "postgresql":
		// ParseConfig takes other forms too, and its errors quote what they parse. It
		// ends the password at the first @, so that what follows would be the host.
		if _, err := url.Parse(string(u)); err != nil || !strings.HasPrefix(rest, "//") || strings.Count(rest, "@") > 1 {
			return database{}, errPostgres
		}
		cfg, err := pgx.ParseConfig(string(u))
		if err != nil {
			return database{}, errPostgres
		}
		return database{dialect: idempotency.PostgreSQL, postgres: cfg}, nil
	case "mysql", "mariadb":
		cfg, err := mysqlConfig(string(u))
		return database{dialect: idempotency.MySQL, mysql: cfg}, err
	case "sqlite":
		return sqliteSource(rest)
	}
	return database{}, errScheme
}

func mysqlConfig(raw string) (*mysql.Config, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || strings.Trim(u.Path, "/") == "" {
		return nil, errMySQL
	}
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr = "tcp", u.Host
	if u.Port() == "" {
		cfg.Addr = net.JoinHostPort(u.Hostname(), "3306")
	}
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.DBName = strings.TrimPrefix(u.Path, "/")
	// The parameters are the driver's own; it reads them best itself.
	parsed, err := mysql.ParseDSN(cfg.FormatDSN() + separator(cfg.FormatDSN()) + u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w; the parameters after ? are not the driver's", errMySQL)
	}
	parsed.ParseTime = true
	parsed.MultiStatements = false
	parsed.Logger = silent{} // standard error is not the driver's
	return parsed, nil
}

func separator(dsn string) string {
	if strings.Contains(dsn[strings.LastIndexByte(dsn, '/'):], "?") {
		return "&"
	}
	return "?"
}

type silent struct{}

func (silent) Print(...any) {}

func sqliteSource(rest string) (database, error) {
	path, query, _ := strings.Cut(strings.TrimPrefix(rest, "//"), "?")
	if path == "" || strings.ContainsRune(path, 0) {
		return database{}, errSQLite
	}
	pragmas := "_pragma=busy_timeout(20000)&_pragma=journal_mode(wal)&_txlock=immediate"
	if query != "" {
		pragmas += "&" + query
	}
	if path == ":memory:" {
		return database{dialect: idempotency.SQLite, sqlite: ":memory:?" + pragmas, memory: true}, nil
	}
	// In a file: URI these would end the path.
	escaped := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
	return database{dialect: idempotency.SQLite, sqlite: "file:" + escaped + "?" + pragmas}, nil
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
		{Component: "idempotency", Migrate: idempotency.Migrate, Script: idempotency.Migrations},
		{Component: "schedule", Migrate: schedule.Migrate, Script: schedule.Migrations},
	}
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
