package schedule

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// If a handler commits or rolls back the transaction that it shares with other tasks, by whatever means, each of the
// other tasks still takes effect once and is done.
func TestGroupSurvivesAHandlerThatEndsItsTransaction(t *testing.T) {
	run := func(statement string) func(context.Context, *sql.Tx) {
		return func(ctx context.Context, tx *sql.Tx) { _, _ = tx.ExecContext(ctx, statement) }
	}
	for name, end := range map[string]func(context.Context, *sql.Tx){
		"Commit":           func(_ context.Context, tx *sql.Tx) { _ = tx.Commit() },
		"COMMIT":           run("COMMIT"),
		"ROLLBACK":         run("/* undo */ rollback;"),
		"second statement": run("INSERT INTO other (id) VALUES (2); COMMIT"),
		"conflict clause":  run("INSERT OR ROLLBACK INTO other (id) VALUES (1)"),
		"prepared":         func(ctx context.Context, tx *sql.Tx) { prepared(ctx, tx, "END") },
		"prepared conflict": func(ctx context.Context, tx *sql.Tx) {
			prepared(ctx, tx, "INSERT OR ROLLBACK INTO other (id) VALUES (1)")
		},
	} {
		t.Run(name, func(t *testing.T) { groupSurvives(t, end) })
	}
}

func prepared(ctx context.Context, tx *sql.Tx, statement string) {
	s, err := tx.PrepareContext(ctx, statement)
	if err != nil {
		return
	}
	defer func() { _ = s.Close() }()
	_, _ = s.ExecContext(ctx)
}

func groupSurvives(t *testing.T, end func(context.Context, *sql.Tx)) {
	t.Helper()
	s, db := openStore(t, nil, Config{})
	defer func() { _ = db.Close() }()
	for _, statement := range []string{"CREATE TABLE did (id TEXT)", "CREATE TABLE other (id INTEGER PRIMARY KEY)", "INSERT INTO other (id) VALUES (1)"} {
		_, err := db.ExecContext(t.Context(), statement)
		check(t, err)
	}
	const tasks = 40
	due := time.Now().Add(-time.Second).Truncate(time.Millisecond)
	var list []Task
	for i := range tasks {
		list = append(list, Task{ID: fmt.Sprint("t", i), Queue: "q", DeliverAt: due, Body: fmt.Append(nil, i%3)})
	}
	check(t, s.ScheduleBatch(t.Context(), NoTx, list))
	h := Handler(db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		if string(d.Body) == "2" {
			end(ctx, tx)
			return nil // the handler ignores its statement's error, so its own effect may be lost
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO did (id) VALUES (?)", d.ID)
		return err
	}, WithGroup(20))
	var wg sync.WaitGroup
	for _, x := range list {
		wg.Go(func() {
			err := h(t.Context(), &amqpx.Delivery{ID: x.ID, Queue: "q", Body: x.Body, Version: 1, DueAt: due, Attempt: 1, MaxAttempts: 3})
			if err != nil && string(x.Body) != "2" {
				t.Errorf("task %s: got %v, want no error, because only tasks with the body 2 end the transaction", x.ID, err)
			}
		})
	}
	wg.Wait()
	for _, x := range list {
		if string(x.Body) == "2" {
			continue
		}
		var n int
		check(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM did WHERE id = ?", x.ID).Scan(&n))
		got, err := s.Get(t.Context(), NoTx, x.ID)
		check(t, err)
		if got.Status != StatusDone || n != 1 {
			t.Errorf("task %s is %s with %d effects, want %s and 1", x.ID, got.Status, n, StatusDone)
		}
	}
}
