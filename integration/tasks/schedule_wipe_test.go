package tasks_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// The broker loses all its queues, exchanges and messages while 1,000 tasks wait in it. Each task is still handled
// once, and not before it is due.
func TestScheduleBrokerWiped(t *testing.T) {
	t.Parallel()
	const n = 1000
	b := wipeable(t)
	db := openSQLite(t)
	db.mustExec(t, "CREATE TABLE effects (id TEXT NOT NULL, at_ms INTEGER NOT NULL)")
	client := suite.OpenClient(t, amqpx.Config{URL: b.URL()})
	var resent atomic.Int64
	s := newStore(t, db, client, schedule.Config{
		Grace: 2 * time.Second, PollInterval: 100 * time.Millisecond,
		Hooks: schedule.Hooks{Relayed: func(n int, again bool) {
			if again {
				resent.Add(int64(n))
			}
		}},
	})
	const queue = "wiped"
	first := time.Now().Add(15 * time.Second)
	tasks := make([]schedule.Task, n)
	for i := range tasks {
		tasks[i] = orderTask(fmt.Sprint(i), first.Add(time.Duration(i)*30*time.Millisecond))
		tasks[i].Queue = queue
	}
	suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, tasks))
	runStore(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	wiped := make(chan struct{})
	handle := schedule.Handler(db.DB, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES (?, ?)", d.ID, time.Now().UnixMilli())
		return err
	})
	var begun atomic.Int64
	go func() {
		ended <- client.Consume(ctx, queue, func(ctx context.Context, d *amqpx.Delivery) error {
			if begun.Add(1) > n/5 { // the remaining tasks are handled after the wipe, even on a fast machine
				<-wiped
			}
			return handle(ctx, d)
		})
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	effects := func() int64 { return db.queryInt(t, "SELECT COUNT(*) FROM effects") }

	suite.Eventually(t, "all tasks are sent to the broker", func() bool {
		return db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE sends > 0") == n
	})
	suite.Eventually(t, "the first tasks are handled", func() bool { return effects() >= n/10 })
	var before int64
	for _, command := range []string{"stop_app", "reset", "start_app"} {
		if _, err := b.Ctl(t.Context(), command); err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		if command == "stop_app" {
			before = effects()
		}
	}
	close(wiped)
	const held = 100 // more than the consumer's prefetch
	if before > n-3*held {
		t.Fatalf("%d of %d tasks were done before the broker was wiped, want at most %d", before, n, n-3*held)
	}
	suite.Eventually(t, "every task is done", func() bool {
		return db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE status = 'done'") == n
	})
	if all, each := effects(), db.queryInt(t, "SELECT COUNT(DISTINCT id) FROM effects"); all != n || each != n {
		t.Errorf("%d effects from %d tasks, want %d, one per task", all, each, n)
	}
	if early := db.queryInt(t, "SELECT COUNT(*) FROM effects JOIN rabbitdelay_tasks USING (id) WHERE at_ms < due_at"); early > 0 {
		t.Errorf("%d effects occurred before their tasks were due, want 0", early)
	}
	if resent.Load() < n-before-held {
		t.Errorf("%d tasks were sent again, want at least %d of the %d that were not done: the broker was not wiped", resent.Load(), n-before-held, n-before)
	}
}

// wipeable starts a broker that only this test uses.
func wipeable(t *testing.T) *broker.Broker {
	t.Helper()
	if os.Getenv(servers.EnvSkip) == "1" {
		t.Skipf("skipped: %s is 1", servers.EnvSkip)
	}
	b, err := broker.Start(t.Context(), broker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := b.Ctl(t.Context(), "version"); errors.Is(err, broker.ErrNotOurs) {
		t.Skip("skipped: the broker at AMQP_URL is not this test's to wipe")
	}
	return b
}
