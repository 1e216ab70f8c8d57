package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
	"github.com/rabbitdelay/rabbitdelay/topology/removal"
)

// Destroy deletes a layout: the delay queues that the topology describes, the exchanges in front of and between them,
// and the destinations' bindings for that layout. Different configurations may share the layout of the ttl strategy,
// the native strategy or the plugin. Such a layout stays while the broker has a layout that the topology does not
// describe, unless the options' Layouts name it. Objects that layouts share (the delivery exchange, the parked queue
// and the route queues) are deleted only when nothing else on the broker uses them. Everything else is deleted only
// with the option Destinations. The report says what stayed, and why.
//
// Destroy refuses before it changes anything: with a *removal.NotEmptyError while messages wait, with a
// *removal.ConsumersError while queues that would be deleted have consumers, and with removal.ErrUnseen when it
// cannot know. It then first unbinds the delay queues from their entry exchanges and waits for 6 s, until all
// messages that had entered are counted. If there are any, it restores these bindings.
//
// A quorum queue is counted just before its deletion, because the broker cannot delete a quorum queue only if it is
// empty. A message that is published directly to the queue in the millisecond between is deleted with it, and
// reported as ErrMessagesDeleted. A queue that received a message or a consumer since the check stays, together with
// the objects that it needs. For that reason the queue for its dead letters is deleted after it.
// needs: the queue for its dead letters is deleted after it.
func (b Broker) Destroy(ctx context.Context, t topology.Topology, opts removal.Options) (Report, error) {
	began := time.Now()
	d := newDestroyer(b, t, opts)
	err := d.destroy(ctx)
	d.finish()
	d.report.Took = time.Since(began)
	return d.report, err
}

// statsAge is the maximum age of the management API's counts.
const (
	statsAge   = 6 * time.Second
	countEvery = time.Second
)

type destroyer struct {
	Broker
	t       topology.Topology
	opts    removal.Options
	removal removal.Plan
	early   []removal.Step // steps executed before the removal was planned again
	report  Report
	results map[object]Result // results of the executed steps
}

type object struct {
	kind topology.Kind
	name string
}

func objectOf(s removal.Step) object { return object{s.Kind, s.Name} }

func newDestroyer(b Broker, t topology.Topology, opts removal.Options) *destroyer {
	opts.Prefix = cmp.Or(opts.Prefix, topology.DefaultPrefix)
	return &destroyer{Broker: b, t: t, opts: opts, results: map[object]Result{}}
}

func (d *destroyer) destroy(ctx context.Context) error {
	if err := d.plan(ctx); err != nil {
		return err
	}
	if err := d.removal.Refusal(); err != nil {
		return err
	}
	order := d.removal.Order()
	err := d.close(ctx, order)
	if err == nil {
		err = d.delete(ctx, order.Marks)
	}
	if err == nil {
		err = d.delete(ctx, order.DelayQueues)
	}
	if err != nil {
		return errors.Join(err, d.reopen(ctx, order.WayIn)) // the messages left in the queues can still leave them
	}
	if err := d.stages(ctx, order.Layout); err != nil {
		return err
	}
	d.early = order.Marks // the topology does not describe them, and a new plan omits deleted objects
	// Another client may have begun to use the remaining objects.
	if err := d.plan(ctx); err != nil {
		return err
	}
	order = d.removal.Order()
	err = errors.Join(d.delete(ctx, order.Marks), d.stages(ctx, order.Shared))
	if d.removal.Refusal() != nil {
		return errors.Join(err, d.removal.Refusal())
	}
	return errors.Join(err, d.stages(ctx, order.Declared))
}

// plan inspects the broker and decides what to delete. If only the management API counts messages, that count may be
// outdated, so plan inspects again for up to statsAge.
func (d *destroyer) plan(ctx context.Context) error {
	for deadline := time.Now().Add(statsAge); ; {
		now, stale, err := d.deletable(ctx)
		if err != nil {
			return err
		}
		d.removal = now
		if !stale || !errors.Is(now.Refusal(), removal.ErrNotEmpty) || time.Now().After(deadline) {
			return nil
		}
		if wait.For(ctx, countEvery) != nil {
			return context.Cause(ctx)
		}
	}
}

