package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// DestroyOptions are the options of Destroy. The zero value is ready to use.
type DestroyOptions struct {
	// Force deletes queues with their messages, objects that exist with other
	// arguments, and exchanges that others have bound to.
	Force bool
	// Inspector, if set, is asked as well. The management API counts also what
	// is unacknowledged or on its way to a dead-letter exchange, up to 5 s late;
	// AMQP counts only what is ready, and at once. The higher number counts.
	Inspector Inspector
}

// QueueCount is how many messages a queue holds.
type QueueCount struct {
	Queue    string `json:"queue"`
	Messages int64  `json:"messages"`
	// Delay tells whether it is a delay queue.
	Delay bool `json:"delay"`
}

// ErrNotEmpty is wrapped by every *NotEmptyError.
var ErrNotEmpty = errors.New("queues hold messages")

// NotEmptyError says which queues of the topology hold messages, so that
// Destroy refused.
type NotEmptyError struct {
	Queues []QueueCount // those that are not empty
	Total  int64
}

func (e *NotEmptyError) Error() string {
	var delayed int64
	parts := make([]string, 0, maxListed+1)
	for i, q := range e.Queues {
		if q.Delay {
			delayed += q.Messages
		}
		if i < maxListed {
			parts = append(parts, fmt.Sprintf("%s %d", q.Queue, q.Messages))
		}
	}
	if more := len(e.Queues) - maxListed; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more queues", more))
	}
	return fmt.Sprintf("refused: %d messages in %d queues, %d of them waiting in delay queues (%s); let them drain, or force to delete them",
		e.Total, len(e.Queues), delayed, strings.Join(parts, ", "))
}

// Unwrap makes errors.Is(err, ErrNotEmpty) true.
func (e *NotEmptyError) Unwrap() error { return ErrNotEmpty }

// ErrMessagesDeleted is wrapped by the *ObjectError of a quorum queue that
// received a message between the last count and its deletion. Brokers cannot
// delete a quorum queue on condition that it is empty.
var ErrMessagesDeleted = errors.New("messages that arrived meanwhile were deleted with it")

// settleTime is how long Destroy waits between its last two counts, so that a
// message that was on its way from one queue to the next, and in neither count,
// has arrived.
const settleTime = 250 * time.Millisecond

// Destroy deletes what the topology describes, and nothing else. It refuses
// with a *NotEmptyError while a queue holds messages, and with a *ConflictError
// when an object is not the one described, unless forced.
//
// First it takes the bindings away, so that nothing new is routed, and counts
// again; if messages arrived in between it puts the bindings back. An exchange
// that others have bound to is kept, unless forced.
func Destroy(ctx context.Context, conn Conn, t Topology, opts DestroyOptions) (Report, error) {
	began := time.Now()
	d := &destroyer{conn: conn, t: t, opts: opts}
	err := d.destroy(ctx)
	d.report.Took = time.Since(began)
	return d.report, err
}

type destroyer struct {
	conn   Conn
	t      Topology
	opts   DestroyOptions
	live   Live // over AMQP, with the higher counts
	read   Live // by the Inspector, if any
	report Report
}

func (d *destroyer) destroy(ctx context.Context) error {
	if err := d.inspect(ctx); err != nil {
		return err
	}
	if !d.opts.Force {
		if err := conflictErrors(Compare(d.t, d.live)); err != nil {
			return d.keep(err)
		}
		if err := notEmpty(d.t, d.live); err != nil {
			return d.keep(err)
		}
	}
	if err := d.unbind(ctx); err != nil {
		return errors.Join(err, d.rebind(ctx), d.keep(nil))
	}
	if !d.opts.Force {
		if err := d.recount(ctx); err != nil {
			return errors.Join(err, d.rebind(ctx), d.keep(nil))
		}
	}
	for _, b := range d.t.Bindings {
		d.result(KindBinding, b.String(), Deleted, 0)
	}
	return errors.Join(d.deleteQueues(ctx), d.deleteExchanges(ctx))
}

func (d *destroyer) unbind(ctx context.Context) error {
	errs := sideBySide(d.conn, len(d.t.Bindings), func(s *session, i int) error {
		b := d.t.Bindings[i]
		err := s.do(ctx, func(ch *amqp.Channel) error { return unbind(ch, b) })
		if err == nil || isNotFound(err) {
			return nil
		}
		return &ObjectError{Kind: KindBinding, Name: b.String(), Op: "delete", Err: err}
	})
	return cmp.Or(errs...)
}

