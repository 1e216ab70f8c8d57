package schedule_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// A nil option, such as a variable that was never set, is refused and does not panic.
func TestNilOptions(t *testing.T) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	fn := func(context.Context, *sql.Tx, *amqpx.Delivery) error { return nil }
	if schedule.Handler(db, fn, nil) != nil {
		t.Error("Handler with a nil option returned a handler, want nil")
	}
	if err := schedule.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	handle := schedule.Handler(db, fn, schedule.WithNow(nil), schedule.WithDatabaseNow(nil), schedule.OnSkip(nil), schedule.OnFailure(nil), schedule.WithTxOptions(nil))
	if err := handle(t.Context(), &amqpx.Delivery{ID: "a", Version: 1, DueAt: time.Now()}); err != nil {
		t.Errorf("a handler whose options have a nil argument: got %v, want no error", err)
	}
}
