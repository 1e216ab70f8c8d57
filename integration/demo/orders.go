package demo

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/lateness"
)

// orders are cancelled unless they are paid in time. Placing an order sends a message that is due when the order
// expires. Its handler checks whether the order has been paid in the meantime, so the message never has to be
// cancelled.
type orders struct {
	*stage
	queue      string
	duplicates atomic.Int64
	late       lateness.Record
}

var orderTables = []string{
	"orders (id VARCHAR(64) PRIMARY KEY, status VARCHAR(16) NOT NULL, due_ms BIGINT NOT NULL, paid_ms BIGINT)",
	"cancellations (order_id VARCHAR(64) NOT NULL, at_ms BIGINT NOT NULL)",
}

func (o *orders) life(ctx context.Context, number int) error {
	id, expiry := fmt.Sprintf("order-%d", number), 4*time.Second+rand.N(4*time.Second)
	if o.strategy != config.StrategyBucket {
		expiry = expiry.Truncate(time.Second) // the ttl strategy requires one of wholeSeconds
	}
	due := time.Now().Add(expiry)
	if err := o.exec(ctx, o.db, "INSERT INTO orders (id, status, due_ms) VALUES (?, 'unpaid', ?)", id, due.UnixMilli()); err != nil {
		return err
	}
	copies := 1
	if rand.IntN(3) == 0 { // as if a shop crashed before it received the confirm
		copies = 2
		o.duplicates.Add(1)
	}
	for range copies {
		if err := o.clients[0].Send(ctx, amqpx.Message{ID: id, Queue: o.queue, Delay: expiry, Body: []byte(id)}); err != nil {
			return err
		}
		o.sent.Add(1)
	}
	if rand.IntN(2) == 0 || !pauseUntil(ctx, due.Add(-rand.N(expiry))) {
		return nil // the order is not paid
	}
	return o.exec(ctx, o.db, "UPDATE orders SET status = 'paid', paid_ms = ? WHERE id = ? AND status = 'unpaid'", time.Now().UnixMilli(), id)
}

// handler cancels each order once, even if its message arrives several times, because the effect and the record of
// the message's id commit in one transaction.
func (o *orders) handler() amqpx.Handler {
	cancel := idempotency.Handler(o.db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		if err := o.exec(ctx, tx, "UPDATE orders SET status = 'cancelled' WHERE id = ? AND status = 'unpaid'", d.ID); err != nil {
			return err
		}
		return o.exec(ctx, tx, `INSERT INTO cancellations (order_id, at_ms)
			SELECT id, ? FROM orders WHERE id = ? AND status = 'cancelled'`, time.Now().UnixMilli(), d.ID)
	})
	return func(ctx context.Context, d *amqpx.Delivery) error {
		defer o.handled.Add(1)
		o.late.Add(time.Now(), d.DueAt)
		return cancel(ctx, d)
	}
}
