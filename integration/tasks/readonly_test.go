package tasks_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// On a read-only database, commands that only read work, and operations that write return an error that says why they
// cannot. A relay keeps trying, and Health reports the error.
func TestReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	writable := openServer(t, idempotency.PostgreSQL, database.PostgreSQL)
	readOnly := writable.dsn + "default_transaction_read_only=on"
	if r := suite.RunCLI(t.Context(), "migrate", "--db", readOnly); r.Code != 1 || !strings.Contains(r.Stderr, "the database is read-only") {
		t.Errorf(`migrating: got %s, want exit code 1 and Stderr with "the database is read-only"`, r)
	}
	for name, open := range openings {
		db := open(t, readOnly)
		if err := db.migrateTasks(t.Context()); !errors.Is(err, schedule.ErrReadOnly) {
			t.Errorf("%s: migrating: got %v, want schedule.ErrReadOnly", name, err)
		}
	}
	suite.MustSucceed(t, writable.migrateTasks(t.Context()))
	suite.MustSucceed(t, writable.migrateRecords(t.Context()))
	for _, command := range []string{"tasks list", "tasks count", "schedules list", "migrate"} {
		if r := suite.RunCLI(t.Context(), append(strings.Fields(command), "--db", readOnly)...); r.Code != 0 {
			t.Errorf("%s: got %s, want exit code 0", command, r)
		}
	}
	// A relay may be running although it cannot record its heartbeat.
	r := suite.RunCLI(t.Context(), "status", "--db", readOnly, "--url", "amqp://127.0.0.1:1/")
	if !strings.Contains(r.Stdout+r.Stderr, "cannot tell whether a relay is running") || strings.Contains(r.Stdout, "no relay runs") {
		t.Errorf(`status: got %s, want "cannot tell whether a relay is running"`, r)
	}
	for _, command := range []string{"tasks add --queue q --delay 1h", "tasks cancel a", "tasks pause q"} {
		r := suite.RunCLI(t.Context(), append(strings.Fields(command), "--db", readOnly)...)
		if r.Code != 1 {
			t.Errorf("%s: exit code %d, want 1: %s", command, r.Code, r)
		}
		if want := "the database is read-only"; !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: got %s, want Stderr containing %q", command, r, want)
		}
	}
	for name, open := range openings {
		t.Run(name, func(t *testing.T) {
			db := open(t, readOnly)
			cfg := schedule.Config{PollInterval: 10 * time.Millisecond}
			if name == "config" {
				l, err := config.Listener(config.URL(readOnly))
				suite.MustSucceed(t, err)
				cfg.Listener = l
			}
			s, err := db.newStore(&outbox{}, cfg)
			suite.MustSucceed(t, err)
			if err := s.Schedule(t.Context(), schedule.NoTx, orderTask("a", time.Now())); !errors.Is(err, schedule.ErrReadOnly) {
				t.Errorf("scheduling: got %v, want schedule.ErrReadOnly", err)
			}
			runStore(t, s)
			suite.Eventually(t, "Health reports that the database is read-only", func() bool { return errors.Is(s.Health(), schedule.ErrReadOnly) })
		})
	}
}
