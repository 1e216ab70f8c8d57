package channels

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// countTimeout bounds how long CountQueue waits for one queue. A healthy queue answers in milliseconds. For a classic
// queue whose node is down the broker may take a minute and a half to answer.
const countTimeout = 10 * time.Second

// ErrUnavailable is the error that every *UnavailableError wraps.
var ErrUnavailable = errors.New("the queue does not answer")

// UnavailableError means that a queue exists but that the number of its messages is unknown, because it has lost its
// leader, its leader is too busy to count, or its node is down.
type UnavailableError struct {
	Queue  string
	Reason string // the broker's text, or the queue's state
}

func (e *UnavailableError) Error() string {
	todo := "start the nodes that are down, which rabbitmqctl cluster_status lists"
	switch {
	case strings.Contains(e.Reason, "noproc"):
		todo = "its process is gone; rabbitdelay doctor shows the command that restarts it"
	case e.Reason == leaderBusy:
		todo = "try again; if that does not help, the queue's node is overloaded or cut off"
	}
	return fmt.Sprintf("the queue %s does not answer (%s), so the number of its messages is unknown; %s", e.Queue, e.Reason, todo)
}

// Unwrap makes errors.Is(err, ErrUnavailable) true.
func (e *UnavailableError) Unwrap() error { return ErrUnavailable }

const leaderBusy = "its leader did not send the counts to the broker within 250 ms"

const (
	// leaderTimeout is how long a broker waits for the leader of a quorum queue that is declared passively. After that,
	// it answers with 0 messages and 0 consumers (rabbit_quorum_queue:stat/1 in RabbitMQ 3.10 to 4.4).
	leaderTimeout = 250 * time.Millisecond
	// countTries is how many times Count asks, with growing pauses.
	countTries   = 6
	pauseBetween = 100 * time.Millisecond
	// roundTrips is how many round trips Count measures after each slow answer.
	roundTrips = 3
)

// Count counts the ready messages and the consumers of a queue with a passive declaration. It fails with an
// *UnavailableError if the leader of a quorum queue is too busy to answer the broker. A queue without a leader is
// counted as 0 messages and 0 consumers.
func Count(ctx context.Context, ch *amqp.Channel, queue string) (amqp.Queue, error) {
	return count(ctx, queue,
		func() (amqp.Queue, error) { return ch.QueueDeclarePassive(queue, true, false, false, false, nil) },
		func() error { return ch.Flow(true) }) // changes nothing, and needs no permission
}

// count asks until an answer can be trusted. An answer of 0 and 0 is trusted if it arrived before the broker would have
// stopped waiting for the leader. A slow connection delays that time. The delay is assumed to be only half of the
// shortest round trip, because a single round trip may be long by chance, and because the answer may have travelled
// faster than any of them.
func count(ctx context.Context, queue string, ask func() (amqp.Queue, error), roundTrip func() error) (amqp.Queue, error) {
	shortest := time.Duration(math.MaxInt64)
	for try := range countTries {
		if err := wait.For(ctx, time.Duration(try)*pauseBetween); err != nil {
			return amqp.Queue{}, err
		}
		asked := time.Now()
		q, err := ask()
		took := time.Since(asked)
		if err != nil || q.Messages+q.Consumers > 0 || took < leaderTimeout {
			return q, err
		}
		for range roundTrips {
			asked = time.Now()
			if err := roundTrip(); err != nil {
				return amqp.Queue{}, err
			}
			shortest = min(shortest, time.Since(asked))
		}
		if took < leaderTimeout+shortest/2 {
			return q, nil
		}
	}
	return amqp.Queue{}, &UnavailableError{Queue: queue, Reason: leaderBusy}
}

// CountQueue counts a queue's ready messages and its consumers. It returns nil if the queue does not exist. A queue
// whose node is down is returned as unavailable, although the broker answers with the same code as for a queue that
// does not exist.
func CountQueue(ctx context.Context, s *Session, queue string) (*plan.Queue, error) {
	one, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	q, err := Ask(one, s, func(ch *amqp.Channel) (plan.Queue, error) {
		state, err := Count(one, ch, queue)
		return plan.Queue{Messages: int64(state.Messages), Consumers: int64(state.Consumers)}, err
	})
	why, down := Down(err)
	switch {
	case down:
		return &plan.Queue{Unavailable: why}, nil
	case errors.Is(err, ErrUnavailable):
		return &plan.Queue{Unavailable: leaderBusy}, nil
	case err != nil && one.Err() != nil && ctx.Err() == nil:
		return &plan.Queue{Unavailable: fmt.Sprintf("no answer within %v", countTimeout)}, nil
	case IsCode(err, amqp.NotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &q, nil
}

// Down reports whether the broker refused an operation because a queue does not answer, and returns the broker's
// text. For a classic queue whose node is down, the code is the same as for a queue that does not exist.
func Down(err error) (why string, down bool) {
	e, answered := errors.AsType[*amqp.Error](err)
	if !answered || e.Code != amqp.NotFound || !strings.Contains(e.Reason, "queue '") || strings.Contains(e.Reason, "no queue '") {
		return "", false
	}
	return Reason(e), true
}

// Reason returns the broker's text without the name of the code in front of it, such as NOT_FOUND.
func Reason(e *amqp.Error) string {
	_, words, ok := strings.Cut(e.Reason, " - ")
	if !ok {
		return e.Reason
	}
	return strings.TrimSpace(words)
}
