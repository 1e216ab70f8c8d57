package pgxtx

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Listener returns a listener that wakes a relay by LISTEN and NOTIFY. It opens a connection by calling connect, and
// closes it when the listener stops. The stores that New returns already have a listener. Use this function for a store
// on database/sql.
//
// A pooler in transaction mode does not deliver notifications. If a pooler answers in place of the server, the listener
// therefore first sends itself a notification from a second connection. If this notification does not arrive, the
// listener stops with schedule.ErrNotNotified, and the relay only polls.
func Listener(connect func(ctx context.Context) (*pgx.Conn, error)) schedule.Listener {
	return listener(connect)
}

type listener func(ctx context.Context) (*pgx.Conn, error)

// Timeouts of a listening connection.
const (
	listenConnect = 15 * time.Second // for connecting and LISTEN
	listenIdle    = 30 * time.Second // time without a notification after which the connection is checked
	listenPing    = 10 * time.Second // for the check, and for UNLISTEN
	listenProof   = 10 * time.Second // for a notification that the listener sends to itself
	listenClose   = 2 * time.Second
)

// Listen implements schedule.Listener.
func (l listener) Listen(ctx context.Context, wake func()) error {
	if l == nil {
		return errors.New("listening for tasks: the function that connects is nil; pass one to Listener")
	}
	conn, err := l.connect(ctx)
	if err != nil {
		return fmt.Errorf("listening for tasks: %w", sqldb.ExplainServer(err))
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listenClose)
		defer cancel()
		_ = conn.Close(ctx) // ignore the error: no statement is running
	}()
	if err := begin(ctx, conn); err != nil {
		return fmt.Errorf("listening for tasks: %w", sqldb.ExplainServer(err))
	}
	wake() // for tasks that were written before LISTEN took effect
	for {
		if err := l.next(ctx, conn); err != nil {
			return fmt.Errorf("listening for tasks: %w", sqldb.ExplainServer(err))
		}
		wake()
	}
}

func (l listener) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, listenConnect)
	defer cancel()
	return l(ctx)
}

// begin starts to listen for tasks on a connection. LISTEN is the last statement, so that an administrator can
// recognise the connection in pg_stat_activity.
func begin(ctx context.Context, conn *pgx.Conn) error {
	connecting, cancel := context.WithTimeout(ctx, listenConnect)
	defer cancel()
	pooled, err := throughPooler(connecting, conn)
	if err != nil {
		return err
	}
	if pooled {
		if err := prove(ctx, conn); err != nil {
			return err
		}
	}
	listening, cancel := context.WithTimeout(ctx, listenConnect)
	defer cancel()
	_, err = conn.Exec(listening, "LISTEN "+schedule.NotifyChannel)
	return err
}

// prove returns schedule.ErrNotNotified if notifications do not arrive at a connection that listens through a pooler.
// It tests this with a notification that another connection sends while this one is idle. A notification that arrives
// together with the answer to a statement would prove nothing, because the pooler may have lent a listening connection
// only for that statement.
//
// A pooler in transaction mode keeps the server's connection on which LISTEN was executed, and that connection receives
// notifications forever, although no client expects them. PgBouncer 1.18 to 1.20 crashes with "server in bad state: 11"
// if one arrives while a query is being cancelled. The test therefore has a channel of its own, which is used only
// once.
func prove(ctx context.Context, conn *pgx.Conn) error {
	connecting, cancel := context.WithTimeout(ctx, listenConnect)
	defer cancel()
	channel := schedule.NotifyChannel + "_test_" + strings.ToLower(rand.Text())
	if _, err := conn.Exec(connecting, "LISTEN "+channel); err != nil {
		return err
	}
	if err := notify(connecting, conn.Config(), channel); err != nil {
		return err
	}
	if err := arrives(ctx, conn, channel); err != nil {
		return err
	}
	ending, cancel := context.WithTimeout(ctx, listenPing)
	defer cancel()
	_, err := conn.Exec(ending, "UNLISTEN "+channel)
	return err
}

// arrives waits for a notification on a channel. It returns schedule.ErrNotNotified if none arrives in time.
func arrives(ctx context.Context, conn *pgx.Conn, channel string) error {
	waiting, cancel := context.WithTimeout(ctx, listenProof)
	defer cancel()
	for {
		n, err := conn.WaitForNotification(waiting)
		switch {
		case err == nil && (n == nil || n.Channel == channel): // n is nil if the user's own OnNotification has received it
			return nil
		case err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			return schedule.ErrNotNotified
		case err != nil:
			return err
		}
	}
}

// notify sends a notification on a separate connection.
func notify(ctx context.Context, cfg *pgx.ConnConfig, channel string) error {
	cfg.OnNotification = nil // otherwise the new connection would call the listening connection's handler
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "NOTIFY "+channel)
	_ = conn.Close(ctx) // ignore the error: that of NOTIFY is more useful
	return err
}

// throughPooler reports whether a pooler or proxy is between the client and the server. In that case the server process
// that answers differs from the one that was announced when the client connected. throughPooler uses the simple
// protocol, which needs no prepared statement.
func throughPooler(ctx context.Context, conn *pgx.Conn) (bool, error) {
	results, err := conn.PgConn().Exec(ctx, "SELECT pg_backend_pid()").ReadAll()
	if err != nil {
		return false, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 1 {
		return false, errors.New("the server's answer to pg_backend_pid() is not one number")
	}
	return string(results[0].Rows[0][0]) != strconv.FormatUint(uint64(conn.PgConn().PID()), 10), nil
}

// next waits for a notification. If the server is gone, the connection could stay silent forever, so next pings after a
// time without notifications.
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
