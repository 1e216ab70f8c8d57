package schedule

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// A handler that commits the transaction it shares makes no other task done without its effect.
func TestGroupSurvivesAHandlerThatCommits(t *testing.T) {
	s, db := openStore(t, nil, Config{})
	defer func() { _ = db.Close() }()
	_, err := db.ExecContext(t.Context(), "CREATE TABLE did (id TEXT PRIMARY KEY)")
	check(t, err)
	const tasks = 40
	due := time.Now().Add(-time.Second).Truncate(time.Millisecond)
	var list []Task
	for i := range tasks {
		list = append(list, Task{ID: fmt.Sprint("t", i), Queue: "q", DeliverAt: due})
	}
	check(t, s.ScheduleBatch(t.Context(), NoTx, list))
	var commits atomic.Int64
	h := Handler(db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		if commits.Add(1)%3 == 0 {
			_ = tx.Commit()
			return nil // its own effect is missing, by its own fault
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO did (id) VALUES (?)", d.ID)
		return err
	}, WithGroup(20))
	var committed sync.Map // tasks whose handler has ended the transaction in its last run
	var wg sync.WaitGroup
	for _, x := range list {
		wg.Go(func() {
			if err := h(t.Context(), &amqpx.Delivery{ID: x.ID, Queue: "q", Version: 1, DueAt: due, Attempt: 1, MaxAttempts: 3}); err != nil {
				committed.Store(x.ID, err)
			}
		})
	}
	wg.Wait()
	for _, x := range list {
		_, faulty := committed.Load(x.ID)
		var n int
		check(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM did WHERE id = ?", x.ID).Scan(&n))
		got, err := s.Get(t.Context(), NoTx, x.ID)
		check(t, err)
		if !faulty && (got.Status != StatusDone || n != 1) {
			t.Errorf("task %s is %s with %d effects", x.ID, got.Status, n)
		}
	}
}
