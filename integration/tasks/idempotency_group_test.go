package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// Messages of many consumers share transactions. Each arrives twice at the same time,
// some fail the first time, and all effects are on the same few rows, which the groups
// lock in different orders.
func TestIdempotencyGroup(t *testing.T) {
	t.Parallel()
	const messages, consumers, size, rows = 100, 2, 16, 5
	eachDriver(t, func(t *testing.T, db businessDB) {
		ids := make([]string, rows)
		for i := range ids {
			ids[i] = fmt.Sprint(i)
		}
		o := newOrders(t, db, ids...)
		boom := errors.New("boom")
		var attempts atomic.Int64
		handle := func() amqpx.Handler {
			return db.idempotentHandler(func(ctx context.Context, tx schedule.Executor, d *amqpx.Delivery) error {
				if err := o.cancel(ctx, tx, d); err != nil {
					return err
				}
				if attempts.Add(1)%40 == 0 {
					return boom
				}
				return nil
			}, idempotency.WithGroup(size))
		}
		handlers := []amqpx.Handler{handle(), handle()}
		for i, err := range together(messages*consumers, func(i int) error {
			d := orderDelivery(fmt.Sprintf("m%d", i/consumers), ids[i/consumers%rows])
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
		for _, id := range ids {
			if n := o.effects(t, id); n != messages/rows {
				t.Errorf("order %s: %d effects, want %d", id, n, messages/rows)
			}
		}
	})
}
