// Package shop contains what the programs that expire orders share: the table of orders, and two customers, one of whom
// pays.
package shop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// ordersTable has a column for the ID of a job, because River needs it to cancel the job.
const ordersTable = `CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, status TEXT NOT NULL DEFAULT 'unpaid', job BIGINT)`

// Orders is implemented by each program.
type Orders interface {
	// Place writes an order that expires after TimeToPay unless it is paid.
	Place(ctx context.Context, id string) error
	// Pay marks an order as paid, so that it does not expire.
	Pay(ctx context.Context, id string) error
}

// TimeToPay is half an hour. A test makes it shorter.
func TimeToPay() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("TIME_TO_PAY")); err == nil {
		return d
	}
	return 30 * time.Minute
}

// Open opens the database at DATABASE_URL, with the table of orders.
func Open(ctx context.Context) (*pgxpool.Pool, error) {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return nil, err
	}
	_, err = pool.Exec(ctx, ordersTable)
	return pool, err
}

// errVisited ends the background work.
var errVisited = errors.New("the customers have left")

// Run places two orders, pays one of them and waits until the other is cancelled. It runs the background work until
// then.
func Run(ctx context.Context, pool *pgxpool.Pool, orders Orders, background ...func(ctx context.Context) error) error {
	all, ctx := errgroup.WithContext(ctx)
	for _, work := range background {
		all.Go(func() error { return work(ctx) })
	}
	all.Go(func() error {
		err := errors.Join(orders.Place(ctx, "one"), orders.Place(ctx, "two"), orders.Pay(ctx, "one"))
		for status := ""; err == nil && status != "cancelled"; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(50 * time.Millisecond):
				err = pool.QueryRow(ctx, "SELECT status FROM orders WHERE id = 'two'").Scan(&status)
			}
		}
		if err != nil {
			return err
		}
		return errVisited
	})
	if err := all.Wait(); !errors.Is(err, errVisited) {
		return err
	}
	var one string
	if err := pool.QueryRow(context.WithoutCancel(ctx), "SELECT status FROM orders WHERE id = 'one'").Scan(&one); err != nil {
		return err
	}
	fmt.Printf("order one is %s, order two is cancelled\n", one)
	return nil
}
