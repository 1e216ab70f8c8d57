package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// QueueCount is what is in a queue, or in the plugin's exchange.
type QueueCount struct {
	Queue     string `json:"queue"`
	Messages  int64  `json:"messages"`
	Consumers int64  `json:"consumers,omitempty"`
	// Delay tells whether the messages wait there for their delay.
	Delay bool `json:"delay"`
}

// ErrNotEmpty is wrapped by every *NotEmptyError.
var ErrNotEmpty = errors.New("queues hold messages")

// NotEmptyError says which queues hold messages, so that Destroy refused.
type NotEmptyError struct {
	Queues []QueueCount // those that are not empty
	Total  int64
	Bound  *int64 // DestroyOptions.Messages

	refused bool
}

func (e *NotEmptyError) add(c QueueCount, refused bool) {
	e.Queues = append(e.Queues, c)
	e.Total += c.Messages
	e.refused = e.refused || refused
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
	advice := "let them drain, or force to delete them"
	if e.Bound != nil {
		advice = fmt.Sprintf("at most %d may be deleted", *e.Bound)
	}
	return fmt.Sprintf("refused: %d messages in %d queues, %d of them waiting in delay queues (%s); %s",
		e.Total, len(e.Queues), delayed, strings.Join(parts, ", "), advice)
}

// Unwrap makes errors.Is(err, ErrNotEmpty) true.
func (e *NotEmptyError) Unwrap() error { return ErrNotEmpty }

// ErrMessagesDeleted is wrapped by the *ObjectError of a quorum queue that
// received a message between the last count and its deletion. Brokers cannot
// delete a quorum queue on condition that it is empty.
var ErrMessagesDeleted = errors.New("messages that arrived meanwhile were deleted with it")

