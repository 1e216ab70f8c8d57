package topology

import (
	"cmp"
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// DestroyOptions are the options of Destroy. The zero value deletes a layout only
// where it can be seen that nothing is lost by it.
type DestroyOptions struct {
	// Prefix of the delay objects, default DefaultPrefix.
	Prefix string
	// Layouts are deleted although another layout may use them, which the names of
	// the ttl strategy's and of the plugin's objects do not show: "delay.ttl",
	// "delay.plugin", or a queue of the ttl strategy, "delay.ttl.15m". They need to
	// be in the topology as well; see Live.Layout.
	Layouts []string
	// Inspector reads the management API (package topology/mgmt). Without it
	// Destroy does not know what is unacknowledged or on its way to a dead-letter
	// exchange, nor what else uses the layout: it refuses, or, with Force, deletes
	// the delay queues and keeps everything else that others may use.
	Inspector Inspector
	// Destinations deletes also what the topology describes and is no strategy's:
	// the destinations' queues with their dead-letter queues, and the file's own
	// exchanges, queues and bindings. What anything else is bound to stays, and a
	// dead-letter queue stays while its destination's queue does.
	Destinations bool
	// Force deletes delay queues with the messages that wait in them, goes on
	// without an Inspector, and deletes with Destinations what exists otherwise
	// than described.
	Force bool
	// Messages bounds what Force deletes: it refuses when more messages would go.
	// Nil is no bound for delay queues, and not one message, nor a queue that has
	// a consumer, for those of Destinations.
	Messages *int64
}

// Destroy deletes a layout: the delay queues that the topology describes, the
// exchanges before and between them, and the bindings of destinations for it.
// Configurations that differ may have the ttl strategy's layout in common, or the
// plugin's: it stays while the broker has a layout that the topology does not
// describe, unless DestroyOptions.Layouts names it. What layouts share (the delivery
// exchange, the parked queue, route queues) goes only when nothing else on the
// broker uses it; everything else only with DestroyOptions.Destinations. The report
// says what stayed, and why.
//
// It refuses before it touches anything: with a *NotEmptyError while messages
// wait, a *ConsumersError while consumers are attached to what would go, and
// ErrUnseen when it cannot know. Then it first takes away the way in and waits
// until every message that had entered has been counted, for 6 s where the counts
// are the management API's; if there is one, the way in is put back.
//
// A quorum queue is counted just before its deletion, because the broker has no
// deletion on condition for it. A message that is published straight into the
// queue in that millisecond is deleted with it, and reported as
// ErrMessagesDeleted. A queue that a message or a consumer came to meanwhile stays,
// and what it needs stays with it: the queue of its dead letters goes after it.
func Destroy(ctx context.Context, conn Conn, t Topology, opts DestroyOptions) (Report, error) {
	began := time.Now()
	d := newDestroyer(conn, t, opts)
	err := d.destroy(ctx)
	d.finish()
	d.report.Took = time.Since(began)
	return d.report, err
}

// MakeRemoval says what Destroy would do now. Its error is that of looking;
// whether Destroy would refuse is part of the answer.
func MakeRemoval(ctx context.Context, conn Conn, t Topology, opts DestroyOptions) (Removal, error) {
	d := newDestroyer(conn, t, opts)
	err := d.plan(ctx)
	return d.removal, err
}

// Counts of the management API are up to statsAge old.
const (
	statsAge   = 6 * time.Second
	countEvery = time.Second
)

// destroyer carries a Removal out.
type destroyer struct {
	conn    Conn
	t       Topology
	opts    DestroyOptions
	removal Removal
	report  Report
	results map[object]Result // of what was tried
}

func newDestroyer(conn Conn, t Topology, opts DestroyOptions) *destroyer {
	opts.Prefix = cmp.Or(opts.Prefix, DefaultPrefix)
	return &destroyer{conn: conn, t: t, opts: opts, results: map[object]Result{}}
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
		err = d.delete(ctx, order.DelayQueues)
	}
	if err != nil {
		return errors.Join(err, d.reopen(ctx, order.WayIn)) // what is left keeps its way out
	}
	if err := d.stages(ctx, order.Layout); err != nil {
		return err
	}
	// Somebody may have begun to use the rest.
	if err := d.plan(ctx); err != nil {
		return err
	}
	order = d.removal.Order()
	err = d.stages(ctx, order.Shared)
	if d.removal.Refusal() != nil {
		return errors.Join(err, d.removal.Refusal())
	}
	return errors.Join(err, d.stages(ctx, order.Declared))
}

// close takes the way in away and counts, until nothing can be on its way any
// more. Messages are then the error that they are before.
func (d *destroyer) close(ctx context.Context, order RemovalOrder) error {
	if err := d.delete(ctx, order.WayIn); err != nil {
		return err
	}
	if d.opts.Force || len(order.WayIn)+len(order.DelayQueues)+len(order.Layout[0])+len(order.Layout[1]) == 0 {
		return nil
	}
	for end := time.Now().Add(statsAge); time.Now().Before(end); {
		if err := sleep(ctx, countEvery); err != nil {
			return err
		}
		now, _, err := d.look(ctx)
		if err != nil {
			return err
		}
		if err := now.Refusal(); err != nil {
			return err
		}
	}
	return nil
}

// reopen puts the way in back. It ignores the end of the context, within reason:
// half of the bindings is worse than waiting.
func (d *destroyer) reopen(ctx context.Context, ways []RemovalStep) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	errs := sideBySide(d.conn, len(ways), func(s *session, i int) error {
		b := ways[i].Binding
		err := s.do(ctx, func(ch *amqp.Channel) error { return bind(ch, b, false) })
		if err == nil || isNotFound(err) {
			return nil
		}
		return &ObjectError{Kind: KindBinding, Name: b.String(), Op: "restore", Err: err}
	})
	for i, s := range ways {
		if errs[i] == nil {
			d.results[s.object()] = Result{State: Kept}
		}
	}
	return errors.Join(errs...)
}

// stages deletes stage by stage. After each, what something needs that stayed is
// left where it is.
func (d *destroyer) stages(ctx context.Context, stages [][]RemovalStep) error {
	var errs []error
	for _, steps := range stages {
		errs = append(errs, d.delete(ctx, d.removal.Going(steps)))
	}
	return errors.Join(errs...)
}

// delete deletes objects side by side.
func (d *destroyer) delete(ctx context.Context, steps []RemovalStep) error {
	done := make([]deletion, len(steps))
	sideBySide(d.conn, len(steps), func(s *session, i int) error {
		done[i] = deleteStep(ctx, s, steps[i])
		return nil
	})
	for i, s := range steps {
		d.results[s.object()] = done[i].Result
		if done[i].State != Deleted {
			d.removal.Keep(s, done[i].Reason)
		}
	}
	return errors.Join(failures(steps, done), came(done))
}

// finish makes the report: what was done, and of everything else what was found.
func (d *destroyer) finish() {
	for _, s := range d.removal.Steps {
		r, tried := d.results[s.object()]
		switch {
		case tried:
		case s.Action == Gone:
			r.State = Absent
		case s.Kind == KindBinding && d.results[exchangeNamed(s.Binding.Exchange)].State == Deleted:
			r.State = Deleted
		default:
			r = Result{State: Kept, Reason: s.Reason}
		}
		r.Kind, r.Name = s.Kind, s.Name
		d.report.Results = append(d.report.Results, r)
	}
}
