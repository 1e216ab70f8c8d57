package service_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/service"
)

type order struct {
	ID    string `json:"id"`
	Phone string `json:"phone"`
}

// The main function of a shop that is configured by a file. Messages expire orders, tasks remind customers, and
// other messages send texts.
func Example() {
	expire := func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		var o order
		if err := d.JSON(&o); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'cancelled' WHERE id = ? AND status = 'unpaid'", o.ID)
		return err
	}
	remind := func(context.Context, *sql.Tx, *amqpx.Delivery) error { return nil }
	text := func(_ context.Context, o order, _ *amqpx.Delivery) error {
		slog.Info("text", "to", o.Phone)
		return nil
	}

	run := func(ctx context.Context) error {
		s, err := service.Open(ctx, service.Options{File: "shop.yaml"})
		if err != nil {
			return err
		}
		return s.Run(ctx,
			s.Consume("orders.expire", idempotency.Handler(s.DB, expire)),
			s.Consume("orders.remind", schedule.Handler(s.DB, remind)),
			s.Consume("texts", amqpx.JSON(text)),
			service.ServeHTTP(":8080", service.Probe(s.Health)))
	}
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stdout, err) // a real program also calls os.Exit(1)
	}
	// Output: shop.yaml: cannot be read: no such file or directory
}
