package tasks_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver named pgx
	_ "modernc.org/sqlite"             // the driver named sqlite

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

// businessDB is an empty database of one kind.
type businessDB struct {
	*sql.DB
	dialect idempotency.Dialect
	dsn     string
	pool    *pgxpool.Pool // nil where tests use database/sql
}

// bind replaces question marks with the dialect's placeholders.
func (b businessDB) bind(query string) string {
	if b.dialect != idempotency.PostgreSQL {
		return query
	}
	for n := 1; strings.Contains(query, "?"); n++ {
		query = strings.Replace(query, "?", fmt.Sprintf("$%d", n), 1)
	}
	return query
}

func (b businessDB) mustExec(t testing.TB, query string, args ...any) {
	t.Helper()
	if _, err := b.ExecContext(t.Context(), b.bind(query), args...); err != nil {
		t.Fatalf("statement %s: %v", query, err)
	}
}

func (b businessDB) queryInt(t testing.TB, query string, args ...any) int64 {
	t.Helper()
	var n int64
	if err := b.QueryRowContext(t.Context(), b.bind(query), args...).Scan(&n); err != nil {
		t.Fatalf("query %s: %v", query, err)
	}
	return n
}

var databaseNumber atomic.Int64

// eachDatabase runs test on an empty database of every kind.
func eachDatabase(t *testing.T, test func(t *testing.T, db businessDB)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { test(t, openSQLite(t)) })
	t.Run("postgres", func(t *testing.T) { test(t, openServer(t, idempotency.PostgreSQL, database.PostgreSQL)) })
	for _, kind := range tier.Sample(t.Name(), mysqls) {
		t.Run(strings.ToLower(string(kind)), func(t *testing.T) { test(t, openServer(t, idempotency.MySQL, kind)) })
	}
}

// oneDatabase is eachDatabase for a long test. make test-servers runs it on one of the databases.
func oneDatabase(t *testing.T, test func(t *testing.T, db businessDB)) {
	t.Helper()
	type place struct {
		name string
		open func(t *testing.T) businessDB
	}
	server := func(name string, d idempotency.Dialect, kind database.Kind) place {
		return place{name, func(t *testing.T) businessDB { t.Helper(); return openServer(t, d, kind) }}
	}
	all := []place{
		{"sqlite", func(t *testing.T) businessDB { t.Helper(); return openSQLite(t) }},
		server("postgres", idempotency.PostgreSQL, database.PostgreSQL), server("mariadb", idempotency.MySQL, database.MariaDB),
		server("mysql", idempotency.MySQL, database.MySQL),
	}
	for _, db := range tier.Sample(t.Name(), all) {
		t.Run(db.name, func(t *testing.T) { test(t, db.open(t)) })
	}
}

// mysqls are the databases that have the MySQL dialect.
var mysqls = []database.Kind{database.MariaDB, database.MySQL}

// eachMySQL runs test on the databases that have the MySQL dialect, for a test in which they differ.
func eachMySQL(t *testing.T, test func(t *testing.T, db businessDB)) {
	t.Helper()
	for _, kind := range mysqls {
		t.Run(strings.ToLower(string(kind)), func(t *testing.T) { test(t, openServer(t, idempotency.MySQL, kind)) })
	}
}

func openSQLite(t testing.TB) businessDB {
	t.Helper()
	file := filepath.Join(t.TempDir(), "business.db")
	dsn := "file:" + file + "?_pragma=busy_timeout(180000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return businessDB{DB: db, dialect: idempotency.SQLite, dsn: dsn}
}

// openServer creates a separate database on the server that the suite shares.
func openServer(t testing.TB, d idempotency.Dialect, kind database.Kind) businessDB {
	t.Helper()
	server := database.Shared(t, kind)
	driver, url := server.Driver(), server.DSN()
	name := fmt.Sprintf("rd_%d_%d", os.Getpid(), databaseNumber.Add(1))
	admin, err := sql.Open(driver, url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	dsn := otherDatabase(t, d, url, name)
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(8) // the servers allow 100 and 151 for all tests together
	db.SetMaxIdleConns(8) // with the default of two, half of a test's time is spent on opening connections
	t.Cleanup(func() {
		_ = db.Close()
		ctx, cancel := context.WithTimeout(context.Background(), suite.Patience)
		defer cancel()
		if _, err := admin.ExecContext(ctx, "DROP DATABASE "+name); err != nil {
			t.Errorf("dropping database %s: %v", name, err)
		}
		_ = admin.Close()
	})
	return businessDB{DB: db, dialect: d, dsn: dsn}
}

func otherDatabase(t testing.TB, d idempotency.Dialect, url, name string) string {
	t.Helper()
	if d == idempotency.MySQL {
		cfg, err := mysql.ParseDSN(url)
		if err != nil {
			t.Fatal(err)
		}
		cfg.DBName = name
		return cfg.FormatDSN()
	}
	base, query, _ := strings.Cut(url, "?")
	return base[:strings.LastIndexByte(base, '/')+1] + name + "?" + query
}
