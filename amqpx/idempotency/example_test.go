package idempotency_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	_ "modernc.org/sqlite" // the driver named sqlite

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
)

// The handler cancels an order only if the order is still unpaid and due, and only once, even if the message is
// delivered several times.
func ExampleHandler() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		panic(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1) // each connection to :memory: opens its own database, so use only one
	if err := idempotency.Migrate(ctx, db); err != nil {
		panic(err)
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT, due_ms INTEGER);
		INSERT INTO orders VALUES ('42', 'unpaid', 1000), ('43', 'paid', 1000)`); err != nil {
		panic(err)
	}

	handle := idempotency.Handler(db,
		func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
			fmt.Printf("order %s is cancelled\n", d.Body)
			_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'cancelled' WHERE id = ?", string(d.Body))
			return err
		},
		idempotency.OnlyIf("SELECT 1 FROM orders WHERE id = ? AND status = 'unpaid' AND due_ms <= ?",
			func(d *amqpx.Delivery) []any { return []any{string(d.Body), d.DueAt.UnixMilli()} }),
		idempotency.OnSkip(func(_ context.Context, d *amqpx.Delivery, reason idempotency.SkipReason) {
			fmt.Printf("order %s: %s\n", d.Body, reason)
		}),
	)

	// client.Consume(ctx, "orders.expire", handle) would call handle like this:
	for _, order := range []string{"42", "42", "43"} {
		d := &amqpx.Delivery{ID: "expire-" + order, Queue: "orders.expire", Body: []byte(order), DueAt: time.UnixMilli(1000)}
		if err := handle(ctx, d); err != nil {
			panic(err)
		}
	}
	// Output:
	// order 42 is cancelled
	// order 42: duplicate
	// order 43: guarded
}
