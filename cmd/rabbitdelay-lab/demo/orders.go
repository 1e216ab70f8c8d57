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
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/lateness"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// orders are cancelled unless they are paid in time. Placing an order sends a
// message that is due when the order expires; whoever handles it looks whether the
// order was paid meanwhile, so that nobody has to take the message back.
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

// life is that of one order.
func (o *orders) life(ctx context.Context, number int) error {
	id, expiry := fmt.Sprintf("order-%d", number), o.expiry(number)
	due := time.Now().Add(expiry)
	if err := o.exec(ctx, o.db, "INSERT INTO orders (id, status, due_ms) VALUES (?, 'unpaid', ?)", id, due.UnixMilli()); err != nil {
		return err
	}
	copies := 1
	if rand.IntN(3) == 0 { // as a shop sends that crashed before it saw the confirm
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
		return nil // nobody pays
	}
	return o.exec(ctx, o.db, "UPDATE orders SET status = 'paid', paid_ms = ? WHERE id = ? AND status = 'unpaid'", time.Now().UnixMilli(), id)
}

// declaredDelays are those of the ttl strategy, which has no others.
const declaredDelays = "4s,5s,6s,7s,8s"

// expiry is 4 to 8 seconds; auto takes the ttl strategy for the declared ones.
func (o *orders) expiry(number int) time.Duration {
	d := o.cfg.Delay
	if d.Strategy == config.StrategyTTL || d.Strategy == config.StrategyAuto && number%2 == 0 {
		return d.TTL.Delays[rand.IntN(len(d.TTL.Delays))]
	}
	return 4*time.Second + rand.N(4*time.Second)
}

// handler cancels each order once, however often its message comes: the effect and
// the record of the message's id commit in one transaction.
func (o *orders) handler() amqpx.Handler {
	unpaid := o.sql("SELECT 1 FROM orders WHERE id = ? AND status = 'unpaid' AND due_ms <= ?")
	if o.dialect != idempotency.SQLite { // which has one writer
		unpaid += " FOR UPDATE"
	}
	cancel := idempotency.Handler(o.db,
		func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
			if err := o.exec(ctx, tx, "UPDATE orders SET status = 'cancelled' WHERE id = ?", d.ID); err != nil {
				return err
			}
			return o.exec(ctx, tx, "INSERT INTO cancellations (order_id, at_ms) VALUES (?, ?)", d.ID, time.Now().UnixMilli())
		},
		idempotency.OnlyIf(unpaid, func(d *amqpx.Delivery) []any { return []any{d.ID, d.DueAt.UnixMilli()} }))
	return func(ctx context.Context, d *amqpx.Delivery) error {
		defer o.handled.Add(1)
		o.late.Add(time.Now(), d.DueAt)
		return cancel(ctx, d)
	}
}
