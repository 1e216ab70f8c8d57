package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// The tasks of many consumers are handled in shared transactions. Each message arrives twice at the same time, some
// handlers fail the first time, every tenth task is cancelled, and every seventh message has an old version.
func TestScheduleGroup(t *testing.T) {
	t.Parallel()
	const count, consumers, size, rows = 100, 2, 16, 5
	eachDriver(t, func(t *testing.T, db businessDB) {
		ids := make([]string, rows)
		for i := range ids {
			ids[i] = fmt.Sprint(i)
		}
		o := newOrders(t, db, ids...)
		if err := db.migrateTasks(t.Context()); err != nil {
			t.Fatal(err)
		}
		store, err := db.newStore(nil, schedule.Config{})
		if err != nil {
			t.Fatal(err)
		}
		due := time.Now().Add(-time.Second).Truncate(time.Millisecond)
		list := make([]schedule.Task, count)
		for i := range list {
			list[i] = schedule.Task{ID: fmt.Sprintf("t%d", i), Queue: "q", DeliverAt: due}
		}
		if err := store.ScheduleBatch(t.Context(), schedule.NoTx, list); err != nil {
			t.Fatal(err)
		}
		want := make([]int64, rows)
		for i := range count {
			switch {
			case i%10 == 0:
				err = store.Cancel(t.Context(), schedule.NoTx, list[i].ID)
			case i%7 == 0:
				err = store.Reschedule(t.Context(), schedule.NoTx, list[i].ID, due)
			default:
				want[i%rows]++
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		boom := errors.New("boom")
		var attempts atomic.Int64
		handle := func() amqpx.Handler {
			return db.taskHandler(func(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error {
				if err := o.cancel(ctx, tx, d); err != nil {
					return err
				}
				if attempts.Add(1)%40 == 0 {
					return boom
				}
				return nil
			}, schedule.WithGroup(size))
		}
		handlers := []amqpx.Handler{handle(), handle()}
		for i, err := range together(count*consumers, func(i int) error {
			n := i / consumers
			d := orderDelivery(list[n].ID, ids[n%rows])
			d.Version, d.Attempt, d.MaxAttempts, d.DueAt = 1, 1, 100, due
			for {
				err := handlers[i%consumers](t.Context(), d)
				if !errors.Is(err, boom) {
					return err
				}
			}
		}) {
			if err != nil {
				t.Fatalf("delivery %d: got %v, want no error", i, err)
			}
		}
		for i, id := range ids {
			if n := o.effects(t, id); n != want[i] {
				t.Errorf("order %s: %d effects, want %d", id, n, want[i])
			}
		}
	})
}
