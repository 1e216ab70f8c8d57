package rows

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the database of these tests

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// want fails the test unless got, printed with fmt.Sprint, is the expected text.
func want(t *testing.T, what string, got any, expected string) {
	t.Helper()
	if text := fmt.Sprint(got); text != expected {
		t.Errorf("%s: got %s, want %s", what, text, expected)
	}
}

// table is an in-memory database with the tables, and a connection to it.
type table struct {
	Conn

	t  *testing.T
	db *DB
}

func newTable(t *testing.T) *table {
	t.Helper()
	opened, err := sql.Open("sqlite", ":memory:")
	check(t, err)
	opened.SetMaxOpenConns(1)
	t.Cleanup(func() { check(t, opened.Close()) })
	check(t, Migrations.Migrate(t.Context(), sqldb.Of(opened)))
	db := Open(sqldb.Of(opened), "", nil)
	c, err := db.Conn(t.Context())
	check(t, err)
	return &table{c, t, db}
}

// must executes a statement, and stops the test if it fails.
func (x *table) must(query string, args ...any) {
	x.t.Helper()
	_, err := x.ExecContext(x.t.Context(), query, args...)
	check(x.t, err)
}

// unchecked calls write with the checks of the tables disabled, so that it can write invalid rows.
func (x *table) unchecked(write func()) {
	x.t.Helper()
	x.must("PRAGMA ignore_check_constraints = 1")
	write()
	x.must("PRAGMA ignore_check_constraints = 0")
}

// insert writes tasks that are created at start.
func (x *table) insert(tasks ...*Task) {
	x.t.Helper()
	existing, err := x.Insert(x.t.Context(), tasks, start, Refuse)
	check(x.t, err)
	if len(existing) > 0 {
		x.t.Fatalf("Insert: got the existing ids %q, want none", existing)
	}
}

// set assigns values to columns of a task.
func (x *table) set(id, columns string, args ...any) {
	x.t.Helper()
	x.must("UPDATE rabbitdelay_tasks SET "+columns+" WHERE id = ?", append(args, id)...)
}

// end gives a task a final status.
func (x *table) end(id, status string, at int64) {
	x.t.Helper()
	x.set(id, "status = ?, finished_at = ?", status, at)
}

func (x *table) get(id string) *Task {
	x.t.Helper()
	task, err := x.Get(x.t.Context(), id)
	check(x.t, err)
	return task
}

// wantTask fails the test unless the task has this status and version.
func (x *table) wantTask(id, status string, version int64) {
	x.t.Helper()
	got := x.get(id)
	if got.Status != status {
		x.t.Errorf("task %s is %s, want %s", id, got.Status, status)
	}
	if got.Version != version {
		x.t.Errorf("task %s has version %d, want %d", id, got.Version, version)
	}
}

// start is the time at which the tests start, in milliseconds.
const start = int64(1_800_000_000_000)

// at returns the time that is the given duration after start.
func at(after time.Duration) time.Time { return time.UnixMilli(start).Add(after) }

// ms is like at, but returns milliseconds.
func ms(after time.Duration) int64 { return at(after).UnixMilli() }

// toQ returns a task for the queue q that is due the given duration after start.
func toQ(id string, due time.Duration) *Task {
	return &Task{Content: Content{ID: id, Queue: "q", DeliverAt: at(due)}}
}

// toE is like toQ, but returns a task for the exchange e.
func toE(id, key string, due time.Duration) *Task {
	return &Task{Content: Content{ID: id, Exchange: "e", RoutingKey: key, DeliverAt: at(due)}}
}
