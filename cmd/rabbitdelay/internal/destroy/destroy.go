// Package destroy deletes a layout from a broker. Package removal decides what may be deleted, and this package counts
// messages, unbinds and deletes.
package destroy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/removal"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Run deletes a layout: the delay queues that the topology describes, the exchanges in front of and between them,
// and the destinations' bindings for that layout. Different configurations may share the layout of the ttl strategy,
// the native strategy or the plugin. Such a layout stays while the broker has a layout that the topology does not
// describe, unless the options' Layouts name it. Objects that layouts share (the delivery exchange, the parked queue
// and the route queues) are deleted only when nothing else on the broker uses them. Everything else is deleted only
// with the option Destinations. The report says what stayed, and why.
//
// Run refuses before it changes anything: with a *removal.NotEmptyError while messages wait, with a
// *removal.ConsumersError while queues that would be deleted have consumers, and with removal.ErrUnseen when it cannot
// find out whether there are any. It first unbinds the delay queues from their entry exchanges and waits for 11 s,
// until the management API has counted all messages that had entered. If there are any, it restores these bindings.
//
// A quorum queue is counted just before its deletion, because the broker does not support the condition that a quorum
// queue is deleted only if it is empty. A message that is published directly to the queue between the count and the
// deletion is deleted with it, and reported as ErrMessagesDeleted. A queue that received a message or a consumer since
// the check stays, together with the objects that it needs. For that reason the queue for its dead letters is deleted
// after it.
func Run(ctx context.Context, b live.Broker, t topology.Topology, opts removal.Options) (live.Report, error) {
	began := time.Now()
	d := newDestroyer(b, t, opts)
	err := d.destroy(ctx)
	d.finish()
	d.report.Took = time.Since(began)
	return d.report, err
}

const (
	// statsAge is the maximum age of the management API's counts: a queue reports its count every 5 s, the management
	// API collects the reports every 5 s, and both take a moment (measured on 3.10, 4.0 and 4.3: up to 10 s).
	statsAge   = 11 * time.Second
	countEvery = time.Second
	// countedWithin is how long plan waits until the management API has counted a queue that was just declared. It is
	// longer than the count takes on an idle machine, because otherwise the removal would be refused on a busy one.
	countedWithin = 20 * time.Second
	// deletedWithin is how long plan waits for a queue that does not answer. While another process deletes a queue, for
	// example because somebody else runs the same command, the queue looks for a moment as if its node were down.
	deletedWithin = 3 * time.Second
)

type destroyer struct {
	live.Broker
	t       topology.Topology
	opts    removal.Options
	removal removal.Plan
	early   []removal.Step // steps that were executed before the removal was planned again
	report  live.Report
	results map[object]live.Result // results of the executed steps
}

type object struct {
	kind topology.Kind
	name string
}

func objectOf(s removal.Step) object { return object{s.Kind, s.Name} }

// Plan returns what Run would do now. It fails only if the broker cannot be inspected. The returned plan shows whether
// Run would refuse.
func Plan(ctx context.Context, b live.Broker, t topology.Topology, opts removal.Options) (removal.Plan, error) {
	d := newDestroyer(b, t, opts)
	err := d.plan(ctx)
	return d.removal, err
}

func newDestroyer(b live.Broker, t topology.Topology, opts removal.Options) *destroyer {
	opts.Prefix = cmp.Or(opts.Prefix, topology.DefaultPrefix)
	return &destroyer{Broker: b, t: t, opts: opts, results: map[object]live.Result{}}
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
		return errors.Join(err, d.reopen(ctx, order.WayIn)) // messages that are still in the queues need these bindings to arrive
	}
	if err := d.stages(ctx, order.Layout); err != nil {
		return err
	}
	d.early = order.Marks // kept separately, because the topology does not describe them and a new plan omits deleted objects
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

// plan inspects the broker and decides what to delete. If only the management API has counted messages, its counts may
// be outdated, and it may not have counted a queue that was just declared, so plan repeats the inspection for up to
// statsAge or countedWithin. A queue that does not answer may be about to disappear, so plan waits for deletedWithin.
func (d *destroyer) plan(ctx context.Context) error {
	for began := time.Now(); ; {
		now, stale, err := d.deletable(ctx)
		if err != nil {
			return err
		}
		d.removal = now
		_, uncounted := errors.AsType[*removal.UncountedError](now.Refusal())
		outdated := stale && errors.Is(now.Refusal(), removal.ErrNotEmpty)
		took := time.Since(began)
		if (!uncounted || took > countedWithin) && (!outdated || took > statsAge) && (!unavailable(now) || took > deletedWithin) {
			return nil
		}
		if wait.For(ctx, countEvery) != nil {
			return context.Cause(ctx)
		}
	}
}

func unavailable(r removal.Plan) bool {
	_, silent := errors.AsType[*removal.UnavailableError](r.Refusal())
	return silent
}

