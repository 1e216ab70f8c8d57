package tasks_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// leaseEnv makes a child process work under a lease. Its value is the driver, the database and the
// due time of the task in milliseconds, one per line.
const leaseEnv = "RABBITDELAY_TEST_LEASE"

// crashLease is the duration of a lease in the child and in the parent.
const crashLease = 5 * time.Second

// callProvider acts like a provider that supports idempotency keys: it has the effect once for each
// key. It is not part of the caller's transaction.
func callProvider(ctx context.Context, db *sql.DB, key string) error {
	_, err := db.ExecContext(ctx, "INSERT INTO provider (id) VALUES ('"+key+"') ON CONFLICT DO NOTHING")
	return err
}

func leasedDelivery(due time.Time, again bool) *amqpx.Delivery {
	return &amqpx.Delivery{ID: "charge", Queue: "orders.charge", Version: 1, DueAt: due, Attempt: 1, MaxAttempts: 3, Redelivered: again}
}

// workUntilKilled is the child: it calls the provider, reports the key that it used, and never
// completes.
func workUntilKilled(given string) error {
	var ms int64
	lines := strings.SplitN(given, "\n", 3)
	if _, err := fmt.Sscan(lines[2], &ms); err != nil {
		return err
	}
	db, err := sql.Open(lines[0], lines[1])
	if err != nil {
		return err
	}
	handle := schedule.LeaseHandler(db, func(ctx context.Context, _ *amqpx.Delivery, key string) (schedule.Func, error) {
		if err := callProvider(ctx, db, key); err != nil {
			return nil, err
		}
		fmt.Println("called", key)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}, schedule.WithLease(crashLease))
	return handle(context.Background(), leasedDelivery(time.UnixMilli(ms), false))
}

// A process is killed while it works under a lease. When the lease has expired, another process does
// the work, with the same key.
func TestLeaseOfAKilledProcess(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, driver string, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		db.mustExec(t, "CREATE TABLE provider (id VARCHAR(255) PRIMARY KEY)")
		db.mustExec(t, "CREATE TABLE effects (id VARCHAR(255) NOT NULL)")
		due := time.Now().Add(-time.Second).Truncate(time.Millisecond)
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "charge", Queue: "orders.charge", DeliverAt: due}))

		child := exec.CommandContext(t.Context(), os.Args[0])
		child.Env = append(os.Environ(), fmt.Sprintf("%s=%s\n%s\n%d", leaseEnv, driver, db.dsn, due.UnixMilli()))
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		suite.MustSucceed(t, err)
		suite.MustSucceed(t, child.Start())
		defer func() { _ = child.Process.Kill() }()
		said, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatalf("the child process printed %q: %v", said, err)
		}

		var keys []string
		handle := schedule.LeaseHandler(db.DB, func(ctx context.Context, _ *amqpx.Delivery, key string) (schedule.Func, error) {
			keys = append(keys, key)
			return func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO effects (id) VALUES ('"+d.ID+"')")
				return err
			}, callProvider(ctx, db.DB, key)
		}, schedule.WithLease(crashLease))
		if err := handle(t.Context(), leasedDelivery(due, true)); !amqpx.IsSnoozed(err) {
			t.Errorf("while another process holds the lease: got %v, want a snooze", err)
		}

		suite.MustSucceed(t, child.Process.Kill())
		if err := child.Wait(); err == nil {
			t.Error("the child process exited with code 0, want it to be killed")
		}
		suite.Eventually(t, "another process does the work", func() bool {
			err := handle(t.Context(), leasedDelivery(due, true))
			if err != nil && !amqpx.IsSnoozed(err) {
				t.Fatalf("got %v, want nil or a snooze", err)
			}
			return err == nil
		})
		if want := strings.TrimPrefix(strings.TrimSpace(said), "called "); len(keys) != 1 || keys[0] != want {
			t.Errorf("the handler was called with the keys %q, want one call with the child's key %q", keys, want)
		}
		suite.MustSucceed(t, handle(t.Context(), leasedDelivery(due, true))) // delivers a duplicate
		for _, table := range []string{"provider", "effects"} {
			if n := db.queryInt(t, "SELECT COUNT(*) FROM "+table); n != 1 {
				t.Errorf("%d rows in %s, want 1", n, table)
			}
		}
		if got := taskOf(t, s, "charge"); got.Status != schedule.StatusDone || got.Attempts != 1 || !strings.Contains(got.LastError, "without an outcome") {
			t.Errorf("got %+v, want a task that is done after one attempt without an outcome", got)
		}
	}
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); test(t, "sqlite", openSQLite(t)) })
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, "pgx", openServer(t, idempotency.PostgreSQL, database.PostgreSQL))
	})
}
