package live

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/removal"
)

// ErrMessagesDeleted is wrapped by the *ObjectError of a quorum queue that
// received a message between the last count and its deletion. Brokers cannot
// delete a quorum queue only if it is empty.
var ErrMessagesDeleted = errors.New("messages that arrived meanwhile were deleted with it")

// deletion is what became of one object.
type deletion struct {
	Result
	came removal.QueueCount // what came to a queue meanwhile, and keeps it
	err  error
}

// deleted is the outcome of what ends in an error, or in none. What is not there
// any more is deleted.
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
		return deleteExchangeStep(ctx, s, step)
	}
	return deleted(s.do(ctx, func(ch *amqp.Channel) error { return unbind(ch, step.Binding) }))
}

// deleteQueueStep deletes a queue that is empty and has no consumer, or is forced.
// A classic queue is deleted on that condition by the broker. For a quorum queue
// the broker refuses the condition (by closing the connection), so it is looked
// at just before.
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

// inUse reports whether a queue stays, because something came to it or because that
// cannot be found out.
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

// deleteExchangeStep deletes an exchange unless somebody has bound to it meanwhile.
func deleteExchangeStep(ctx context.Context, s *session, step removal.Step) deletion {
	err := deleteExchange(ctx, s, step.Name, !step.Forced)
	if !step.Forced && isCode(err, amqp.PreconditionFailed) {
		return stays("somebody bound to it meanwhile")
	}
	return deleted(err)
}

// failures are the errors of the deletions that failed.
func failures(steps []removal.Step, done []deletion) error {
	var errs []error
	for i, s := range steps {
		if done[i].err != nil {
			errs = append(errs, &ObjectError{Kind: s.Kind, Name: s.Name, Op: "delete", Err: done[i].err})
		}
	}
	return errors.Join(errs...)
}

// came is the error of queues to which something came meanwhile.
func came(done []deletion) error {
	full, busy := &removal.NotEmptyError{}, &removal.ConsumersError{}
	for _, d := range done {
		switch {
		case d.came.Messages > 0:
			full.Queues = append(full.Queues, d.came)
			full.Total += d.came.Messages
		case d.came.Consumers > 0:
			busy.Queues = append(busy.Queues, d.came)
		}
	}
	var errs []error
	if full.Total > 0 {
		errs = append(errs, full)
	}
	if len(busy.Queues) > 0 {
		errs = append(errs, busy)
	}
	return errors.Join(errs...)
}
