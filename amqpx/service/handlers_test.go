package service_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

type Order struct { // as in the examples of docs/handlers.md
	ID    string
	Phone string
}

var (
	errNoSuchNumber = errors.New("no such number")
	errTooMany      = errors.New("too many texts")
	errProviderDown = errors.New("provider is down")
)

// handlers contains what the handlers in docs/handlers.md need.
type handlers struct {
	db     *sql.DB
	client *amqpx.Client
	tasks  *schedule.Store
	text   func(ctx context.Context, phone string) error
	pay    func(ctx context.Context, order, key string) (receipt string, err error)
}

// place sends the messages and schedules the tasks that a new order needs.
func (h handlers) place(ctx context.Context, tx *sql.Tx, o Order) error {
	client, tasks := h.client, h.tasks
	body, _ := json.Marshal(o)
	for _, send := range []func() error{
		func() error {
			err := client.Send(ctx, amqpx.Message{Queue: "texts", Delay: time.Minute, Body: body})
			return err
		},
		func() error {
			err := client.Send(ctx, amqpx.Message{ID: "expire-" + o.ID, Queue: "orders.expire", Delay: 30 * time.Minute, Body: body})
			return err
		},
		func() error {
			err := tasks.Schedule(ctx, tx, schedule.Task{ID: "remind-" + o.ID, Queue: "orders.remind", DeliverAt: time.Now().Add(20 * time.Minute), Body: body})
			return err
		},
	} {
		if err := send(); err != nil {
			return err
		}
	}
	return tasks.Schedule(ctx, tx, schedule.Task{ID: "charge-" + o.ID, Queue: "orders.charge", DeliverAt: time.Now(), Body: body})
}

// paid cancels the reminder of an order.
func (h handlers) paid(ctx context.Context, tx *sql.Tx, o Order) error {
	tasks := h.tasks
	err := tasks.Cancel(ctx, tx, "remind-"+o.ID)
	return err
}

// consume runs the consumers.
func (h handlers) consume(ctx context.Context) error {
	db, client, text, pay := h.db, h.client, h.text, h.pay
	texts := amqpx.JSON(func(ctx context.Context, o Order, _ *amqpx.Delivery) error {
		return text(ctx, o.Phone)
	})
	expire := idempotency.Handler(db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		var o Order
		if err := d.JSON(&o); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'cancelled' WHERE id = $1 AND status = 'unpaid'", o.ID)
		return err
	})
	remind := schedule.Handler(db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		var o Order
		if err := d.JSON(&o); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE orders SET reminded = 1 WHERE id = $1", o.ID)
		return err
	})
	charge := schedule.LeaseHandler(db, func(ctx context.Context, d *amqpx.Delivery, key string) (schedule.Func, error) {
		var o Order
		if err := d.JSON(&o); err != nil {
			return nil, err
		}
		receipt, err := pay(ctx, o.ID, key)
		if err != nil {
			return nil, err // retried with the same key
		}
		return func(ctx context.Context, tx *sql.Tx, _ *amqpx.Delivery) error {
			_, err := tx.ExecContext(ctx, "UPDATE orders SET receipt = $1 WHERE id = $2", receipt, o.ID)
			return err
		}, nil
	})
	policy := amqpx.WithErrorPolicy(func(_ *amqpx.Delivery, err error) error {
		switch {
		case errors.Is(err, errNoSuchNumber):
			return amqpx.Reject(err) // dead-letter it immediately
		case errors.Is(err, errTooMany):
			return amqpx.RetryIn(5*time.Minute, err) // retry after a longer pause
		case errors.Is(err, errProviderDown):
			return amqpx.Snooze(time.Minute) // wait until the provider is up, without using up attempts
		}
		return nil // retry as usual
	})
	err := client.ConsumeAll(ctx,
		amqpx.Consumer{Queue: "texts", Handler: texts, Options: []amqpx.ConsumeOption{policy, amqpx.WithConcurrency(4)}},
		amqpx.Consumer{Queue: "orders.expire", Handler: expire},
		amqpx.Consumer{Queue: "orders.remind", Handler: remind},
		amqpx.Consumer{Queue: "orders.charge", Handler: charge})
	return err
}