// deletable returns what would currently be deleted. AMQP reports the current numbers of ready messages and consumers.
// The management API reports all messages, but as of a few seconds ago. If AMQP counted no message, the result stale is
// true, because any messages in the plan were then counted by the management API only, and may be gone.
func (d *destroyer) deletable(ctx context.Context) (r removal.Plan, stale bool, err error) {
	found, err := d.Inspect(ctx, d.t)
	if err == nil && found.BindingsKnown { // a state without bindings was read over AMQP, so its counts are current
		stale, err = d.recount(ctx, found)
	}
	if err != nil {
		return removal.Plan{}, false, fmt.Errorf("destroy: %w", err)
	}
	return removal.Decide(d.t, found, d.opts), stale, nil
}

// recount adds the counts over AMQP of the queues that may be deleted.
func (d *destroyer) recount(ctx context.Context, found plan.State) (stale bool, err error) {
	var queues []string
	for _, q := range d.t.Queues {
		if have, there := found.Queues[q.Name]; there && have.Unavailable == "" && (d.opts.Destinations || naming.Reserved(d.opts.Prefix, q.Name)) {
			queues = append(queues, q.Name)
		}
	}
	now, errs := channels.LookAt(d.Conn, queues, func(s *channels.Session, name string) (string, *plan.Queue, error) {
		q, err := channels.CountQueue(ctx, s, name)
		return name, q, objectFailed(topology.KindQueue, name, err)
	})
	stale = true
	for name, counted := range now {
		q := found.Queues[name]
		if q.Unavailable == "" {
			q.Unavailable = counted.Unavailable
			q.Uncounted, q.ReadyOnly = false, q.ReadyOnly || q.Uncounted
		}
		q.Messages, q.Consumers = max(q.Messages, counted.Messages), counted.Consumers
		found.Queues[name] = q
		stale = stale && counted.Messages == 0
	}
	return stale, cmp.Or(errs...)
}

// close unbinds the entry exchanges, and then counts messages until none can still be in transit. If it finds messages,
// it returns the error with which Run refuses to delete queues that contain messages. A count that only the management
// API reports may include messages that have already left, so it matters only if it remains until the end.
func (d *destroyer) close(ctx context.Context, order removal.Order) error {
	if err := d.delete(ctx, order.WayIn); err != nil {
		return err
	}
	if d.opts.Force || len(order.WayIn)+len(order.DelayQueues)+len(order.Layout[0])+len(order.Layout[1]) == 0 {
		return nil
	}
	for end := time.Now().Add(statsAge); ; {
		if wait.For(ctx, countEvery) != nil {
			return context.Cause(ctx)
		}
		now, stale, err := d.deletable(ctx)
		if err != nil {
			return err
		}
		refusal := now.Refusal()
		passes := stale && errors.Is(refusal, removal.ErrNotEmpty) || unavailable(now)
		if refusal != nil && !passes || !time.Now().Before(end) {
			return refusal
		}
	}
}

// reopen restores the entry bindings. It continues for up to 10 s after the context has ended, because a layout with
// only half of its bindings is worse than the wait.
func (d *destroyer) reopen(ctx context.Context, ways []removal.Step) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	errs := channels.SideBySide(d.Conn, len(ways), func(s *channels.Session, i int) error {
		b := ways[i].Binding
		err := s.Do(ctx, func(ch *amqp.Channel) error { return channels.Bind(ch, b, false) })
		if err == nil || channels.IsCode(err, amqp.NotFound) {
			return nil
		}
		return &live.ObjectError{Kind: topology.KindBinding, Name: b.String(), Op: "restore", Err: err}
	})
	for i, s := range ways {
		if errs[i] == nil {
			d.results[objectOf(s)] = live.Result{State: live.StateKept}
		}
	}
	return errors.Join(errs...)
}

// stages deletes the objects stage by stage. It also keeps the objects that a kept object needs.
func (d *destroyer) stages(ctx context.Context, stages [][]removal.Step) error {
	var errs []error
	for _, steps := range stages {
		errs = append(errs, d.delete(ctx, d.removal.Going(steps)))
	}
	return errors.Join(errs...)
}

