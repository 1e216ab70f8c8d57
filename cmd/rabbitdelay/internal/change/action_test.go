package change

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// An action returns the task as the action left it, even if a relay and a handler finish the task immediately afterwards.
func TestTaskReturnsWhatTheActionWrote(t *testing.T) {
	ctx := t.Context()
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "tasks.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := schedule.Migrate(ctx, db); err != nil {
		t.Fatal(err)
	}
	s, err := taskview.New(db, schedule.Config{})
	if err != nil {
		t.Fatal(err)
	}
	o := Operator{Name: "anna", Store: s, Record: func(ctx context.Context, _ Entry, do func() error) error {
		if err := do(); err != nil {
			return err
		}
		_, err := db.ExecContext(ctx, "UPDATE rabbitdelay_tasks SET status = 'done', finished_at = 1")
		return err
	}}
	later := time.Now().Add(time.Hour)
	for _, action := range []Action{{Kind: RunNow}, {Kind: Reschedule, At: later}, {Kind: RescheduleBy, By: time.Minute}} {
		id := string(action.Kind)
		if err := s.Schedule(ctx, schedule.NoTx, schedule.Task{ID: id, Queue: "q", DeliverAt: later}); err != nil {
			t.Fatal(err)
		}
		row, err := o.Task(ctx, id, action)
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		if row.Status != schedule.StatusPending || row.Version != 2 {
			t.Errorf("%s: got a task that is %s with version %d, want pending with version 2", id, row.Status, row.Version)
		}
	}
}