func (d *destroyer) result(kind Kind, name string, s State, messages int64) {
	d.report.Results = append(d.report.Results, Result{Kind: kind, Name: name, State: s, Messages: messages})
}

// keep reports that everything is still there.
func (d *destroyer) keep(err error) error {
	for _, b := range d.t.Bindings {
		d.result(KindBinding, b.String(), Kept, 0)
	}
	for _, q := range d.t.Queues {
		s := Absent
		if _, ok := d.live.Queues[q.Name]; ok {
			s = Kept
		}
		d.result(KindQueue, q.Name, s, 0)
	}
	for _, e := range d.t.Exchanges {
		s := Absent
		if _, ok := d.live.Exchanges[e.Name]; ok {
			s = Kept
		}
		d.result(KindExchange, e.Name, s, 0)
	}
	return err
}

func (d *destroyer) inspect(ctx context.Context) error {
	live, err := NewAMQPInspector(d.conn).Inspect(ctx, d.t)
	if err != nil {
		return fmt.Errorf("destroy: %w", err)
	}
	d.live = live
	if d.opts.Inspector == nil {
		return nil
	}
	if d.read, err = d.opts.Inspector.Inspect(ctx, d.t); err != nil {
		return fmt.Errorf("destroy: %w", err)
	}
	for name, q := range live.Queues {
		q.Messages = max(q.Messages, d.read.Queues[name].Messages)
		live.Queues[name] = q
	}
	return nil
}

func notEmpty(t Topology, live Live) error {
	e := &NotEmptyError{}
	for _, q := range t.Queues {
		if n := live.Queues[q.Name].Messages; n > 0 {
			e.Queues = append(e.Queues, QueueCount{Queue: q.Name, Messages: n, Delay: q.IsDelay()})
			e.Total += n
		}
	}
	if e.Total == 0 {
		return nil
	}
	return e
}

// recount counts twice after the bindings are gone.
func (d *destroyer) recount(ctx context.Context) error {
	for round := range 2 {
		if round > 0 {
			timer := time.NewTimer(settleTime)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return context.Cause(ctx)
			}
		}
		names := slices.Sorted(maps.Keys(d.live.Queues))
		counts := make([]int64, len(names))
		errs := sideBySide(d.conn, len(names), func(s *session, i int) (err error) {
			if counts[i], err = count(ctx, s, names[i]); err != nil {
				return &ObjectError{Kind: KindQueue, Name: names[i], Op: "inspect", Err: err}
			}
			return nil
		})
		if err := cmp.Or(errs...); err != nil {
			return err
		}
		for i, name := range names {
			q := d.live.Queues[name]
			q.Messages = counts[i]
			d.live.Queues[name] = q
		}
		if err := notEmpty(d.t, d.live); err != nil {
			return err
		}
	}
	return nil
}

// count is how many messages are ready in a queue, 0 if there is none.
func count(ctx context.Context, s *session, queue string) (n int64, err error) {
	err = s.do(ctx, func(ch *amqp.Channel) error {
		state, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		n = int64(state.Messages)
		return err
	})
	if isNotFound(err) {
		return 0, nil
	}
	return n, err
}

// rebind puts the bindings back whose both ends exist. It ignores the end of
// the context, within reason: half of the bindings is worse than waiting.
func (d *destroyer) rebind(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	errs := sideBySide(d.conn, len(d.t.Bindings), func(s *session, i int) error {
		b := d.t.Bindings[i]
		err := s.do(ctx, func(ch *amqp.Channel) error { return bind(ch, b, false) })
		if err == nil || isNotFound(err) {
			return nil
		}
		return &ObjectError{Kind: KindBinding, Name: b.String(), Op: "restore", Err: err}
	})
	return errors.Join(errs...)
}