func (d *destroyer) delete(ctx context.Context, steps []removal.Step) error {
	done := make([]deletion, len(steps))
	channels.SideBySide(d.Conn, len(steps), func(s *channels.Session, i int) error {
		done[i] = deleteStep(ctx, s, steps[i])
		return nil
	})
	full, busy := &removal.NotEmptyError{}, &removal.ConsumersError{}
	var errs []error
	for i, s := range steps {
		d.results[objectOf(s)] = done[i].Result
		if done[i].State != live.StateDeleted {
			d.removal.Keep(s, done[i].Reason)
		}
		if done[i].err != nil {
			errs = append(errs, &live.ObjectError{Kind: s.Kind, Name: s.Name, Op: "delete", Err: done[i].err})
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

// finish builds the report. For executed steps it contains the results, and for all other objects the planned state.
func (d *destroyer) finish() {
	planned := func(s removal.Step) bool {
		return slices.ContainsFunc(d.removal.Steps, func(t removal.Step) bool { return objectOf(t) == objectOf(s) })
	}
	for _, s := range append(slices.DeleteFunc(d.early, planned), d.removal.Steps...) {
		r, tried := d.results[objectOf(s)]
		switch {
		case tried:
		case s.Action == removal.ActionAbsent:
			r.State = live.StateAbsent
		case s.Kind == topology.KindBinding && d.results[object{topology.KindExchange, s.Binding.Exchange}].State == live.StateDeleted:
			r.State = live.StateDeleted
		default:
			r = live.Result{State: live.StateKept, Reason: s.Reason}
		}
		r.Kind, r.Name = s.Kind, s.Name
		d.report.Results = append(d.report.Results, r)
	}
}

// ErrMessagesDeleted is wrapped by the *live.ObjectError of a quorum queue that received a message between the last
// count and its deletion. This cannot be avoided, because the broker does not support the condition that a quorum queue
// is deleted only if it is empty.
var ErrMessagesDeleted = errors.New("messages that arrived after the last count were deleted with the queue")

type deletion struct {
	live.Result
	came removal.QueueCount // messages or consumers that arrived since the check; if there are any, the queue is kept
	err  error
}

// deleted returns the result of a deletion that returned err. An object that no longer exists counts as deleted.
func deleted(err error) deletion {
	if _, down := channels.Down(err); err == nil || channels.IsCode(err, amqp.NotFound) && !down {
		return deletion{Result: live.Result{State: live.StateDeleted}}
	}
	return deletion{Result: live.Result{State: live.StateFailed}, err: err}
}

func stays(reason string) deletion {
	return deletion{Result: live.Result{State: live.StateKept, Reason: reason}}
}

func deleteStep(ctx context.Context, s *channels.Session, step removal.Step) deletion {
	switch step.Kind {
	case topology.KindQueue:
		return deleteQueueStep(ctx, s, step)
	case topology.KindExchange:
		err := channels.DeleteExchange(ctx, s, step.Name, !step.Forced)
		if !step.Forced && channels.IsCode(err, amqp.PreconditionFailed) {
			return stays("another client has bound something to it")
		}
		return deleted(err)
	}
	return deleted(s.Do(ctx, func(ch *amqp.Channel) error {
		b := step.Binding
		if b.ToExchange != "" {
			return ch.ExchangeUnbind(b.ToExchange, b.RoutingKey, b.Exchange, false, channels.Table(b.Arguments))
		}
		return ch.QueueUnbind(b.Queue, b.RoutingKey, b.Exchange, channels.Table(b.Arguments))
	}))
}

// deleteQueueStep deletes a queue if it is empty and has no consumers, or if the step is forced. The broker itself
// checks this condition for a classic queue. For a quorum queue the broker refuses the condition and closes the
// connection, so deleteQueueStep counts its messages and consumers just before the deletion.
func deleteQueueStep(ctx context.Context, s *channels.Session, step removal.Step) deletion {
	if step.Forced {
		n, err := channels.DeleteQueue(ctx, s, step.Name, false)
		d := deleted(err)
		if d.Messages = n; n == 0 && err == nil {
			d.Messages = step.Messages // the broker's answer does not count messages that it delays itself
		}
		return d
	}
	if d, used := inUse(ctx, s, step); used {
		return d
	}
	onCondition := step.Type == topology.Classic
	n, err := channels.DeleteQueue(ctx, s, step.Name, onCondition)
	if onCondition && channels.IsCode(err, amqp.PreconditionFailed) {
		if d, used := inUse(ctx, s, step); used {
			return d
		}
	}
	d := deleted(err)
	d.Messages = n
	if n > 0 {
		d.err = fmt.Errorf("%w: %d", ErrMessagesDeleted, n)
	}
	return d
}

// inUse reports whether a queue must stay because it has messages or consumers, or because its messages cannot be
// counted.
func inUse(ctx context.Context, s *channels.Session, step removal.Step) (deletion, bool) {
	q, err := channels.CountQueue(ctx, s, step.Name)
	switch {
	case err != nil:
		return deleted(err), true
	case q != nil && q.Unavailable != "":
		return deletion{Result: live.Result{State: live.StateFailed}, err: &live.UnavailableError{Queue: step.Name, Reason: q.Unavailable}}, true
	case q == nil || q.Messages+q.Consumers == 0:
		return deletion{}, false
	}
	came := removal.QueueCount{Queue: step.Name, Messages: q.Messages, Consumers: q.Consumers, Delay: step.Layout != ""}
	d := stays(came.String() + " arrived since the check")
	d.came = came
	return d, true
}

// objectFailed wraps the error of an operation on an object. It returns nil if the object does not exist.
func objectFailed(kind topology.Kind, name string, err error) error {
	if err == nil || channels.IsCode(err, amqp.NotFound) {
		return nil
	}
	return &live.ObjectError{Kind: kind, Name: name, Op: "delete", Err: err}
}
