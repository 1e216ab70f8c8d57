package sqldb_test

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "modernc.org/sqlite" // the driver named sqlite

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// The package reads the drivers' errors without importing the drivers, so this test uses their real types, wrapped
// and joined.
func TestErrorsOfDrivers(t *testing.T) {
	pg := func(code string) error { return &pgconn.PgError{Code: code} }
	my := func(n uint16, state string) error {
		e := &mysql.MySQLError{Number: n, Message: "x"}
		copy(e.SQLState[:], state)
		return e
	}
	for _, c := range []struct {
		err                  error
		transient, duplicate bool
	}{
		{nil, false, false},
		{errors.New("boom"), false, false},
		{errors.New("Error in order 1213: boom"), false, false},
		{errors.New("Error 42: boom"), false, false},
		{pg("40001"), true, false},
		{pg("40P01"), true, false},
		{pg("55P03"), true, false},
		{pg("23505"), false, true},
		{pg("57P01"), false, false},
		{my(1213, "40001"), true, false},
		{my(1205, "HY000"), true, false},
		{my(1020, ""), true, false},
		{my(1062, "23000"), false, true},
		{my(1146, "42S02"), false, false},
	} {
		for _, err := range []error{c.err, wrapped(c.err), errors.Join(errors.New("other"), wrapped(c.err))} {
			if got := sqldb.Transient(err); got != c.transient {
				t.Errorf("Transient(%v) = %v, want %v", err, got, c.transient)
			}
			if got := sqldb.Duplicate(err); got != c.duplicate {
				t.Errorf("Duplicate(%v) = %v, want %v", err, got, c.duplicate)
			}
		}
	}
	for code, want := range map[string]error{"42P05": sqldb.ErrPooler, "26000": sqldb.ErrPooler, "25006": sqldb.ErrReadOnly} {
		once := sqldb.ExplainServer(wrapped(pg(code)))
		if twice := sqldb.ExplainServer(fmt.Errorf("listing tasks: %w", once)); !errors.Is(twice, want) || strings.Count(twice.Error(), want.Error()) != 1 {
			t.Errorf("ExplainServer called twice for code %s: got %v, want %q in it exactly once", code, twice, want)
		}
	}
	if err := sqldb.ExplainServer(pg("23505")); errors.Is(err, sqldb.ErrPooler) || errors.Is(err, sqldb.ErrReadOnly) || sqldb.ExplainServer(nil) != nil {
		t.Errorf("ExplainServer for code 23505: got %v, want neither ErrPooler nor ErrReadOnly; for nil, want nil", err)
	}
	if err := sqldb.ExplainServer(my(1792, "25006")); !strings.Contains(err.Error(), " read_only (MySQL, MariaDB)") {
		t.Errorf("ExplainServer for a read-only MySQL server: got %v, want an error that names read_only", err)
	}
	for _, err := range []error{pg("42P01"), my(1146, "42S02")} {
		if !errors.Is(sqldb.Explain(wrapped(err)), sqldb.ErrNoTable) {
			t.Errorf("Explain(%v): got %v, want ErrNoTable", err, sqldb.Explain(wrapped(err)))
		}
	}
}

func wrapped(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("doing it: %w", err)
}

// coded is an error with a code, like those of modernc.org/sqlite.
type coded int

func (c coded) Code() int { return int(c) }
func (c coded) Error() string {
	return fmt.Sprintf("attempt to write a readonly database (%d)", int(c))
}

// If a SQLite file cannot be written, the error says that the directory must be writable too, because SQLite's own
// error does not mention it.
func TestReadOnlySQLite(t *testing.T) {
	for _, code := range []coded{8, 1544} { // SQLITE_READONLY and SQLITE_READONLY_DIRECTORY
		err := sqldb.Explain(wrapped(code))
		for _, want := range []error{sqldb.ErrDenied, code} {
			if !errors.Is(err, want) {
				t.Errorf("code %d: got %v, want %v", code, err, want)
			}
		}
		const directory = "; SQLite must be able to write to the file and, for its journal, to its directory"
		if !strings.HasSuffix(fmt.Sprint(err), directory) {
			t.Errorf("code %d: got %v, want suffix %q", code, err, directory)
		}
	}
}

func TestErrorsOfSQLite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.db")
	open := func() *sql.DB {
		db, err := sql.Open("sqlite", file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	a, b := open(), open()
	if _, err := a.ExecContext(t.Context(), "CREATE TABLE x (id INTEGER PRIMARY KEY, u TEXT UNIQUE)"); err != nil {
		t.Fatal(err)
	}
	tx, err := a.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), "INSERT INTO x VALUES (1, 'a')"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ExecContext(t.Context(), "INSERT INTO x VALUES (2, 'b')"); !sqldb.Transient(err) || sqldb.Duplicate(err) {
		t.Errorf("insert into a busy file: got %v, want a transient error that is not a unique-key error", err)
	}
	for _, insert := range []string{"INSERT INTO x VALUES (1, 'c')", "INSERT INTO x VALUES (3, 'a')"} {
		if _, err := tx.ExecContext(t.Context(), insert); !sqldb.Duplicate(err) || sqldb.Transient(err) {
			t.Errorf("%s: got %v, want a unique-key error that is not transient", insert, err)
		}
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.ExecContext(t.Context(), "DELETE FROM rabbitdelay_x"); !errors.Is(sqldb.Explain(err), sqldb.ErrNoTable) {
		t.Errorf("Explain for a missing table: got %v, want ErrNoTable", sqldb.Explain(err))
	}
	if d, err := sqldb.Detect(t.Context(), sqldb.Of(a)); err != nil || d != sqldb.SQLite {
		t.Errorf("Detect: got %q, %v, want %q and no error", d, err, sqldb.SQLite)
	}
}

func TestBind(t *testing.T) {
	const query = "a = ? AND b IN (?, ?)"
	for d, want := range map[sqldb.Dialect]string{
		sqldb.PostgreSQL: "a = $1 AND b IN ($2, $3)", sqldb.MySQL: query, sqldb.SQLite: query,
	} {
		if got := d.Bind(query); got != want {
			t.Errorf("Bind for %s: got %q, want %q", d, got, want)
		}
	}
}

func TestResolverRefusesUnknownDialect(t *testing.T) {
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "x.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := sqldb.NewResolver(sqldb.Of(db), "oracle").Resolve(t.Context(), sqldb.Of(db)); !errors.Is(err, sqldb.ErrDialect) {
		t.Errorf("Resolve with an unknown dialect: got %v, want ErrDialect", err)
	}
	if d, err := sqldb.NewResolver(sqldb.Of(db), "").Resolve(t.Context(), sqldb.Of(db)); err != nil || d != sqldb.SQLite {
		t.Errorf("Resolve: got %q, %v, want %q and no error", d, err, sqldb.SQLite)
	}
}
