package taskview

import (
	"database/sql"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openStore(t *testing.T, cfg schedule.Config) (*Store, *sql.DB) {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	check(t, err)
	t.Cleanup(func() { check(t, db.Close()) })
	db.SetMaxOpenConns(1)
	check(t, schedule.Migrate(t.Context(), db))
	s, err := New(db, cfg)
	check(t, err)
	return s, db
}
