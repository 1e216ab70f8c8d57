package tasks_test

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

var updateVersion = flag.Bool("update", false, "write the tables of the next release to testdata; never use it after that release")

const released = "testdata/0.1.0"

// oldTables creates the tables of an earlier release, including rows, in an empty database.
func oldTables(t *testing.T, db businessDB) {
	t.Helper()
	file := filepath.Join(released, string(db.dialect)+".sql")
	if *updateVersion {
		suite.MustSucceed(t, os.WriteFile(file, []byte(idempotency.Migrations(db.dialect)+schedule.Migrations(db.dialect)), 0o600))
	}
	for _, name := range []string{file, filepath.Join(released, "rows.sql")} {
		script, err := os.ReadFile(name)
		suite.MustSucceed(t, err)
		hourAgo := fmt.Sprint(time.Now().Add(-time.Hour).UnixMilli()) // because retention would delete older tasks
		for statement := range strings.SplitSeq(strings.ReplaceAll(string(script), ":finished", hourAgo), ";\n") {
			if strings.TrimSpace(statement) != "" {
				db.mustExec(t, statement)
			}
		}
	}
}

// The current code works with the tables and rows of every release since 0.1.0.
func TestTablesOfEarlierReleases(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		oldTables(t, db)
		suite.MustSucceed(t, idempotency.Migrate(t.Context(), db.DB))
		var out outbox
		s := newStore(t, db, &out, schedule.Config{PollInterval: 10 * time.Millisecond, Grace: 20 * time.Millisecond})
		for id, want := range map[string]schedule.Status{
			"pending": schedule.StatusPending, "done": schedule.StatusDone, "cancelled": schedule.StatusCancelled, "failed": schedule.StatusFailed,
		} {
			if got := taskOf(t, s, id); got.Status != want || got.Queue != "orders.expire" {
				t.Errorf(`task %s is %s in queue %q, want %s in "orders.expire"`, id, got.Status, got.Queue, want)
			}
		}
		got := taskOf(t, s, "pending")
		if string(got.Body) != "pending" || got.Version != 3 || got.Headers["k"] != "v" || got.Type != "expire" {
			t.Errorf(`the pending task is %+v, want Body = "pending", Version = 3, Headers["k"] = "v" and Type = "expire"`, got)
		}
		suite.MustSucceed(t, s.Revive(t.Context(), schedule.NoTx, "failed", time.Now()))
		runStore(t, s)
		suite.Eventually(t, "pending, lost and revived tasks are sent", func() bool {
			return out.count("pending") > 0 && out.count("lost") > 0 && out.count("failed") > 0
		})
		ran := map[string]int{}
		h := schedule.Handler(db.DB, func(_ context.Context, _ *sql.Tx, d *amqpx.Delivery) error { ran[d.ID]++; return nil })
		for _, m := range out.messages() {
			suite.MustSucceed(t, h(t.Context(), asDelivery(m)))
		}
		if ran["pending"] != 1 || ran["lost"] != 1 || ran["failed"] != 1 || len(ran) != 3 {
			t.Errorf(`runs of the handler by task: got %v, want pending = 1, lost = 1, failed = 1 and no other tasks`, ran)
		}
		seen := false
		once := idempotency.Handler(db.DB, func(context.Context, *sql.Tx, *amqpx.Delivery) error { seen = true; return nil })
		suite.MustSucceed(t, once(t.Context(), &amqpx.Delivery{ID: "m-1", Queue: "orders.expire"}))
		if seen {
			t.Error("the handler ran for a message that 0.1.0 had processed, want it to be skipped")
		}
		if l, err := s.Recurring().Get(t.Context(), schedule.NoTx, "nightly"); err != nil || l.Cron != "0 0 29 2 *" || l.TimeZone != "Europe/Berlin" {
			t.Errorf(`the recurring task is %+v, %v, want no error, Cron = "0 0 29 2 *" and TimeZone = "Europe/Berlin"`, l, err)
		}
	})
}