// deletable returns what would be deleted now. AMQP reports the current numbers of ready messages and consumers. The
// management API reports all messages, but as they were some seconds ago. The result stale means that no message was
// counted over AMQP.
func (d *destroyer) deletable(ctx context.Context) (r removal.Plan, stale bool, err error) {
	found, err := d.inspect(ctx, d.t)
	if err == nil && found.BindingsKnown { // otherwise found already has the counts over AMQP
		stale, err = d.recount(ctx, found)
	}
	if err != nil {
		return removal.Plan{}, false, fmt.Errorf("destroy: %w", err)
	}
	return removal.Decide(d.t, found, d.opts), stale, nil
}

// recount adds the counts over AMQP of the queues that may be deleted.
func (d *destroyer) recount(ctx context.Context, found observed.Broker) (stale bool, err error) {
	var queues []string
	for _, q := range d.t.Queues {
		if have, there := found.Queues[q.Name]; there && have.Unavailable == "" && (d.opts.Destinations || naming.Reserved(d.opts.Prefix, q.Name)) {
			queues = append(queues, q.Name)
		}
	}
	now, errs := lookAt(d.Conn, queues, func(s *session, name string) (string, *observed.Queue, error) {
		q, err := countQueue(ctx, s, name)
		return name, q, objectFailed(topology.KindQueue, name, err)
	})
	stale = true
	for name, counted := range now {
		q := found.Queues[name]
		if q.Unavailable == "" {
			q.Unavailable, q.Uncounted = counted.Unavailable, false
		}
		q.Messages, q.Consumers = max(q.Messages, counted.Messages), counted.Consumers
		found.Queues[name] = q
		stale = stale && counted.Messages == 0
	}
	return stale, cmp.Or(errs...)
}

// close unbinds the entry exchanges, and then counts messages until none can be on its way any more. If it finds
// messages, it returns the same error as the check before it.
func (d *destroyer) close(ctx context.Context, order removal.Order) error {
	if err := d.delete(ctx, order.WayIn); err != nil {
		return err
	}
	if d.opts.Force || len(order.WayIn)+len(order.DelayQueues)+len(order.Layout[0])+len(order.Layout[1]) == 0 {
		return nil
	}
	for end := time.Now().Add(statsAge); time.Now().Before(end); {
		if wait.For(ctx, countEvery) != nil {
			return context.Cause(ctx)
		}
		now, _, err := d.deletable(ctx)
		if err != nil {
			return err
		}
		if err := now.Refusal(); err != nil {
			return err
		}
	}
	return nil
}

// reopen restores the entry bindings. It continues for up to 10 s after the context has ended, because a layout with
// half of its bindings is worse than the wait.
func (d *destroyer) reopen(ctx context.Context, ways []removal.Step) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	errs := sideBySide(d.Conn, len(ways), func(s *session, i int) error {
		b := ways[i].Binding
		err := s.do(ctx, func(ch *amqp.Channel) error { return bind(ch, b, false) })
		if err == nil || isCode(err, amqp.NotFound) {
			return nil
		}
		return &ObjectError{Kind: topology.KindBinding, Name: b.String(), Op: "restore", Err: err}
	})
	for i, s := range ways {
		if errs[i] == nil {
			d.results[objectOf(s)] = Result{State: StateKept}
		}
	}
	return errors.Join(errs...)
}

// stages deletes stage by stage. Objects that a kept object needs are kept as well.
func (d *destroyer) stages(ctx context.Context, stages [][]removal.Step) error {
	var errs []error
	for _, steps := range stages {
		errs = append(errs, d.delete(ctx, d.removal.Going(steps)))
	}
	return errors.Join(errs...)
}

func (d *destroyer) delete(ctx context.Context, steps []removal.Step) error {
	done := make([]deletion, len(steps))
	sideBySide(d.Conn, len(steps), func(s *session, i int) error {
		done[i] = deleteStep(ctx, s, steps[i])
		return nil
	})
	full, busy := &removal.NotEmptyError{}, &removal.ConsumersError{}
	var errs []error
	for i, s := range steps {
		d.results[objectOf(s)] = done[i].Result
		if done[i].State != StateDeleted {
			d.removal.Keep(s, done[i].Reason)
		}
		if done[i].err != nil {
			errs = append(errs, &ObjectError{Kind: s.Kind, Name: s.Name, Op: "delete", Err: done[i].err})
		}
		switch came := done[i].came; {
		case came.Messages > 0:
			full.Queues = append(full.Queues, came)
			full.Total += came.Messages
		case came.Consumers > 0:
			busy.Queues = append(busy.Queues, came)
		}
	}
	if full.Total > 0 {
		errs = append(errs, full)
	}
	if len(busy.Queues) > 0 {
		errs = append(errs, busy)
	}
	return errors.Join(errs...)
}

