package service

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Effect is the function that a handler runs in its transaction. T is *sql.Tx, or pgx.Tx if Options.Database is a pool
// of pgx.
type Effect[T any] func(ctx context.Context, tx T, d *amqpx.Delivery) error

// TaskHandler returns schedule.Handler or pgxtx.TaskHandler, depending on the service's database. It returns nil, which
// Consume refuses, for a nil fn or a service without a database. It panics if T is not the type of the transactions of
// the service's database.
func TaskHandler[T any](s *Service, fn Effect[T], opts ...schedule.HandlerOption) amqpx.Handler {
	if fn == nil || s.database == nil {
		return nil
	}
	fn.check(s)
	if s.virtual {
		opts = append([]schedule.HandlerOption{schedule.WithDatabaseNow(time.Now)}, opts...)
	}
	return schedule.Handler(s.database, fn.handed, opts...)
}

// IdempotentHandler returns idempotency.Handler or pgxtx.IdempotentHandler, depending on the service's database. A nil
// fn, a missing database and a wrong T have the same effect as with TaskHandler.
func IdempotentHandler[T any](s *Service, fn Effect[T], opts ...idempotency.HandlerOption) amqpx.Handler {
	if fn == nil || s.database == nil {
		return nil
	}
	fn.check(s)
	return idempotency.Handler(s.database, fn.handed, opts...)
}

// check panics if T is not the type of the transactions of the service's database.
func (fn Effect[T]) check(s *Service) {
	foreign := sqldb.IsForeign(s.database)
	if _, standard := any((*T)(nil)).(**sql.Tx); standard == foreign {
		want := "*sql.Tx"
		if foreign {
			want = "pgx.Tx"
		}
		panic(fmt.Sprintf("service: the handler's function takes a %v; expected a %s, the transaction type of the service's database", reflect.TypeFor[T](), want))
	}
}

// handed calls fn with the handler's transaction: tx, or the one in the context if the database is used through a
// package other than database/sql.
func (fn Effect[T]) handed(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
	if own, ok := any(tx).(T); ok && tx != nil {
		return fn(ctx, own, d)
	}
	own, err := sqldb.Handed[T](ctx)
	if err != nil {
		return err
	}
	return fn(ctx, own, d)
}
