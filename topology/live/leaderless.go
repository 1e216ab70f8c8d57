package live

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

// ErrUnavailable is wrapped by every *UnavailableError.
var ErrUnavailable = errors.New("the queue does not answer")

// UnavailableError means that a queue exists but that the number of its messages is unknown, because it has lost its
// leader or its node is down.
type UnavailableError struct {
	Queue  string
	Reason string // the broker's text, or the queue's state
}

func (e *UnavailableError) Error() string {
	todo := "start the nodes that are down, which rabbitmqctl cluster_status lists"
	if strings.Contains(e.Reason, "noproc") {
		todo = "its process is gone, and rabbitdelay doctor has the command that starts it again"
	}
	return fmt.Sprintf("the queue %s does not answer (%s), so the number of its messages is unknown; %s", e.Queue, e.Reason, todo)
}

// Unwrap makes errors.Is(err, ErrUnavailable) true.
func (e *UnavailableError) Unwrap() error { return ErrUnavailable }

// queueDown reports whether the broker refused an operation because a queue does not answer, and returns the broker's
// text. For a classic queue whose node is down, the code is the same as for a queue that does not exist.
func queueDown(err error) (why string, down bool) {
	e, answered := errors.AsType[*amqp.Error](err)
	if !answered || e.Code != amqp.NotFound || !strings.Contains(e.Reason, "queue '") || strings.Contains(e.Reason, "no queue '") {
		return "", false
	}
	return reason(e), true
}

// reason returns the broker's text without the name of the code.
func reason(e *amqp.Error) string {
	_, words, ok := strings.Cut(e.Reason, " - ")
	if !ok {
		return e.Reason
	}
	return strings.TrimSpace(words)
}

const (
	// askTimeout bounds how long Leaderless waits for one queue. A healthy queue answers in milliseconds.
	askTimeout = 5 * time.Second
	// maxLeaderless is the number of leaderless queues after which Leaderless stops asking, because each of them
	// costs a connection.
	maxLeaderless = 3
)

// Leaderless finds the queues that do not answer, and returns the reason for each by name. Call it for queues that
// the broker counts as empty and without consumers, because it gives the same counts for a quorum queue without a
// leader. Only an attempt to get a message reveals the difference, so Leaderless gets one, and requeues a message
// that has arrived in the meantime. Because the broker may end the connection over this, Leaderless dials its own
// connections.
//
// After a few leaderless queues it reports all remaining queues as unavailable without asking them. It omits queues
// that the user may not read, and exclusive queues of other connections. It fails only if dial fails or the context
// ends.
func Leaderless(ctx context.Context, dial func(context.Context) (*amqp.Connection, error), queues []string) (map[string]string, error) {
	found := map[string]string{}
	var conn *amqp.Connection
	defer func() {
		if conn != nil {
			_ = conn.CloseDeadline(time.Now().Add(askTimeout)) // no operation is running on it
		}
	}()
	for _, q := range slices.Sorted(slices.Values(queues)) {
		if len(found) >= maxLeaderless {
			found[q] = "it was not asked, because others have no leader"
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

// Answers tries to get a message from a queue, and requeues it. It returns the reason why the queue does not answer,
// or "" if it does. The broker may end the connection over this. The error is the context's.
func Answers(ctx context.Context, conn *amqp.Connection, queue string) (why string, err error) {
	one, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err = wait.Done(one, func() error {
		ch, err := conn.Channel()
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
		return reason(refusal), nil
	}
	why, _ = queueDown(err)
	return why, nil
}
