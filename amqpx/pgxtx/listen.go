package pgxtx

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/faketime"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// Listener wakes a relay by LISTEN and NOTIFY on a connection that it opens by
// connect and closes itself. The connection must reach the server: a pooler that
// hands out connections by transaction delivers no notifications. New has one
// already; this one is for a store on database/sql.
func Listener(connect func(ctx context.Context) (*pgx.Conn, error)) schedule.Listener {
	return listener(connect)
}

type listener func(ctx context.Context) (*pgx.Conn, error)

// Times of a listening connection.
const (
	listenConnect = 15 * time.Second // connecting, and LISTEN
	listenIdle    = 30 * time.Second // silence after which the connection is tried
	listenPing    = 10 * time.Second // the longest that the trial takes
	listenClose   = 2 * time.Second
)

// Listen implements schedule.Listener. In a testing/synctest bubble, whose time would
// stand still while a connection waits, it listens to nothing: there are no other
// processes, and the stores of the bubble wake the relay by themselves.
func (l listener) Listen(ctx context.Context, wake func()) error {
	if faketime.Inside() {
		wake()
		<-ctx.Done()
		return ctx.Err()
	}
	conn, err := l.connect(ctx)
	if err != nil {
		return fmt.Errorf("listening for tasks: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listenClose)
		defer cancel()
		_ = conn.Close(ctx) // nothing is under way
	}()
	wake() // for what was written before
	for {
		if err := l.next(ctx, conn); err != nil {
			return fmt.Errorf("listening for tasks: %w", err)
		}
		wake()
	}
}

func (l listener) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, listenConnect)
	defer cancel()
	conn, err := l(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+schedule.NotifyChannel); err != nil {
		_ = conn.Close(ctx) // the error says more
		return nil, err
	}
	return conn, nil
}

// next waits for a notification. A connection whose other end is gone would stay
// silent for ever, so silence is answered with a trial.
func (l listener) next(ctx context.Context, conn *pgx.Conn) error {
	for {
		waiting, cancel := context.WithTimeout(ctx, listenIdle)
		_, err := conn.WaitForNotification(waiting)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		trying, cancel := context.WithTimeout(ctx, listenPing)
		err = conn.Ping(trying)
		cancel()
		if err != nil {
			return err
		}
	}
}