// Destroy deletes a layout: the delay queues that the topology describes, the
// exchanges before and between them, and the bindings of destinations for it.
// Configurations that differ may have the ttl strategy's layout in common, or the
// plugin's: it stays while the broker has a layout that the topology does not
// describe, unless DestroyOptions.Layouts names it. What layouts share (the delivery exchange, the parked queue, route queues) goes
// only when nothing else on the broker uses it; everything else only with
// DestroyOptions.Destinations. The report says what stayed, and why.
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
// ErrMessagesDeleted.
func Destroy(ctx context.Context, conn Conn, t Topology, opts DestroyOptions) (Report, error) {
	began := time.Now()
	d := newDestroyer(conn, t, opts)
	err := d.destroy(ctx)
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

// Wipe deletes everything that the topology describes, with its messages and
// without looking who uses it: for what a test or a demonstration made for itself.
func Wipe(ctx context.Context, conn Conn, t Topology) error {
	errs := sideBySide(conn, len(t.Queues), func(s *session, i int) error {
		_, err := deleteQueue(ctx, s, t.Queues[i].Name, false, false)
		return objectFailed(KindQueue, t.Queues[i].Name, err)
	})
	return errors.Join(append(errs, sideBySide(conn, len(t.Exchanges), func(s *session, i int) error {
		return objectFailed(KindExchange, t.Exchanges[i].Name, deleteExchange(ctx, s, t.Exchanges[i].Name, false))
	})...)...)
}

func objectFailed(kind Kind, name string, err error) error {
	if err == nil || isNotFound(err) {
		return nil
	}
	return &ObjectError{Kind: kind, Name: name, Op: "delete", Err: err}
}

func deleteQueue(ctx context.Context, s *session, name string, ifUnused, ifEmpty bool) (messages int64, err error) {
	err = s.do(ctx, func(ch *amqp.Channel) error {
		n, err := ch.QueueDelete(name, ifUnused, ifEmpty, false)
		messages = int64(n)
		return err
	})
	return messages, err
}

func deleteExchange(ctx context.Context, s *session, name string, ifUnused bool) error {
	return s.do(ctx, func(ch *amqp.Channel) error { return ch.ExchangeDelete(name, ifUnused, false) })
}

// Counts of the management API are up to statsAge old.
const (
	statsAge   = 6 * time.Second
	countEvery = time.Second
)

type destroyer struct {
	conn    Conn
	t       Topology
	opts    DestroyOptions
	removal Removal
	report  Report
	states  map[string]Result // by kind and name, of what was done
}

func newDestroyer(conn Conn, t Topology, opts DestroyOptions) *destroyer {
	opts.Prefix = cmp.Or(opts.Prefix, DefaultPrefix)
	return &destroyer{conn: conn, t: t, opts: opts, states: map[string]Result{}}
}

func (d *destroyer) destroy(ctx context.Context) error {
	defer d.finish()
	if err := d.plan(ctx); err != nil {
		return err
	}
	if err := d.removal.Refusal(); err != nil {
		return err
	}
	if err := d.close(ctx); err != nil {
		return errors.Join(err, d.reopen(ctx))
	}
	if err := d.delete(ctx, of(KindQueue, ownPart)); err != nil {
		return errors.Join(err, d.reopen(ctx)) // what is left keeps its way out
	}
	err := errors.Join(
		d.unbind(ctx, func(s RemovalStep) bool { return s.part == ownPart && !d.wayIn(s) && !d.plugins(s) }),
		d.delete(ctx, of(KindExchange, ownPart)),
		d.unbind(ctx, func(s RemovalStep) bool { return s.part == leadPart }),
	)
	if err != nil {
		return err
	}
	// Somebody may have begun to use the rest.
	if err := d.plan(ctx); err != nil {
		return err
	}
	err = errors.Join(
		d.unbind(ctx, func(s RemovalStep) bool { return s.part == declaredPart }),
		// The parked exchange is the alternate of the one, and bound to the other.
		d.delete(ctx, func(s RemovalStep) bool { return of(KindExchange, sharedPart)(s) && !d.parked(s) }),
		d.delete(ctx, of(KindQueue, sharedPart)), d.delete(ctx, d.parked),
	)
	if d.removal.Refusal() != nil {
		return errors.Join(err, d.removal.Refusal())
	}
	return errors.Join(err, d.delete(ctx, of(KindQueue, declaredPart)), d.delete(ctx, of(KindExchange, declaredPart)))
}

func of(k Kind, p part) func(RemovalStep) bool {
	return func(s RemovalStep) bool { return s.Kind == k && s.part == p }
}

// parked tells whether it is the exchange of the parked queue.
func (d *destroyer) parked(s RemovalStep) bool {
	return s.Kind == KindExchange && s.Name == ParkedQueue(d.opts.Prefix)
}

// plan looks at the broker and decides. What the management API counts and AMQP
// does not may be over since, so that is looked at again before it counts.
func (d *destroyer) plan(ctx context.Context) error {
	for deadline := time.Now().Add(statsAge); ; {
		live, stale, err := d.look(ctx)
		if err != nil {
			return fmt.Errorf("destroy: %w", err)
		}
		d.removal = planRemoval(d.t, live, d.opts)
		if !stale || d.removal.Refusal() == nil || !errors.Is(d.removal.Refusal(), ErrNotEmpty) || time.Now().After(deadline) {
			return nil
		}
		if err := pause(ctx, countEvery); err != nil {
			return err
		}
	}
}

// look reads the broker. AMQP knows ready messages and consumers as they are
// now, the management API all messages as they were some seconds ago; stale tells
// that only the latter saw some.
func (d *destroyer) look(ctx context.Context) (live Live, stale bool, err error) {
	if d.opts.Inspector == nil {
		live, err = NewAMQPInspector(d.conn).Inspect(ctx, d.t)
		return live, false, err
	}
	if live, err = d.opts.Inspector.Inspect(ctx, d.t); err != nil {
		return Live{}, false, err
	}
	stale = true
	now := make([]*LiveQueue, len(d.t.Queues))
	errs := sideBySide(d.conn, len(now), func(s *session, i int) (err error) {
		if _, there := live.Queues[d.t.Queues[i].Name]; there && d.concerns(d.t.Queues[i].Name) {
			now[i], err = lookAt(ctx, s, d.t.Queues[i].Name)
		}
		return objectFailed(KindQueue, d.t.Queues[i].Name, err)
	})
	for i, q := range d.t.Queues {
		have, there := live.Queues[q.Name]
		if !there || now[i] == nil {
			continue
		}
		have.Consumers = now[i].Consumers
		have.Messages = max(have.Messages, now[i].Messages)
		live.Queues[q.Name] = have
		stale = stale && now[i].Messages == 0
	}
	return live, stale, cmp.Or(errs...)
}

// concerns tells whether a queue might be deleted at all.
func (d *destroyer) concerns(queue string) bool {
	return d.opts.Destinations || Reserved(d.opts.Prefix, queue)
}

// lookAt counts what is ready in a queue, and its consumers; nil if there is none.
func lookAt(ctx context.Context, s *session, queue string) (*LiveQueue, error) {
	var q LiveQueue
	err := s.do(ctx, func(ch *amqp.Channel) error {
		state, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		q.Messages, q.Consumers = int64(state.Messages), int64(state.Consumers)
		return err
	})
	if isNotFound(err) {
		return nil, nil
	}
	return &q, err
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// plugins tells whether it is the binding by which the plugin's exchange delivers.
func (d *destroyer) plugins(s RemovalStep) bool {
	e, _ := d.t.Exchange(s.binding.Exchange)
	return e.Kind == kindDelayed
}

// wayIn tells whether messages enter the layout by a binding. The exchanges
// between delay queues have an alternate exchange, those before them have none;
// what the plugin's exchange holds needs its binding.
func (d *destroyer) wayIn(s RemovalStep) bool {
	if s.Kind != KindBinding || s.part != ownPart || s.binding.Queue == "" {
		return false
	}
	e, ok := d.t.Exchange(s.binding.Exchange)
	return ok && e.AlternateExchange == "" && e.Kind != kindDelayed
}

// close takes the way in away and counts, until nothing can be on its way any
// more. Messages are then the error that they are before.
func (d *destroyer) close(ctx context.Context) error {
	if err := d.unbind(ctx, d.wayIn); err != nil {
		return err
	}
	if d.opts.Force || !slices.ContainsFunc(d.removal.Steps, func(s RemovalStep) bool { return s.part == ownPart && s.Action == Delete }) {
		return nil
	}
	for end := time.Now().Add(statsAge); time.Now().Before(end); {
		if err := pause(ctx, countEvery); err != nil {
			return err
		}
		live, _, err := d.look(ctx)
		if err != nil {
			return fmt.Errorf("destroy: %w", err)
		}
		if err := planRemoval(d.t, live, d.opts).Refusal(); err != nil {
			return err
		}
	}
	return nil
}

// reopen puts the way in back. It ignores the end of the context, within reason:
// half of the bindings is worse than waiting.
func (d *destroyer) reopen(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	steps := d.chosen(d.wayIn)
	errs := sideBySide(d.conn, len(steps), func(s *session, i int) error {
		b := steps[i].binding
		err := s.do(ctx, func(ch *amqp.Channel) error { return bind(ch, b, false) })
		if err == nil || isNotFound(err) {
			return nil
		}
		return &ObjectError{Kind: KindBinding, Name: b.String(), Op: "restore", Err: err}
	})
	for i, s := range steps {
		if errs[i] == nil {
			d.done(s, Result{State: Kept})
		}
	}
	return errors.Join(errs...)
}

// chosen are the steps that delete, of those that are asked for.
func (d *destroyer) chosen(which func(RemovalStep) bool) []RemovalStep {
	var out []RemovalStep
	for _, s := range d.removal.Steps {
		if s.Action == Delete && which(s) {
			out = append(out, s)
		}
	}
	return out
}

func (d *destroyer) done(s RemovalStep, r Result) {
	r.Kind, r.Name = s.Kind, s.Name
	d.states[s.key()] = r
}

func (d *destroyer) unbind(ctx context.Context, which func(RemovalStep) bool) error {
	steps := d.chosen(func(s RemovalStep) bool { return s.Kind == KindBinding && which(s) })
	errs := sideBySide(d.conn, len(steps), func(s *session, i int) error {
		b := steps[i].binding
		return objectFailed(KindBinding, b.String(), s.do(ctx, func(ch *amqp.Channel) error { return unbind(ch, b) }))
	})
	for i, s := range steps {
		if errs[i] == nil {
			d.done(s, Result{State: Deleted})
		} else {
			d.done(s, Result{State: Failed})
		}
	}
	return errors.Join(errs...)
}

// delete deletes queues and exchanges.
func (d *destroyer) delete(ctx context.Context, which func(RemovalStep) bool) error {
	steps := d.chosen(which)
	results := make([]deletion, len(steps))
	sideBySide(d.conn, len(steps), func(s *session, i int) error {
		if steps[i].Kind == KindQueue {
			results[i] = d.deleteQueue(ctx, s, steps[i])
		} else {
			results[i] = d.deleteExchange(ctx, s, steps[i])
		}
		return nil
	})
	filled, busy := &NotEmptyError{}, &ConsumersError{}
	var errs []error
	for i, s := range steps {
		r := results[i]
		d.done(s, r.Result)
		c := QueueCount{Queue: s.Name, Messages: r.found.Messages, Consumers: r.found.Consumers, Delay: s.part == ownPart}
		switch {
		case r.err != nil:
			errs = append(errs, &ObjectError{Kind: s.Kind, Name: s.Name, Op: "delete", Err: r.err})
		case r.State == Kept && c.Messages > 0:
			filled.add(c, true)
		case r.State == Kept && c.Consumers > 0:
			busy.Queues = append(busy.Queues, c)
		}
	}
	if filled.refused {
		errs = append(errs, filled)
	}
	if len(busy.Queues) > 0 {
		errs = append(errs, busy)
	}
	return errors.Join(errs...)
}

// deletion is what became of one object.
type deletion struct {
	Result
	found LiveQueue // what keeps a queue
	err   error
}

func state(s State) deletion { return deletion{Result: Result{State: s}} }

func keptBy(q LiveQueue) deletion {
	reason := counted(q.Messages, "message") + " came meanwhile"
	if q.Messages == 0 {
		reason = counted(q.Consumers, "consumer") + " came meanwhile"
	}
	return deletion{Result: Result{State: Kept, Reason: reason}, found: q}
}

func failed(err error) deletion { return deletion{Result: Result{State: Failed}, err: err} }

// forced tells whether a queue goes with what is in it.
func (d *destroyer) forced(s RemovalStep) bool {
	return d.opts.Force && (s.part == ownPart || s.part == declaredPart && d.opts.Messages != nil)
}

// deleteQueue deletes a queue that is empty and has no consumer, or is forced. A
// classic queue is deleted on that condition by the broker. For a quorum queue
// the broker refuses the condition (by closing the connection), so it is looked
// at just before.
func (d *destroyer) deleteQueue(ctx context.Context, s *session, step RemovalStep) deletion {
	careful := !d.forced(step)
	if careful {
		q, err := lookAt(ctx, s, step.Name)
		switch {
		case err != nil:
			return failed(err)
		case q == nil:
			return state(Deleted)
		case q.Messages > 0 || q.Consumers > 0:
			return keptBy(*q)
		}
	}
	onCondition := careful && step.queue.Type == Classic
	n, err := deleteQueue(ctx, s, step.Name, onCondition, onCondition)
	switch {
	case onCondition && isCode(err, amqp.PreconditionFailed):
		if q, err := lookAt(ctx, s, step.Name); err == nil && q != nil && q.Messages+q.Consumers > 0 {
			return keptBy(*q)
		}
		return failed(err)
	case isNotFound(err):
		return state(Deleted)
	case err != nil:
		return failed(err)
	}
	out := deletion{Result: Result{State: Deleted, Messages: n}}
	if careful && n > 0 {
		out.err = fmt.Errorf("%d %w", n, ErrMessagesDeleted)
	}
	return out
}

// deleteExchange deletes an exchange unless somebody has bound to it meanwhile.
// The plugin's goes with its binding, by which it delivers up to the end.
func (d *destroyer) deleteExchange(ctx context.Context, s *session, step RemovalStep) deletion {
	ifUnused := step.exchange.Kind != kindDelayed && (!d.opts.Force || step.part != ownPart)
	err := deleteExchange(ctx, s, step.Name, ifUnused)
	switch {
	case ifUnused && isCode(err, amqp.PreconditionFailed):
		return deletion{Result: Result{State: Kept, Reason: "somebody bound to it meanwhile"}}
	case err == nil || isNotFound(err):
		return state(Deleted)
	}
	return failed(err)
}

// finish makes the report: what was done, and of everything else what was found.
func (d *destroyer) finish() {
	for _, s := range d.removal.Steps {
		r, ok := d.states[s.key()]
		switch {
		case ok:
		case s.Action == Gone:
			r = Result{Kind: s.Kind, Name: s.Name, State: Absent}
		case s.Kind == KindBinding && d.states[objectKey(KindExchange, s.binding.Exchange)].State == Deleted:
			r = Result{Kind: s.Kind, Name: s.Name, State: Deleted}
		default:
			r = Result{Kind: s.Kind, Name: s.Name, State: Kept, Reason: s.Reason}
		}
		d.report.Results = append(d.report.Results, r)
	}
}
