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

// Listener returns a listener that wakes a relay by LISTEN and NOTIFY. It opens its connection with connect and closes
// it. The connection must be to the server itself, because a pooler that assigns connections by transaction delivers no
// notifications. Stores of New have a listener already; use this function for a store on database/sql.
func Listener(connect func(ctx context.Context) (*pgx.Conn, error)) schedule.Listener {
	return listener(connect)
}

type listener func(ctx context.Context) (*pgx.Conn, error)

// Timeouts of a listening connection.
const (
	listenConnect = 15 * time.Second // for connecting and LISTEN
	listenIdle    = 30 * time.Second // time without a notification after which the connection is checked
	listenPing    = 10 * time.Second // for the check
	listenClose   = 2 * time.Second
)

// Listen implements schedule.Listener. In a testing/synctest bubble, time would stop while a connection waits, so
// Listen only waits for ctx there. A bubble contains no other processes, and its stores wake the relay themselves.
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
		_ = conn.Close(ctx) // no statement is running
	}()
	wake() // for tasks that were written before
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
		_ = conn.Close(ctx) // the error of LISTEN is more useful
		return nil, err
	}
	return conn, nil
}

// next waits for a notification. If the other end of a connection is gone, the connection could stay silent forever, so
// next pings after a time without notifications.
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
