package config

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// Listener wakes a relay by LISTEN and NOTIFY, where the database is PostgreSQL.
// Elsewhere it is nil, and the relay looks at the table now and then. It opens a
// connection of its own, which must reach the server itself: a pooler that hands
// out connections by transaction delivers no notifications. It does not connect
// yet.
func Listener(u URL) (schedule.Listener, error) {
	d, err := parseDatabase(u)
	if err != nil {
		return nil, err
	}
	if d.dialect != idempotency.PostgreSQL {
		return nil, nil
	}
	return &pgListener{config: d.postgres}, nil
}

type pgListener struct{ config *pgx.ConnConfig }

// Times of a listening connection.
const (
	listenConnect = 15 * time.Second // connecting, and LISTEN
	listenIdle    = 30 * time.Second // silence after which the connection is tried
	listenPing    = 10 * time.Second // the longest that the trial takes
	listenClose   = 2 * time.Second
)

// Listen implements schedule.Listener.
func (l *pgListener) Listen(ctx context.Context, wake func()) error {
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

func (l *pgListener) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, listenConnect)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, l.config.Copy())
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
func (l *pgListener) next(ctx context.Context, conn *pgx.Conn) error {
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
