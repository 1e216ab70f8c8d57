package main

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// timeToPay is how long an order may stay unpaid. A real shop gives its customers half an hour.
const timeToPay = 20 * time.Second

const ordersTable = `CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, status TEXT NOT NULL)`

type orders struct {
	db    *sql.DB
	tasks *schedule.Store
}

// place writes an order and the task that expires it, in one transaction.
func (o *orders) place(ctx context.Context, id string) error {
	tx, err := o.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()

	if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id, status) VALUES (?, 'unpaid')", id); err != nil {
		return err
	}
	err = o.tasks.Schedule(ctx, tx, schedule.Task{
		ID:        "expire-" + id,
		Queue:     "orders.expire",
		DeliverAt: time.Now().Add(timeToPay),
		Body:      []byte(id),
	})
	if err != nil {
		return err
	}
	return tx.Commit()
}

// pay marks an order as paid and cancels the task that would expire it, in one transaction.
func (o *orders) pay(ctx context.Context, id string) error {
	tx, err := o.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()

	if _, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'paid' WHERE id = ?", id); err != nil {
		return err
	}
	if err := o.tasks.Cancel(ctx, tx, "expire-"+id); err != nil {
		return fmt.Errorf("order %s cannot be paid: %w", id, err) // it has expired
	}
	return tx.Commit()
}

// expire handles the task's message. What it does with tx commits together with the end of the task.
func expire(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
	id := string(d.Body)
	if _, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'cancelled' WHERE id = ? AND status = 'unpaid'", id); err != nil {
		return err
	}
	slog.Info("order expired", "id", id, "late", time.Since(d.DueAt).Round(time.Millisecond))
	return nil
}

// do answers a request: it changes the order if change is not nil, and writes its status.
func (o *orders) do(change func(ctx context.Context, id string) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, status := r.PathValue("id"), ""
		if change != nil {
			if err := change(r.Context(), id); err != nil {
				http.Error(w, err.Error(), http.StatusConflict)
				return
			}
		}
		err := o.db.QueryRowContext(r.Context(), "SELECT status FROM orders WHERE id = ?", id).Scan(&status)
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		fmt.Fprintf(w, "order %s: %s\n", id, status)
	}
}
