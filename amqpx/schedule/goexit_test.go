package schedule

import (
	"context"
	"database/sql"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// A handler that ends its goroutine, as t.FailNow does in a user's test, counts as failed. The row records the attempt,
// and the task fails with its last attempt.
func TestHandlerThatEndsItsGoroutine(t *testing.T) {
	s, db := openStore(t, nil, Config{})
	defer func() { _ = db.Close() }()
	due := time.Now().Add(-time.Second).Truncate(time.Millisecond)
	for name, h := range map[string]amqpx.Handler{
		"in a transaction": Handler(db, func(context.Context, *sql.Tx, *amqpx.Delivery) error { runtime.Goexit(); return nil }),
		"under a lease":    LeaseHandler(db, func(context.Context, *amqpx.Delivery, string) (Func, error) { runtime.Goexit(); return nil, nil }),
		"in a completion": LeaseHandler(db, func(context.Context, *amqpx.Delivery, string) (Func, error) {
			return func(context.Context, *sql.Tx, *amqpx.Delivery) error { runtime.Goexit(); return nil }, nil
		}),
		"in a group": Handler(db, func(context.Context, *sql.Tx, *amqpx.Delivery) error { runtime.Goexit(); return nil }, WithGroup(5)),
	} {
		t.Run(name, func(t *testing.T) {
			check(t, s.Schedule(t.Context(), NoTx, Task{ID: name, Queue: "q", DeliverAt: due}))
			for attempt, want := range []Status{StatusPending, StatusFailed} {
				returned, done := false, make(chan struct{})
				go func() {
					defer close(done)
					_ = h(t.Context(), &amqpx.Delivery{ID: name, Queue: "q", Version: 1, DueAt: due, Attempt: attempt + 1, MaxAttempts: 2})
					returned = true
				}()
				<-done
				got, err := s.Get(t.Context(), NoTx, name)
				check(t, err)
				if returned || got.Status != want || got.Attempts != attempt+1 || !strings.Contains(got.LastError, "the handler ended its goroutine") {
					t.Errorf("attempt %d: the handler returned: %t, the task is %s after %d attempts with the error %q; want false, %s, %d and an error that says that the handler ended its goroutine",
						attempt+1, returned, got.Status, got.Attempts, got.LastError, want, attempt+1)
				}
			}
		})
	}
}
