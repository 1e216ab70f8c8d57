package tasks_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// endings returns statements that end a handler's transaction, including those for which MySQL commits implicitly.
func endings(db businessDB) []string {
	list := []string{"COMMIT", "ROLLBACK", "/* done */ commit;"}
	if db.dialect == idempotency.MySQL {
		list = append(list, "CREATE TABLE implicit_commit (id int)", "BEGIN", "CALL committing()")
	}
	return list
}

// prepareEndings creates what the statements need, and the table of effects.
func prepareEndings(t *testing.T, db businessDB) {
	t.Helper()
	db.mustExec(t, "CREATE TABLE did (id varchar(40) NOT NULL)")
	if db.dialect == idempotency.MySQL {
		db.mustExec(t, "CREATE PROCEDURE committing() COMMIT")
	}
}

// ending is a handler that ends its transaction for every fifth message, and has an effect for all others.
func ending(db businessDB, statement string) txFunc {
	return func(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error {
		if strings.HasSuffix(d.ID, "0") || strings.HasSuffix(d.ID, "5") {
			_, _ = tx.ExecContext(ctx, statement) // such a handler loses its own effect
			return nil
		}
		_, err := tx.ExecContext(ctx, db.bind("INSERT INTO did (id) VALUES (?)"), d.ID)
		return err
	}
}

// othersOnce fails the test unless every delivery whose handler did not end its transaction succeeded and had one
// effect.
func othersOnce(t *testing.T, db businessDB, ids []string, errs []error) {
	t.Helper()
	for i, id := range ids {
		if i%5 == 0 {
			continue
		}
		if errs[i] != nil {
			t.Errorf("message %s: got error %v, want nil", id, errs[i])
		}
		if n := db.queryInt(t, "SELECT COUNT(*) FROM did WHERE id = ?", id); n != 1 {
			t.Errorf("message %s had %d effects, want 1", id, n)
		}
	}
}

// A handler that ends the transaction of its group with a statement does not affect the tasks of other handlers.
func TestScheduleGroupSurvivesCommit(t *testing.T) {
	t.Parallel()
	const count = 40
	eachDriver(t, func(t *testing.T, db businessDB) {
		if err := db.migrateTasks(t.Context()); err != nil {
			t.Fatal(err)
		}
		prepareEndings(t, db)
		store, err := db.newStore(nil, schedule.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for n, statement := range endings(db) {
			t.Run(statement, func(t *testing.T) {
				due := time.Now().Add(-time.Second).Truncate(time.Millisecond)
				list, ids := make([]schedule.Task, count), make([]string, count)
				for i := range list {
					ids[i] = fmt.Sprintf("t%d-%d", n, i)
					list[i] = schedule.Task{ID: ids[i], Queue: "q", DeliverAt: due}
				}
				if err := store.ScheduleBatch(t.Context(), schedule.NoTx, list); err != nil {
					t.Fatal(err)
				}
				h := db.taskHandler(ending(db, statement), schedule.WithGroup(16))
				othersOnce(t, db, ids, together(count, func(i int) error {
					return h(t.Context(), &amqpx.Delivery{ID: ids[i], Queue: "q", Version: 1, Attempt: 1, MaxAttempts: 3, DueAt: due})
				}))
				for i, id := range ids {
					if task, err := store.Get(t.Context(), schedule.NoTx, id); i%5 != 0 && (err != nil || task.Status != schedule.StatusDone) {
						t.Errorf("task %s: got status %s (error %v), want done", id, task.Status, err)
					}
				}
			})
		}
	})
}

// A handler that ends the transaction of its group with a statement does not affect the messages of other handlers.
func TestIdempotencyGroupSurvivesCommit(t *testing.T) {
	t.Parallel()
	const count = 40
	eachDriver(t, func(t *testing.T, db businessDB) {
		if err := db.migrateRecords(t.Context()); err != nil {
			t.Fatal(err)
		}
		prepareEndings(t, db)
		for n, statement := range endings(db) {
			t.Run(statement, func(t *testing.T) {
				ids := make([]string, count)
				for i := range ids {
					ids[i] = fmt.Sprintf("m%d-%d", n, i)
				}
				h := db.idempotentHandler(ending(db, statement), idempotency.WithGroup(16))
				othersOnce(t, db, ids, together(count, func(i int) error {
					return h(t.Context(), &amqpx.Delivery{ID: ids[i], Queue: "q", Attempt: 1, MaxAttempts: 3})
				}))
			})
		}
	})
}
