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

// UnavailableError means that a queue is there and that nobody can tell how many messages it has: it has lost its
// leader, or its node is down.
type UnavailableError struct {
	Queue  string
	Reason string // the broker's words, or its state
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

// queueDown returns the broker's words if it refuses because a queue does not answer. For a classic queue whose
// node is down it has the code of a queue that does not exist.
func queueDown(err error) (why string, down bool) {
	e, answered := errors.AsType[*amqp.Error](err)
	if !answered || e.Code != amqp.NotFound || !strings.Contains(e.Reason, "queue '") || strings.Contains(e.Reason, "no queue '") {
		return "", false
	}
	return reason(e), true
}

// reason returns the broker's words without the name of the code.
func reason(e *amqp.Error) string {
	_, words, ok := strings.Cut(e.Reason, " - ")
	if !ok {
		return e.Reason
	}
	return strings.TrimSpace(words)
}

const (
	// askTimeout bounds how long Leaderless waits for one queue. A healthy one answers in milliseconds.
	askTimeout = 5 * time.Second
	// maxLeaderless is the number of queues without a leader after which Leaderless asks no more: each costs it a
	// connection.
	maxLeaderless = 3
)

// Leaderless finds out which of some queues do not answer, with the reason of each. It is for queues that the broker
// counts as empty and without consumers: it says the same of a quorum queue without a leader. Only taking a message
// tells, so Leaderless asks for one, and puts back what has come in the meantime. Because the broker may end the
// connection over that, Leaderless dials its own.
//
// After a few of them it takes the rest for unavailable as well, without asking. Queues that the user may not read,
// or that belong to another connection, are left out. Its error is that of dialing, or the context's.
func Leaderless(ctx context.Context, dial func(context.Context) (*amqp.Connection, error), queues []string) (map[string]string, error) {
	found := map[string]string{}
	var conn *amqp.Connection
	defer func() {
		if conn != nil {
			_ = conn.CloseDeadline(time.Now().Add(askTimeout)) // nothing is in flight on it
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
			_ = conn.CloseDeadline(time.Now()) // its channel may still wait
		}
	}
	return found, nil
}

// Answers asks a queue for a message, which it puts back, and returns why the queue does not answer; empty if it
// does. The broker may end the connection over that. The error is the context's.
func Answers(ctx context.Context, conn *amqp.Connection, queue string) (why string, err error) {
	one, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err = wait.Done(one, func() error {
		ch, err := conn.Channel()
		if err != nil {
			return err
		}
		defer func() { _ = ch.Close() }() // what is still held goes back
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
