package tasks_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// PostgreSQL plans the relay's statements once per connection. If the table was empty then, the plans read the whole
// table, and a claim becomes slower with every task, until somebody collects statistics. The relay does.
func TestStatisticsOfATableThatGrowsFast(t *testing.T) {
	t.Parallel()
	db := openServer(t, idempotency.PostgreSQL, database.PostgreSQL)
	suite.MustSucceed(t, schedule.Migrate(t.Context(), db.DB))
	store, err := schedule.New(db.DB, &outbox{}, schedule.Config{})
	suite.MustSucceed(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	defer func() {
		cancel()
		suite.MustSucceed(t, <-ended)
	}()

	// Schedule small batches until the connections keep plans.
	for range 20 {
		suite.MustSucceed(t, store.ScheduleBatch(t.Context(), schedule.NoTx, newTasks(5)))
	}
	suite.Eventually(t, "the first tasks are sent", func() bool {
		return db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE sends > 0") == 100
	})
	for range 20 {
		suite.MustSucceed(t, store.ScheduleBatch(t.Context(), schedule.NoTx, newTasks(500)))
	}
	suite.Eventually(t, "statistics are collected", func() bool {
		return db.queryInt(t, "SELECT COUNT(*) FROM pg_stat_user_tables WHERE relname = 'rabbitdelay_tasks' AND analyze_count > 0") == 1
	})
	suite.Eventually(t, "all tasks are sent", func() bool {
		return db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE sends > 0") == 10_100
	})
}

func newTasks(n int) []schedule.Task {
	list := make([]schedule.Task, n)
	for i := range list {
		list[i] = schedule.Task{ID: rand.Text(), Queue: "q", DeliverAt: time.Now(), Body: make([]byte, 256)}
	}
	return list
}

// A user who does not own the tables cannot collect statistics about them, and PostgreSQL would write a warning to its
// log for each attempt.
func TestStatisticsAreLeftToTheOwner(t *testing.T) {
	t.Parallel()
	owner := openServer(t, idempotency.PostgreSQL, database.PostgreSQL)
	suite.MustSucceed(t, schedule.Migrate(t.Context(), owner.DB))
	owner.mustExec(t, "INSERT INTO rabbitdelay_tasks (id, queue, due_at, body) SELECT 'id' || g, 'q', 100000000000, decode(repeat('78', 256), 'hex') FROM generate_series(1, 5000) AS g")
	user := newRightsUser(t, owner)
	user.grant(t, "SELECT, INSERT, UPDATE", "rabbitdelay_tasks")
	outgrown := func(db *sql.DB) []string {
		t.Helper()
		c, err := rows.Open(sqldb.Of(db), "", nil).Conn(t.Context())
		suite.MustSucceed(t, err)
		list, err := c.Outgrown(t.Context())
		suite.MustSucceed(t, err)
		return list
	}
	if got := outgrown(user.db.DB); len(got) > 0 {
		t.Errorf("Outgrown for a user who owns no table: got %v, want none", got)
	}
	if got := outgrown(owner.DB); !slices.Equal(got, []string{"rabbitdelay_tasks"}) {
		t.Fatalf("Outgrown for the owner: got %v, want only rabbitdelay_tasks", got)
	}
	c, err := rows.Open(sqldb.Of(owner.DB), "", nil).Conn(t.Context())
	suite.MustSucceed(t, err)
	suite.MustSucceed(t, c.Analyze(t.Context(), "rabbitdelay_tasks"))
	if got := outgrown(owner.DB); len(got) > 0 {
		t.Errorf("Outgrown after Analyze: got %v, want none", got)
	}
}
