package live

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/removal"
)

// ErrMessagesDeleted is wrapped by the *ObjectError of a quorum queue that received a message between the last
// count and its deletion. Brokers cannot delete a quorum queue only if it is empty.
var ErrMessagesDeleted = errors.New("messages that arrived meanwhile were deleted with it")

type deletion struct {
	Result
	came removal.QueueCount // what came to a queue meanwhile, and keeps it
	err  error
}

// deleted is the outcome of what ends in an error, or in none. What is not there any more is deleted.
func deleted(err error) deletion {
	if err == nil || isCode(err, amqp.NotFound) {
		return deletion{Result: Result{State: StateDeleted}}
	}
	return deletion{Result: Result{State: StateFailed}, err: err}
}

func stays(reason string) deletion { return deletion{Result: Result{State: StateKept, Reason: reason}} }

func deleteStep(ctx context.Context, s *session, step removal.Step) deletion {
	switch step.Kind {
	case topology.KindQueue:
		return deleteQueueStep(ctx, s, step)
	case topology.KindExchange:
		err := deleteExchange(ctx, s, step.Name, !step.Forced)
		if !step.Forced && isCode(err, amqp.PreconditionFailed) {
			return stays("somebody bound to it meanwhile")
		}
		return deleted(err)
	}
	return deleted(s.do(ctx, func(ch *amqp.Channel) error { return unbind(ch, step.Binding) }))
}

// deleteQueueStep deletes a queue that is empty and has no consumer, or is forced. A classic queue is deleted
// on that condition by the broker. For a quorum queue the broker refuses the condition (by closing the
// connection), so it is looked at just before.
func deleteQueueStep(ctx context.Context, s *session, step removal.Step) deletion {
	if step.Forced {
		n, err := deleteQueue(ctx, s, step.Name, false)
		d := deleted(err)
		if d.Messages = n; n == 0 && err == nil {
			d.Messages = step.Messages // the broker's answer leaves out those that wait for an instant
		}
		return d
	}
	if d, used := inUse(ctx, s, step); used {
		return d
	}
	onCondition := step.Type == topology.Classic
	n, err := deleteQueue(ctx, s, step.Name, onCondition)
	if onCondition && isCode(err, amqp.PreconditionFailed) {
		if d, used := inUse(ctx, s, step); used {
			return d
		}
	}
	d := deleted(err)
	d.Messages = n
	if n > 0 {
		d.err = fmt.Errorf("%d %w", n, ErrMessagesDeleted)
	}
	return d
}

// inUse reports whether a queue stays, because something came to it or because that cannot be found out.
func inUse(ctx context.Context, s *session, step removal.Step) (deletion, bool) {
	q, err := countQueue(ctx, s, step.Name)
	switch {
	case err != nil:
		return deleted(err), true
	case q == nil || q.Messages+q.Consumers == 0:
		return deletion{}, false
	}
	came := removal.QueueCount{Queue: step.Name, Messages: q.Messages, Consumers: q.Consumers, Delay: step.Layout != ""}
	d := stays(came.String() + " came meanwhile")
	d.came = came
	return d, true
}

// Wipe deletes everything that the topology describes, including messages, without checking for users. It is
// for objects that a test or a demo created for itself.
func (b Broker) Wipe(ctx context.Context, t topology.Topology) error {
	queues := sideBySide(b.Conn, len(t.Queues), func(s *session, i int) error {
		_, err := deleteQueue(ctx, s, t.Queues[i].Name, false)
		return objectFailed(topology.KindQueue, t.Queues[i].Name, err)
	})
	exchanges := sideBySide(b.Conn, len(t.Exchanges), func(s *session, i int) error {
		return objectFailed(topology.KindExchange, t.Exchanges[i].Name, deleteExchange(ctx, s, t.Exchanges[i].Name, false))
	})
	return errors.Join(errors.Join(queues...), errors.Join(exchanges...))
}

// objectFailed is the error of deleting an object, none if it is not there.
func objectFailed(kind topology.Kind, name string, err error) error {
	if err == nil || isCode(err, amqp.NotFound) {
		return nil
	}
	return &ObjectError{Kind: kind, Name: name, Op: "delete", Err: err}
}