// The handlers in docs/handlers.md do what that page says, both for an order that is paid and for one that is not.
func TestHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, client, tasks := shop(t)
		var mu sync.Mutex
		texted, charged := map[string]int{}, map[string]int{}
		h := handlers{
			db: db, client: client, tasks: tasks,
			text: func(_ context.Context, phone string) error {
				mu.Lock()
				defer mu.Unlock()
				if texted[phone]++; texted[phone] < 3 {
					return errProviderDown
				}
				return nil
			},
			pay: func(_ context.Context, order, key string) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				if charged[key]++; charged[key] == 1 {
					return "", errors.New("not yet")
				}
				return "receipt of " + order, nil
			},
		}
		ctx, stop := context.WithCancel(t.Context())
		consumed, relayed := make(chan error, 1), make(chan error, 1)
		go func() { consumed <- h.consume(ctx) }()
		go func() { relayed <- tasks.Run(ctx) }()
		inTx(t, db, func(tx *sql.Tx) error {
			return errors.Join(h.place(t.Context(), tx, Order{"41", "555-41"}), h.place(t.Context(), tx, Order{"42", "555-42"}))
		})
		<-time.After(10 * time.Minute)
		synctest.Wait()
		inTx(t, db, func(tx *sql.Tx) error {
			_, err := tx.Exec("UPDATE orders SET status = 'paid' WHERE id = '42'")
			return errors.Join(err, h.paid(t.Context(), tx, Order{ID: "42"}))
		})
		<-time.After(time.Hour)
		synctest.Wait()
		stop()
		if err := errors.Join(<-consumed, <-relayed); err != nil {
			t.Error(err)
		}
		for id, want := range map[string][3]string{"41": {"cancelled", "1", "receipt of 41"}, "42": {"paid", "0", "receipt of 42"}} {
			var got [3]string
			if err := db.QueryRow("SELECT status, reminded, receipt FROM orders WHERE id = ?", id).Scan(&got[0], &got[1], &got[2]); err != nil || got != want {
				t.Errorf("order %s: got status, reminded and receipt %q, %v, want %q", id, got, err, want)
			}
		}
		if texted["555-41"] != 3 || texted["555-42"] != 3 || len(charged) != 2 {
			t.Errorf("the handlers tried to text %v and to charge %v, want 3 tries for both phones and two keys charged", texted, charged)
		}
	})
}

// shop opens a database with two orders, a client of an in-memory broker, and a task store that uses both.
func shop(t *testing.T) (*sql.DB, *amqpx.Client, *schedule.Store) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	srv := amqptest.NewServer(amqptest.Options{})
	t.Cleanup(srv.Close)
	client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
	must(err)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	db, err := sql.Open("sqlite", ":memory:")
	must(err)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	must(errors.Join(schedule.Migrate(t.Context(), db), idempotency.Migrate(t.Context(), db)))
	_, err = db.Exec("CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT DEFAULT 'unpaid', reminded INTEGER DEFAULT 0, receipt TEXT DEFAULT '')")
	must(err)
	_, err = db.Exec("INSERT INTO orders (id) VALUES ('41'), ('42')")
	must(err)
	tasks, err := schedule.New(db, client, schedule.Config{VirtualTime: true})
	must(err)
	return db, client, tasks
}

func inTx(t *testing.T, db *sql.DB, do func(tx *sql.Tx) error) {
	t.Helper()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(do(tx), tx.Commit()); err != nil {
		t.Fatal(err)
	}
}

// The code in docs/handlers.md is copied from this file.
func TestHandlersAreShown(t *testing.T) {
	page, err := os.ReadFile("../../docs/handlers.md")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("handlers_test.go")
	if err != nil {
		t.Fatal(err)
	}
	indent := regexp.MustCompile(`(?m)^\t+`)
	code := indent.ReplaceAllString(string(own), "")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 8 {
		t.Fatalf("docs/handlers.md: got %d Go blocks, want at least 8", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(code, indent.ReplaceAllString(b[1], "")) {
			t.Errorf("docs/handlers.md has this block, want only code that is also in this file:\n%s", b[1])
		}
	}
}
