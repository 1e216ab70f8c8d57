package service

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	_ "modernc.org/sqlite" // registers the database driver

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// ended returns a database with tasks that finished during the last nine days: one task every five minutes, and in
// recent minutes ten tasks per minute, one of which failed at its third attempt.
func ended(t *testing.T) (*sql.DB, *taskview.Store, time.Time) {
	t.Helper()
	db, err := sql.Open("sqlite",
		"file:"+filepath.Join(t.TempDir(), "tasks.db")+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := schedule.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	store, err := taskview.New(db, schedule.Config{})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for minute := range 9 * 24 * 60 {
		n := 0
		if minute%5 == 0 {
			n = 1
		}
		if minute < 10 {
			n = 10
		}
		for i := range n {
			status, attempts, at := "done", 0, now.Truncate(time.Minute).Add(-time.Duration(minute)*time.Minute).UnixMilli()
			if i == 9 {
				status, attempts = "failed", 3
			}
			if _, err := tx.Exec("INSERT INTO rabbitdelay_tasks (id, queue, due_at, status, finished_at, attempts) VALUES (?, 'q', ?, ?, ?, ?)",
				fmt.Sprint(minute, "-", i), at-4, status, at, attempts); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return db, store, now
}

// Two consoles on one database write the same history: each interval has one row, short intervals add up to the long
// ones, and old rows are deleted.
func TestHistory(t *testing.T) {
	db, store, now := ended(t)
	if _, err := db.Exec("INSERT INTO rabbitdelay_history VALUES (60000, 0, 1, 1, 1, '[]'), " +
		"(3600000, 0, 1, 1, 1, '[]'), (3600000, 3600000, 1, 1, 1, 'of somebody else')"); err != nil {
		t.Fatal(err)
	}
	cores := []*Core{New(Config{Store: store, DB: db}), New(Config{Store: store, DB: db})}
	for _, c := range cores {
		if err := c.writeHistory(t.Context(), tableOf(db)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(context.Background()) })
	}
	for _, c := range cores {
		v, err := c.history.view(t.Context(), store, now)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range []struct {
			name  string
			spans []taskview.CompletionStats
			n     int
			width time.Duration
		}{{"hour", v.Hour, 20, time.Minute}, {"day", v.Day, 144, 10 * time.Minute}, {"week", v.Week, 168, time.Hour}} {
			var sum taskview.CompletionStats
			for _, e := range x.spans {
				sum = sum.Plus(e)
			}
			var want, failed int64
			err := db.QueryRow("SELECT COUNT(*), SUM(status = 'failed') FROM rabbitdelay_tasks WHERE finished_at >= ?",
				x.spans[0].From.UnixMilli()).Scan(&want, &failed)
			if err != nil {
				t.Fatalf("%+v: %v", x, err)
			}
			if n := len(x.spans); n < x.n-1 || n > x.n {
				t.Errorf("%s: got %d spans, want %d or one less", x.name, n, x.n)
			}
			if got := sum.Done + sum.Failed; got != want {
				t.Errorf("%s: the history counts %d done and failed tasks, want %d", x.name, got, want)
			}
			if sum.Failed != failed {
				t.Errorf("%s: the history counts %d failed tasks, want %d", x.name, sum.Failed, failed)
			}
			if sum.Retries != 2*failed {
				t.Errorf("%s: the history counts %d retries, want %d", x.name, sum.Retries, 2*failed)
			}
			if late := sum.Lateness(0.5); late > 4*time.Millisecond || late < 3*time.Millisecond {
				t.Errorf("%s: the median lateness is %v, want 3ms to 4ms", x.name, late)
			}
			if !slices.IsSortedFunc(x.spans, func(a, b taskview.CompletionStats) int { return a.From.Compare(b.From) }) {
				t.Errorf("%s: got the spans %v, want them sorted by time", x.name, x.spans)
			}
			if got := x.spans[0].To.Sub(x.spans[0].From); got != x.width {
				t.Errorf("%s: the first span is %v wide, want %v", x.name, got, x.width)
			}
		}
	}
	var rows, old int
	if err := db.QueryRow("SELECT COUNT(*), SUM(begins_at < 4000000) FROM rabbitdelay_history").Scan(&rows, &old); err != nil {
		t.Fatal(err)
	}
	if old != 0 || rows < 360 || rows > 60+144+168+3*2 {
		t.Errorf("the history has %d rows, %d of them old, want 360 to %[3]d rows and 0 old ones", rows, old, 60+144+168+3*2)
	}
}

// The row of an interval does not change after it was written, so tasks that are purged later still count.
func TestHistoryOutlivesItsTasks(t *testing.T) {
	db, store, now := ended(t)
	c := New(Config{Store: store, DB: db})
	defer func() { _ = c.Close(t.Context()) }()
	if err := c.writeHistory(t.Context(), tableOf(db)); err != nil {
		t.Fatal(err)
	}
	before, err := c.history.view(t.Context(), store, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("DELETE FROM rabbitdelay_tasks WHERE finished_at < ?", now.Add(-30*time.Minute).UnixMilli()); err != nil {
		t.Fatal(err)
	}
	other := New(Config{Store: store, DB: db})
	defer func() { _ = other.Close(t.Context()) }()
	if err := other.writeHistory(t.Context(), tableOf(db)); err != nil {
		t.Fatal(err)
	}
	after, err := other.history.view(t.Context(), store, now)
	if err != nil {
		t.Fatal(err)
	}
	if len(after.Hour) != len(before.Hour) || len(after.Day) != len(before.Day) || len(after.Week) != len(before.Week) {
		t.Errorf("after the purge: got %d, %d and %d spans, want %d, %d and %d, as before", len(after.Hour), len(after.Day),
			len(after.Week), len(before.Hour), len(before.Day), len(before.Week))
	}
}

func tableOf(db *sql.DB) *table {
	x := sqldb.Of(db)
	return &table{db: x, dialect: sqldb.NewResolver(x, "")}
}
