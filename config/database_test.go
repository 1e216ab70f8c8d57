package config

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
)

func TestDatabaseURLErrorsHidePasswords(t *testing.T) {
	for _, u := range []URL{
		"", "x", "u:hunter2@h/d", "postgres://u:hunter2@h:x/d", "postgres://u:hunter2%@h/d", "postgres:host=h password=hunter2",
		"postgres://u:hunter2@h/d?sslmode=sometimes", "mysql://u:hunter2@h", "mysql://u:hunter2%zz@h/d", "mysql://u:hunter2@h/d?timeout=hunter2",
		"sqlite:", "sqlite://",
	} {
		db, _, err := OpenDB(u)
		if err == nil {
			_ = db.Close()
			t.Errorf("OpenDB(%q): got no error, want one", string(u))
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("OpenDB: got %v, want an error without the password", err)
		}
	}
}

// Concurrent transactions that read and then write wait for each other instead of failing with "database is locked".
func TestSQLiteWritersWait(t *testing.T) {
	file := filepath.Join(t.TempDir(), "100% of #1?.db")
	for _, form := range []URL{URL("sqlite:" + strings.ReplaceAll(file, "?", "-")), URL("sqlite://" + strings.ReplaceAll(file, "?", "-")), "sqlite::memory:"} {
		db, dialect, err := OpenDB(form)
		if err != nil || dialect != idempotency.SQLite {
			t.Fatalf("OpenDB(%s): got the dialect %v, error %v, want %v and no error", form, dialect, err, idempotency.SQLite)
		}
		if _, err := db.ExecContext(t.Context(), "CREATE TABLE IF NOT EXISTS n (v INTEGER); DELETE FROM n; INSERT INTO n VALUES (0)"); err != nil {
			t.Fatalf("%v: creating a table: got %v, want no error", form, err)
		}
		const writers, each = 8, 20
		var wg sync.WaitGroup
		for range writers {
			wg.Go(func() {
				for range each {
					tx, err := db.BeginTx(t.Context(), nil)
					if err != nil {
						t.Error(err)
						return
					}
					var v int
					if err := tx.QueryRowContext(t.Context(), "SELECT v FROM n").Scan(&v); err != nil {
						t.Error(err)
					}
					if _, err := tx.ExecContext(t.Context(), "UPDATE n SET v = ?", v+1); err != nil {
						t.Error(err)
					}
					if err := tx.Commit(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		var v int
		if err := db.QueryRowContext(t.Context(), "SELECT v FROM n").Scan(&v); err != nil || v != writers*each {
			t.Errorf("%s: got the counter %d, error %v, want %d and no error", form, v, err, writers*each)
		}
		if err := db.Close(); err != nil {
			t.Errorf("%v: Close: got %v, want no error", form, err)
		}
	}
}

func TestSQLitePathIsTaken(t *testing.T) {
	dir := t.TempDir()
	db, _, err := OpenDB(URL("sqlite:" + dir + "/a%20#b.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	var mode string
	if err := db.QueryRowContext(t.Context(), "PRAGMA journal_mode").Scan(&mode); err != nil || mode != "wal" {
		t.Errorf(`OpenDB: got the journal mode %q, error %v, want "wal" and no error`, mode, err)
	}
	if found, _ := filepath.Glob(dir + "/a%20#b.db"); len(found) != 1 {
		t.Errorf("OpenDB created the files %v, want one with the given name", found)
	}
}
