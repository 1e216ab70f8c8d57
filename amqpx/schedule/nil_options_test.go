package schedule_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// An option that is nil, as a variable that was never set is, is refused and does not panic.
func TestNilOptions(t *testing.T) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	store, err := schedule.New(db, nil, schedule.Config{})
	if err != nil {
		t.Fatal(err)
	}
	task := schedule.Task{ID: "a", Queue: "q", DeliverAt: time.Now()}
	if err := store.Schedule(t.Context(), schedule.NoTx, task, nil); !errors.Is(err, schedule.ErrTask) {
		t.Errorf("Schedule: %v", err)
	}
	fn := func(context.Context, *sql.Tx, *amqpx.Delivery) error { return nil }
	if schedule.Handler(db, fn, nil) != nil {
		t.Error("there is a handler with a nil option")
	}
}
