package tasks_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// TestLastOneSchedulesTheNext tests the pattern in docs/tasks.md for a task after several others: each part counts down
// in its handler's transaction, and the last one schedules the next task. All parts finish at the same time, each
// message arrives twice, and some attempts fail after they have counted.
func TestLastOneSchedulesTheNext(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*sql.TxOptions{"default": nil, "repeatable read": {Isolation: sql.LevelRepeatableRead}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachDatabase(t, func(t *testing.T, db businessDB) {
				if opts != nil && db.dialect == schedule.SQLite {
					t.Skip("skipped: SQLite has only its default isolation level")
				}
				f := &fanIn{t: t, db: db, s: newStore(t, db, nil, schedule.Config{}), failed: map[string]bool{}}
				f.handle = schedule.Handler(db.DB, f.part, schedule.WithTxOptions(opts))
				f.run()
			})
		})
	}
}

type fanIn struct {
	t      *testing.T
	db     businessDB
	s      *schedule.Store
	handle amqpx.Handler

	mu     sync.Mutex
	failed map[string]bool
}

const parts = 12

func (f *fanIn) run() {
	t, db := f.t, f.db
	db.mustExec(t, "CREATE TABLE exports (id VARCHAR(64) NOT NULL PRIMARY KEY, parts_left INT NOT NULL)")
	tx, err := db.BeginTx(t.Context(), nil)
	suite.MustSucceed(t, err)
	_, err = tx.ExecContext(t.Context(), db.bind("INSERT INTO exports (id, parts_left) VALUES (?, ?)"), "export-7", parts)
	suite.MustSucceed(t, err)
	due := time.Now().Truncate(time.Millisecond)
	var list []schedule.Task
	for i := range parts {
		list = append(list, schedule.Task{ID: fmt.Sprintf("export-7-part-%d", i), Queue: "exports.part", DeliverAt: due})
	}
	suite.MustSucceed(t, f.s.ScheduleBatch(t.Context(), tx, list))
	suite.MustSucceed(t, tx.Commit())

	var wg sync.WaitGroup
	for _, task := range list {
		for range 2 {
			wg.Go(func() { f.deliver(task.ID, due) })
		}
	}
	wg.Wait()
	if n := db.queryInt(t, "SELECT parts_left FROM exports"); n != 0 {
		t.Errorf("%d parts are left, want 0", n)
	}
	if got := taskOf(t, f.s, "export-7-done"); got.Status != schedule.StatusPending || got.Version != 1 {
		t.Errorf("the next task: got %+v, want Status = schedule.StatusPending and Version = 1", got)
	}
	if n := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE status = 'done'"); n != parts {
		t.Errorf("%d parts are done, want %d", n, parts)
	}
}

// deliver passes a message to the handler until it is acknowledged.
func (f *fanIn) deliver(id string, due time.Time) {
	for attempt := 1; ; attempt++ {
		err := f.handle(f.t.Context(), &amqpx.Delivery{ID: id, Queue: "exports.part", Version: 1, DueAt: due, Attempt: attempt, MaxAttempts: 100})
		switch {
		case err == nil:
			return
		case !errors.Is(err, errAfterCount) && !undone(err):
			f.t.Errorf("task %s: unexpected error %v", id, err)
			return
		}
	}
}

var errAfterCount = errors.New("the process was killed after it had counted")

// part is the effect of one part: it counts down, and schedules the next task if it is the last
// part.
func (f *fanIn) part(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
	export, _, _ := strings.Cut(d.ID, "-part-")
	if _, err := tx.ExecContext(ctx, f.db.bind("UPDATE exports SET parts_left = parts_left - 1 WHERE id = ?"), export); err != nil {
		return err
	}
	var left int
	if err := tx.QueryRowContext(ctx, f.db.bind("SELECT parts_left FROM exports WHERE id = ?"), export).Scan(&left); err != nil {
		return err
	}
	if left == 0 {
		if err := f.s.Schedule(ctx, tx, schedule.Task{ID: export + "-done", Queue: "exports.done", DeliverAt: time.Now()}); err != nil {
			return err
		}
	}
	return f.failOnce(d.ID)
}

// failOnce returns an error for the first attempt of every part.
func (f *fanIn) failOnce(id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed[id] {
		return nil
	}
	f.failed[id] = true
	return errAfterCount
}
