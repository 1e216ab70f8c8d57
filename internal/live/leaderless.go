package live

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// ErrUnavailable is wrapped by every *UnavailableError.
var ErrUnavailable = channels.ErrUnavailable

// UnavailableError means that a queue exists but that the number of its messages is unknown, because it has lost its
// leader, its leader is too busy to count, or its node is down.
type UnavailableError = channels.UnavailableError

const (
	// askTimeout limits how long Leaderless and Answers wait for one queue. A healthy queue answers in milliseconds.
	askTimeout = 5 * time.Second
	// maxLeaderless is the number of leaderless queues after which Leaderless stops asking, because each of them
	// costs a connection.
	maxLeaderless = 3
)

// Leaderless finds the queues that do not answer, and returns the reason for each by name. Call it for queues that the
// broker counts as empty and without consumers, because the broker reports the same for a quorum queue without a
// leader. To distinguish the two cases, Leaderless has to get a message, and it requeues a message that has arrived in
// the meantime. Because the broker may close the connection in reply, Leaderless dials its own connections.
//
// After a few leaderless queues it reports all remaining queues as unavailable without testing them. It omits queues
// that the user is not allowed to read, and exclusive queues of other connections. It fails only if dial fails or
// the context ends.
func Leaderless(ctx context.Context, dial func(context.Context) (*amqp.Connection, error), queues []string) (map[string]string, error) {
	found := map[string]string{}
	var conn *amqp.Connection
	defer func() {
		if conn != nil {
			_ = conn.CloseDeadline(time.Now().Add(askTimeout)) // an error does not matter, because no operation is running on the connection
		}
	}()
	for _, q := range slices.Sorted(slices.Values(queues)) {
		if len(found) >= maxLeaderless {
			found[q] = "not tested, because other queues have no leader"
			continue
		}
		if conn == nil || conn.IsClosed() {
			var err error
			if conn, err = dial(ctx); err != nil {
				return found, err
			}
		}
		why, err := Answers(ctx, conn, q)
		if err != nil {
			return found, err
		}
		if why != "" {
			found[q] = why
			_ = conn.CloseDeadline(time.Now()) // an operation may still be waiting on its channel
		}
	}
	return found, nil
}

// Answers tries to get a message from a queue, and requeues it. It returns the reason why the queue does not answer, or
// "" if it does. The broker may close the connection in reply. The error is the context's.
func Answers(ctx context.Context, conn *amqp.Connection, queue string) (why string, err error) {
	one, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err = wait.Done(one, func() error {
		ch, err := channels.Open(conn)
		if err != nil {
			return err
		}
		defer func() { _ = ch.Close() }() // requeues a message that is still unacknowledged
		d, ok, err := ch.Get(queue, false)
		if err != nil || !ok {
			return err
		}
		return d.Nack(false, true)
	})
	refusal, refused := errors.AsType[*amqp.Error](err)
	switch {
	case err == nil, ctx.Err() != nil:
		return "", context.Cause(ctx)
	case one.Err() != nil:
		return fmt.Sprintf("no answer within %v", askTimeout), nil
	case !refused || !refusal.Server:
		return err.Error(), nil
	case refusal.Code == amqp.InternalError:
		return channels.Reason(refusal), nil
	}
	why, _ = channels.Down(err)
	return why, nil
}
