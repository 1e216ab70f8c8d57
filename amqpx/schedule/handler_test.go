package schedule_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// A Delivery that a user's test has created and passes to a handler either takes effect or causes an error. It is never
// silently skipped.
func TestHandlerWithADeliveryOfATest(t *testing.T) {
	in := time.Now().Add(time.Hour)
	for name, tc := range map[string]struct {
		due      time.Time // due time of the task
		delivery amqpx.Delivery
		effect   bool
		err      string
	}{
		"as the message":       {in, amqpx.Delivery{ID: "t", Version: 1, DueAt: in}, true, ""},
		"no due time, and due": {time.Now().Add(-time.Minute), amqpx.Delivery{ID: "t", Version: 1}, true, ""},
		"no due time, not due": {in, amqpx.Delivery{ID: "t", Version: 1}, false, "set Delivery.DueAt to the task's due time"},
		"no version":           {in, amqpx.Delivery{ID: "t", DueAt: in}, false, "expected a task's id and a version of 1 or more"},
		"no id":                {in, amqpx.Delivery{Version: 1, DueAt: in}, false, "expected a task's id"},
		"nothing but the body": {in, amqpx.Delivery{Body: []byte("x")}, false, "expected a task's id"},
	} {
		for _, group := range []int{1, 10} {
			t.Run(name, func(t *testing.T) {
				db, err := sql.Open("sqlite", ":memory:")
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = db.Close() }()
				db.SetMaxOpenConns(1)
				if err := schedule.Migrate(t.Context(), db); err != nil {
					t.Fatal(err)
				}
				tasks, err := schedule.New(db, nil, schedule.Config{})
				if err != nil {
					t.Fatal(err)
				}
				if err := tasks.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "t", Queue: "q", DeliverAt: tc.due}); err != nil {
					t.Fatal(err)
				}
				effect := false
				handle := schedule.Handler(db, func(context.Context, *sql.Tx, *amqpx.Delivery) error { effect = true; return nil }, schedule.WithGroup(group))
				err = handle(t.Context(), &tc.delivery)
				if effect != tc.effect || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
					t.Errorf(`the handler: got an effect: %t and the error %v, want an effect: %t and an error with %q ("" means no error)`, effect, err, tc.effect, tc.err)
				}
				if err != nil && (!errors.Is(err, schedule.ErrNotTask) || !amqpx.IsRejected(err)) {
					t.Errorf("the handler: got %v, want a rejection with ErrNotTask", err)
				}
				// A message that is not the task's own does not change the task.
				if task, err := tasks.Get(t.Context(), schedule.NoTx, "t"); err != nil || !tc.effect && (task.Status != schedule.StatusPending || task.Attempts != 0) {
					t.Errorf("Get: got %+v, error %v, want the task pending, with 0 attempts and no error", task, err)
				}
			})
		}
	}
}
