package schedule

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// What was sent again is settled when its task is done, and also when its handler
// has scheduled it anew.
func TestUnsettled(t *testing.T) {
	s, db := openStore(t, nil, Config{})
	defer func() { _ = db.Close() }()
	recurs := Handler(db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		if d.ID == "done" {
			return nil
		}
		return s.Schedule(ctx, tx, Task{ID: d.ID, Queue: "q", DeliverAt: time.Now().Add(time.Hour)}, Replace())
	})
	due := time.Now()
	for _, id := range []string{"done", "recurs", "lost"} {
		check(t, s.Schedule(t.Context(), NoTx, Task{ID: id, Queue: "q", DeliverAt: due}))
	}
	_, err := db.ExecContext(t.Context(), "UPDATE rabbitdelay_tasks SET sends = 2, resend_at = due_at + 1")
	check(t, err)
	unsettled := func() (int64, error) {
		c, err := s.conn(t.Context(), NoTx)
		check(t, err)
		return c.CountUnsettled(t.Context(), []string{"done", "recurs", "lost"})
	}
	for _, want := range []int64{3, 2, 1} {
		if n, err := unsettled(); err != nil || n != want {
			t.Fatalf("%d are unsettled (%v), expected %d", n, err, want)
		}
		if want > 1 {
			check(t, recurs(t.Context(), &amqpx.Delivery{ID: []string{"", "", "recurs", "done"}[want], Version: 1, Queue: "q", DueAt: due.Add(time.Millisecond)}))
		}
	}
}
