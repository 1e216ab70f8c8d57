package amqptest_test

import (
	"context"
	"database/sql"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	_ "modernc.org/sqlite" // the driver named sqlite

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
)

// The code under test: an order is cancelled if it has not been paid.
func cancelUnpaid(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
	_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'cancelled' WHERE id = ? AND status = 'unpaid'", string(d.Body))
	return err
}

func TestUnpaidOrderExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in the bubble, time advances whenever all goroutines wait
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close(context.Background())

		db := openOrders(t, "42", "43") // an SQLite database with two unpaid orders
		defer db.Close()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go client.Consume(ctx, "orders.expire", idempotency.Handler(db, cancelUnpaid))

		for _, order := range []string{"42", "43"} {
			m := amqpx.Message{ID: "expire-" + order, Queue: "orders.expire", Delay: 30 * time.Minute, Body: []byte(order)}
			if err := client.Send(ctx, m); err != nil {
				t.Fatal(err)
			}
		}
		pay(t, db, "43")

		time.Sleep(30*time.Minute - time.Millisecond)
		synctest.Wait()
		if got := status(t, db, "42"); got != "unpaid" {
			t.Errorf(`1 ms before its time is up, order 42 is %s, want "unpaid"`, got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := status(t, db, "42"); got != "cancelled" {
			t.Errorf(`after 30 minutes order 42 is %s, want "cancelled"`, got)
		}
		if got := status(t, db, "43"); got != "paid" {
			t.Errorf(`order 43, which was paid, is %s, want "paid"`, got)
		}
	})
}

func openOrders(t *testing.T, ids ...string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1) // each connection to :memory: opens its own database, so use only one
	if err := idempotency.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT)"); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if _, err := db.Exec("INSERT INTO orders VALUES (?, 'unpaid')", id); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

func pay(t *testing.T, db *sql.DB, id string) {
	t.Helper()
	if _, err := db.Exec("UPDATE orders SET status = 'paid' WHERE id = ?", id); err != nil {
		t.Fatal(err)
	}
}

func status(t *testing.T, db *sql.DB, id string) (s string) {
	t.Helper()
	if err := db.QueryRow("SELECT status FROM orders WHERE id = ?", id).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// The test in docs/testing.md is a copy of the one in this file.
func TestPageShowsThisTest(t *testing.T) {
	readme, err := os.ReadFile("../../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(readme), "## Test a delayed message\n")
	_, code, opened := strings.Cut(section, "```go\n")
	code, _, closed := strings.Cut(code, "```\n")
	if !found || !opened || !closed {
		t.Fatal(`docs/testing.md has no code block in the section "A delayed message", want one`)
	}
	own, err := os.ReadFile("example_orders_test.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(own), code) {
		t.Errorf("docs/testing.md contains code that is not in this file, want a copy:\n%s", code)
	}
}
