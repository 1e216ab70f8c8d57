package service

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// Effect is the function of a handler. T is *sql.Tx, or pgx.Tx where Options.Database is a pool of pgx.
type Effect[T any] func(ctx context.Context, tx T, d *amqpx.Delivery) error

// TaskHandler returns schedule.Handler, or pgxtx.TaskHandler, on the service's database, whichever that is. It
// returns nil for a nil fn or a service without a database, which Consume refuses, and panics if T is not the
// transaction of the service's database.
func TaskHandler[T any](s *Service, fn Effect[T], opts ...schedule.HandlerOption) amqpx.Handler {
	if fn == nil || s.database == nil {
		return nil
	}
	fn.check(s)
	return schedule.Handler(s.database, fn.handed, opts...)
}

// IdempotentHandler returns idempotency.Handler, or pgxtx.IdempotentHandler, on the service's database. Otherwise
// it does what TaskHandler does.
func IdempotentHandler[T any](s *Service, fn Effect[T], opts ...idempotency.HandlerOption) amqpx.Handler {
	if fn == nil || s.database == nil {
		return nil
	}
	fn.check(s)
	return idempotency.Handler(s.database, fn.handed, opts...)
}

// check panics if the service's database has other transactions than T.
func (fn Effect[T]) check(s *Service) {
	foreign := sqldb.IsForeign(s.database)
	if _, standard := any((*T)(nil)).(**sql.Tx); standard == foreign {
		want := "*sql.Tx"
		if foreign {
			want = "pgx.Tx"
		}
		panic(fmt.Sprintf("service: the function of a handler takes a %v; expected a %s, the transaction of the service's database", reflect.TypeFor[T](), want))
	}
}

// handed is fn as the function of a handler that gets the *sql.Tx itself, and the transaction of another package
// by ctx.
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