func (d *destroyer) deleteQueues(ctx context.Context) error {
	var errs []error
	filled := &NotEmptyError{}
	messages, gone := make([]int64, len(d.t.Queues)), make([]bool, len(d.t.Queues))
	failures := sideBySide(d.conn, len(d.t.Queues), func(s *session, i int) (err error) {
		if q := d.t.Queues[i]; d.there(q) {
			messages[i], gone[i], err = d.deleteQueue(ctx, s, q)
		}
		return err
	})
	for i, q := range d.t.Queues {
		n, deleted, err := messages[i], gone[i], failures[i]
		switch {
		case !d.there(q):
			d.result(KindQueue, q.Name, Absent, 0)
		case err != nil:
			d.result(KindQueue, q.Name, Failed, 0)
			errs = append(errs, &ObjectError{Kind: KindQueue, Name: q.Name, Op: "delete", Err: err})
		case !deleted:
			d.result(KindQueue, q.Name, Kept, 0)
			filled.Queues = append(filled.Queues, QueueCount{Queue: q.Name, Messages: n, Delay: q.IsDelay()})
			filled.Total += n
		default:
			d.result(KindQueue, q.Name, Deleted, n)
			if n > 0 && !d.opts.Force {
				errs = append(errs, &ObjectError{Kind: KindQueue, Name: q.Name, Op: "delete", Err: fmt.Errorf("%d %w", n, ErrMessagesDeleted)})
			}
		}
	}
	if len(filled.Queues) > 0 {
		errs = append(errs, filled)
	}
	return errors.Join(errs...)
}

func (d *destroyer) there(q Queue) bool {
	_, ok := d.live.Queues[q.Name]
	return ok
}

// deleteQueue deletes a queue if it is empty, or forced with its messages. A
// classic queue is deleted on that condition by the broker. For a quorum queue
// the broker refuses the condition (by closing the connection), so it is
// counted just before; n then tells what was deleted all the same.
func (d *destroyer) deleteQueue(ctx context.Context, s *session, q Queue) (n int64, deleted bool, err error) {
	ifEmpty := !d.opts.Force && q.Type == Classic
	if !d.opts.Force && !ifEmpty {
		if n, err = count(ctx, s, q.Name); err != nil || n > 0 {
			return n, false, err
		}
	}
	err = s.do(ctx, func(ch *amqp.Channel) error {
		purged, err := ch.QueueDelete(q.Name, false, ifEmpty, false)
		n = int64(purged)
		return err
	})
	var e *amqp.Error
	if ifEmpty && errors.As(err, &e) && e.Code == amqp.PreconditionFailed {
		n, err = count(ctx, s, q.Name)
		return max(n, 1), false, err
	}
	return n, err == nil, err
}

// deleteExchanges deletes the exchanges, the ones that others use excepted: two
// configurations share the delivery exchange, and destinations may be bound
// that this topology does not know.
func (d *destroyer) deleteExchanges(ctx context.Context) error {
	fed := map[string]bool{}
	own := map[string]bool{}
	for _, b := range d.t.Bindings {
		own[bindingKey(b)] = true
	}
	for _, b := range d.read.Bindings {
		if b.ToExchange != "" && !own[bindingKey(b)] {
			fed[b.ToExchange] = true
		}
	}
	there := func(x Exchange) bool {
		_, ok := d.live.Exchanges[x.Name]
		return ok
	}
	kept := func(x Exchange) bool { return fed[x.Name] && !d.opts.Force }
	failures := sideBySide(d.conn, len(d.t.Exchanges), func(s *session, i int) error {
		x := d.t.Exchanges[i]
		if !there(x) || kept(x) {
			return nil
		}
		return s.do(ctx, func(ch *amqp.Channel) error { return ch.ExchangeDelete(x.Name, !d.opts.Force, false) })
	})
	var errs []error
	for i, x := range d.t.Exchanges {
		err := failures[i]
		var e *amqp.Error
		switch {
		case !there(x):
			d.result(KindExchange, x.Name, Absent, 0)
		case kept(x):
			d.result(KindExchange, x.Name, Kept, 0)
		case err == nil:
			d.result(KindExchange, x.Name, Deleted, 0)
		case errors.As(err, &e) && e.Code == amqp.PreconditionFailed:
			d.result(KindExchange, x.Name, Kept, 0)
		default:
			d.result(KindExchange, x.Name, Failed, 0)
			errs = append(errs, &ObjectError{Kind: KindExchange, Name: x.Name, Op: "delete", Err: err})
		}
	}
	return errors.Join(errs...)
}