// finish builds the report. It contains the results of the executed steps, and the planned state of all other
// objects.
func (d *destroyer) finish() {
	planned := func(s removal.Step) bool {
		return slices.ContainsFunc(d.removal.Steps, func(t removal.Step) bool { return objectOf(t) == objectOf(s) })
	}
	for _, s := range append(slices.DeleteFunc(d.early, planned), d.removal.Steps...) {
		r, tried := d.results[objectOf(s)]
		switch {
		case tried:
		case s.Action == removal.ActionAbsent:
			r.State = StateAbsent
		case s.Kind == topology.KindBinding && d.results[object{topology.KindExchange, s.Binding.Exchange}].State == StateDeleted:
			r.State = StateDeleted
		default:
			r = Result{State: StateKept, Reason: s.Reason}
		}
		r.Kind, r.Name = s.Kind, s.Name
		d.report.Results = append(d.report.Results, r)
	}
}

// ErrMessagesDeleted is wrapped by the *ObjectError of a quorum queue that received a message between the last count
// and its deletion. The broker cannot delete a quorum queue only if it is empty.
var ErrMessagesDeleted = errors.New("messages that arrived meanwhile were deleted with it")

type deletion struct {
	Result
	came removal.QueueCount // messages or consumers that arrived since the check, so that the queue is kept
	err  error
}

// deleted returns the result of a deletion that ended with err. An object that no longer exists counts as deleted.
func deleted(err error) deletion {
	if _, down := queueDown(err); err == nil || isCode(err, amqp.NotFound) && !down {
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
	return deleted(s.do(ctx, func(ch *amqp.Channel) error {
		b := step.Binding
		if b.ToExchange != "" {
			return ch.ExchangeUnbind(b.ToExchange, b.RoutingKey, b.Exchange, false, table(b.Arguments))
		}
		return ch.QueueUnbind(b.Queue, b.RoutingKey, b.Exchange, table(b.Arguments))
	}))
}

// deleteQueueStep deletes a queue if it is empty and has no consumers, or if the step is forced. The broker itself
// checks this condition for a classic queue. For a quorum queue the broker refuses the condition and closes the
// connection, so deleteQueueStep counts its messages and consumers just before the deletion.
func deleteQueueStep(ctx context.Context, s *session, step removal.Step) deletion {
	if step.Forced {
		n, err := deleteQueue(ctx, s, step.Name, false)
		d := deleted(err)
		if d.Messages = n; n == 0 && err == nil {
			d.Messages = step.Messages // the broker's answer omits messages that wait for an instant
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

// inUse reports whether a queue must stay, because it has messages or consumers or because it cannot be counted.
func inUse(ctx context.Context, s *session, step removal.Step) (deletion, bool) {
	q, err := countQueue(ctx, s, step.Name)
	switch {
	case err != nil:
		return deleted(err), true
	case q != nil && q.Unavailable != "":
		return deletion{Result: Result{State: StateFailed}, err: &UnavailableError{Queue: step.Name, Reason: q.Unavailable}}, true
	case q == nil || q.Messages+q.Consumers == 0:
		return deletion{}, false
	}
	came := removal.QueueCount{Queue: step.Name, Messages: q.Messages, Consumers: q.Consumers, Delay: step.Layout != ""}
	d := stays(came.String() + " came meanwhile")
	d.came = came
	return d, true
}

// Wipe deletes everything that the topology describes, including messages, without checking whether it is in use. Use
// it for objects that a test or a demo created for itself.
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

// objectFailed wraps the error of an operation on an object. It returns nil if the object does not exist.
func objectFailed(kind topology.Kind, name string, err error) error {
	if err == nil || isCode(err, amqp.NotFound) {
		return nil
	}
	return &ObjectError{Kind: kind, Name: name, Op: "delete", Err: err}
}
