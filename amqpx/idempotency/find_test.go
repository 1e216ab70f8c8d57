package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
)

// Find returns in which scopes the effect of a message was committed, when, and in which scopes a condition declined
// it.
func TestFind(t *testing.T) {
	db := open(t, newConnector(t))
	began := time.Now().Truncate(time.Millisecond)
	d := func(queue, id string) *amqpx.Delivery { return &amqpx.Delivery{ID: id, Queue: queue, Attempt: 1} }
	no := idempotency.When(func(context.Context, *sql.Tx, *amqpx.Delivery) (bool, error) { return false, nil })
	for _, c := range []struct {
		d    *amqpx.Delivery
		opts []idempotency.HandlerOption
	}{{d("mails", "1"), nil}, {d("orders", "1"), []idempotency.HandlerOption{no}}, {d("orders", "2"), nil}} {
		if err := idempotency.Handler(db, effect, c.opts...)(t.Context(), c.d); err != nil {
			t.Fatalf("handling %+v: got %v, want nil", c.d, err)
		}
	}
	got, err := idempotency.Find(t.Context(), db, "1", "orders", "nothing", "mails")
	if err != nil || len(got) != 2 {
		t.Fatalf("Find: got %+v, %v, want 2 records and no error", got, err)
	}
	for i, want := range []idempotency.Record{{Scope: "orders", ID: "1", Guarded: true}, {Scope: "mails", ID: "1"}} {
		if at := got[i].ProcessedAt; at.Before(began) || at.After(time.Now()) {
			t.Errorf("scope %s: got ProcessedAt %v, want a time from %v to now", want.Scope, at, began)
		}
		if got[i].ProcessedAt = (time.Time{}); got[i] != want {
			t.Errorf("the record with the scope %s: got %+v, want %+v", want.Scope, got[i], want)
		}
	}
	if got, err := idempotency.Find(t.Context(), db, "1"); err != nil || len(got) != 0 {
		t.Errorf("Find without scopes: got %+v, %v, want none and no error", got, err)
	}
	if _, err := db.ExecContext(t.Context(), "DROP TABLE rabbitdelay_processed"); err != nil {
		t.Fatal(err)
	}
	if _, err := idempotency.Find(t.Context(), db, "1", "orders"); !errors.Is(err, idempotency.ErrNoTable) {
		t.Errorf("Find without the table: got %v, want ErrNoTable", err)
	}
}
