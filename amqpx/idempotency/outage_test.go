package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
)

// failingDB is a database that refuses connections while down is set.
type failingDB struct {
	*sql.DB

	down atomic.Bool
}

func (f *failingDB) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	if f.down.Load() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return f.DB.BeginTx(ctx, opts)
}

// A message does not use up attempts while the database is unavailable.
func TestHandlersWaitForTheDatabase(t *testing.T) {
	for _, group := range []int{1, 10} {
		t.Run(fmt.Sprint(group), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				own := open(t, newConnector(t))
				own.SetMaxOpenConns(1)
				db := &failingDB{DB: own}
				srv := amqptest.NewServer(amqptest.Options{})
				defer srv.Close()
				client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
				if err != nil {
					t.Fatal(err)
				}
				var attempts sync.Map
				handler := idempotency.Handler(db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
					attempts.Store(d.ID, d.Attempt)
					return effect(ctx, tx, d)
				}, idempotency.WithDialect(idempotency.SQLite), idempotency.WithGroup(group))
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- client.Consume(ctx, "q", handler) }()
				db.down.Store(true)
				const messages = 12
				for i := range messages {
					if err := client.Send(t.Context(), amqpx.Message{ID: fmt.Sprint(i), Queue: "q"}); err != nil {
						t.Fatal(err)
					}
				}
				<-time.After(3 * time.Minute)
				db.down.Store(false)
				<-time.After(5 * time.Second)
				stop()
				if err := errors.Join(<-done, client.Close(t.Context())); err != nil {
					t.Error(err)
				}
				if n := countEffects(t, own); n != messages {
					t.Errorf("after the outage: got %d effects, want %d", n, messages)
				}
				attempts.Range(func(id, attempt any) bool {
					if attempt != 1 {
						t.Errorf("message %v: got attempt %v, want 1", id, attempt)
					}
					return true
				})
				if q, _ := srv.Queue("q.dead"); len(q.Messages) > 0 {
					t.Errorf("after the outage: got %d dead letters, want 0", len(q.Messages))
				}
				_ = own.Close()
			})
		})
	}
}
