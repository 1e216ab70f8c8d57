package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ApplyOptions are the options of Apply. The zero value is ready to use.
type ApplyOptions struct {
	// Inspector, if set, is asked before: Apply then touches nothing when
	// something is in conflict or a policy would break a delay queue. It is asked
	// again after, so that what is in force is what was described. Policies are
	// seen only by an Inspector that reads them (package topology/mgmt).
	Inspector Inspector
	// Force applies in spite of such policies. Conflicts stay errors.
	Force bool
	// Prefix begins the name of the lock, see Apply. Default DefaultPrefix.
	Prefix string
	// Unlocked, if set, is told when bindings are made without the lock, and why.
	Unlocked func(error)

	locked bool // the caller has the lock
}

const (
	// declareTries bounds the tries of one declaration that failed for a reason
	// that passes, such as two processes creating one quorum queue.
	declareTries = 6
	firstPause   = 50 * time.Millisecond
)

// declaration is something to declare.
type declaration struct {
	kind  Kind
	name  string
	table amqp.Table
	needs []string // names of objects that must exist before
	// exchangeType is the type of an exchange.
	exchangeType string
	declare      func(ch *amqp.Channel, noWait bool) error
}

// stages are the objects in the order of declaration; those of one stage do not
// depend on each other.
func stages(t Topology) [][]declaration {
	var exchanges, queues, bindings []declaration
	for _, e := range t.Exchanges {
		exchanges = append(exchanges, declaration{
			kind: KindExchange, name: e.Name, table: e.Table(), exchangeType: e.Kind,
			declare: func(ch *amqp.Channel, noWait bool) error { return declareExchange(ch, e, noWait) },
		})
	}
	for _, q := range t.Queues {
		queues = append(queues, declaration{
			kind: KindQueue, name: q.Name, table: q.Table(),
			declare: func(ch *amqp.Channel, noWait bool) error { return declareQueue(ch, q, noWait) },
		})
	}
	for _, b := range t.Bindings {
		bindings = append(bindings, declaration{
			kind: KindBinding, name: b.String(), needs: []string{b.Exchange, b.Queue + b.ToExchange},
			declare: func(ch *amqp.Channel, noWait bool) error { return bind(ch, b, noWait) },
		})
	}
	return [][]declaration{exchanges, queues, bindings}
}

// Apply declares what the topology describes: exchanges, then queues, then
// bindings. It is idempotent, many processes may run it at once, and it deletes
// nothing. What is on the broker already stays untouched; if it differs, that
// is an error.
//
// Before RabbitMQ 4.3 it binds under a lock, the exclusive queue LockQueue, so that
// when it returns the broker routes by every binding, whoever made it (see
// LateBindings). A connection has the lock once: run one Apply at a time on it.
// Without the right to configure that queue, or after waiting for another for 15 s,
// it binds all the same.
//
// Errors, joined when there are several: *ValidationError, *PolicyError,
// *ConflictError, *ObjectError, or the context's. The Report says what exists
// now, also with an error. The bindings are not tried when a queue or an
// exchange failed.
func Apply(ctx context.Context, conn Conn, want Topology, opts ApplyOptions) (Report, error) {
	began := time.Now()
	opts.Prefix = cmp.Or(opts.Prefix, DefaultPrefix)
	a := &applier{conn: conn, names: map[string]bool{}}
	a.stages = stages(want)
	for _, stage := range a.stages {
		for _, o := range stage {
			a.report.Results = append(a.report.Results, Result{Kind: o.kind, Name: o.name, State: Untried})
			a.names[o.name] = true
		}
	}
	err := a.apply(ctx, want, opts)
	a.report.Took = time.Since(began)
	return a.report, err
}

type applier struct {
	conn   Conn
	stages [][]declaration
	names  map[string]bool // of everything to be declared
	report Report
}

func (a *applier) apply(ctx context.Context, want Topology, opts ApplyOptions) error {
	described := want
	described.Destinations = nil // nothing is declared for them
	if err := described.Validate(AllowUndeclared()); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	if opts.Inspector != nil {
		if err := a.inspect(ctx, want, opts); err != nil {
			return err
		}
	}
	first := 0
	for _, stage := range a.stages {
		results := a.report.Results[first : first+len(stage)]
		first += len(stage)
		if err := a.declareAlone(ctx, stage, results, want, opts); err != nil {
			return err
		}
	}
	if opts.Inspector == nil {
		return nil
	}
	for i := range a.report.Results {
		r := &a.report.Results[i]
		switch a.report.Plan.Steps[i].Action {
		case Create:
			r.State = Created
		case Same:
			r.State = Existed
		case Conflict, Unverified:
		}
	}
	return a.readBack(ctx, want, opts)
}

// inspect refuses before anything is touched.
func (a *applier) inspect(ctx context.Context, want Topology, opts ApplyOptions) error {
	plan, err := MakePlan(ctx, want, opts.Inspector)
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	a.report.Plan = &plan
	if err := conflictErrors(plan); err != nil {
		return err
	}
	if len(plan.Warnings) > 0 {
		if !opts.Force {
			return &PolicyError{Warnings: plan.Warnings}
		}
		a.report.Warnings = plan.Warnings
	}
	return nil
}

func conflictErrors(p Plan) error {
	var errs []error
	for _, s := range p.Conflicts() {
		for _, m := range s.Mismatches {
			errs = append(errs, &ConflictError{Kind: s.Kind, Name: s.Name, Argument: m.Argument, Want: m.Want, Have: m.Have})
		}
	}
	return errors.Join(errs...)
}

// readBack checks that what is in force is what was described.
func (a *applier) readBack(ctx context.Context, want Topology, opts ApplyOptions) error {
	plan, err := MakePlan(ctx, want, opts.Inspector)
	if err != nil {
		return fmt.Errorf("apply: everything is declared, reading it back failed: %w", err)
	}
	if err := conflictErrors(plan); err != nil {
		return fmt.Errorf("apply: read back: %w", err)
	}
	for _, s := range plan.Steps {
		if s.Action == Create {
			return &ObjectError{Kind: s.Kind, Name: s.Name, Op: "declare", Err: errVanished}
		}
	}
	if len(plan.Warnings) > 0 && !opts.Force {
		return fmt.Errorf("apply: everything is declared, but: %w", &PolicyError{Warnings: plan.Warnings})
	}
	return nil
}

var errVanished = errors.New("it was declared and is gone; another process deletes it")

// declareAlone declares one stage, bindings of topic exchanges under the lock.
func (a *applier) declareAlone(ctx context.Context, stage []declaration, results []Result, want Topology, opts ApplyOptions) error {
	if !opts.locked && len(stage) > 0 && stage[0].kind == KindBinding && bindsTopics(want) {
		unlock, err := lock(ctx, a.conn, opts)
		if err != nil {
			return err
		}
		defer unlock()
	}
	return a.declare(ctx, stage, results)
}

// bindsTopics tells whether a binding's exchange is a topic exchange or not known.
func bindsTopics(t Topology) bool {
	other := map[string]bool{}
	for _, e := range t.Exchanges {
		other[e.Name] = e.Kind != "topic"
	}
	return slices.ContainsFunc(t.Bindings, func(b Binding) bool { return !other[b.Exchange] })
}

// declare runs one stage: pipelined, and if that fails one by one, so that the
// error names the object.
func (a *applier) declare(ctx context.Context, stage []declaration, results []Result) error {
	reason := a.pipelined(ctx, stage)
	if reason == nil {
		for i := range results {
			results[i].State = Declared
		}
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		setStates(results, Unknown)
		return err
	}
	s := &session{conn: a.conn}
	defer s.close()
	var errs []error
	for i, o := range stage {
		err := a.declareOne(ctx, s, o)
		switch {
		case err == nil:
			results[i].State = Declared
		case context.Cause(ctx) != nil:
			setStates(results[i:], Unknown)
			return errors.Join(append(errs, context.Cause(ctx))...)
		case isConnectionLost(err):
			setStates(results[i:], Unknown)
			return errors.Join(append(errs, a.connectionLost(stage, results, reason, err))...)
		default:
			results[i].State = Failed
			errs = append(errs, objectError(o.kind, o.name, "declare", o.table, err))
		}
	}
	return errors.Join(errs...)
}

func setStates(results []Result, s State) {
	for i := range results {
		results[i].State = s
	}
}

// pipelined declares without waiting for each answer; a last operation with an
// answer tells that all went well.
func (a *applier) pipelined(ctx context.Context, stage []declaration) error {
	errs := make([]error, len(stage)) // of a run, at its beginning
	onChannels(a.conn, len(stage), worth(len(stage)), func(s *session, from, to int) {
		errs[from] = s.do(ctx, func(ch *amqp.Channel) error { return pipeline(ch, stage[from:to]) })
	})
	return telling(errs)
}

// telling is the first refusal, else the first loss of the connection: the one may
// have been the reason of the other.
func telling(errs []error) error {
	for _, err := range errs {
		if err != nil && !isConnectionLost(err) {
			return err
		}
	}
	return cmp.Or(errs...)
}

func pipeline(ch *amqp.Channel, part []declaration) error {
	return fenced(ch, func() error {
		for _, o := range part {
			if err := o.declare(ch, true); err != nil {
				return err
			}
		}
		return ch.Qos(0, 0, false) // answered after everything before it
	})
}

// fenced runs operations without an answer and a last one with, and gives the
// broker's reason when one of them closed the channel.
func fenced(ch *amqp.Channel, ops func() error) error {
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	err := ops()
	if err != nil && ch.IsClosed() {
		if reason := <-closed; reason != nil {
			return reason
		}
	}
	return err
}

// declareOne declares with an answer, again if the reason may pass.
func (a *applier) declareOne(ctx context.Context, s *session, o declaration) error {
	pause := firstPause
	for try := 1; ; try++ {
		err := s.do(ctx, func(ch *amqp.Channel) error { return o.declare(ch, false) })
		if err == nil || try == declareTries || !a.mayPass(o, err) {
			return err
		}
		if err := sleep(ctx, pause/2+rand.N(pause)); err != nil {
			return err
		}
		pause *= 2
	}
}

// mayPass tells whether a refusal may be over soon: a timeout of the broker's
// metadata store or of a queue's leader, or an object that is missing although
// it belongs to this topology, because another process is making it.
func (a *applier) mayPass(o declaration, err error) bool {
	var e *amqp.Error
	if !errors.As(err, &e) {
		return false
	}
	if _, conflict := parseInequivalent(err, o.table); conflict {
		return false
	}
	switch e.Code {
	case amqp.NotFound:
		for _, name := range o.needs {
			if name != "" && !a.names[name] && !strings.HasPrefix(name, "amq.") {
				return false
			}
		}
		return true
	case amqp.ResourceLocked, amqp.PreconditionFailed:
		return strings.Contains(e.Reason, "timeout") || strings.Contains(e.Reason, "timed out")
	}
	return false
}

// isConnectionLost tells an error of the whole connection, after which no
// channel can be opened, from one of a channel.
func isConnectionLost(err error) bool {
	var e *amqp.Error
	if !errors.As(err, &e) {
		return true // of the network
	}
	switch e.Code {
	case amqp.ConnectionForced, amqp.FrameError, amqp.SyntaxError, amqp.CommandInvalid, amqp.ChannelError,
		amqp.UnexpectedFrame, amqp.ResourceError, amqp.NotAllowed, amqp.NotImplemented, amqp.InternalError:
		return true
	}
	return false
}

// connectionLost names the object that the broker refused before the connection
// ended, where the broker says it: before 4.0 an unknown exchange type ends it,
// and so does an operation that the client library sends right after the broker
// has closed the channel for the one before.
func (a *applier) connectionLost(stage []declaration, results []Result, reason, err error) error {
	var e *amqp.Error
	if !errors.As(reason, &e) {
		reason = err
	}
	if errors.As(reason, &e) {
		for i, o := range stage {
			if o.refusedBy(e) {
				results[i].State = Failed
				return objectError(o.kind, o.name, "declare", o.table, reason)
			}
		}
	}
	return fmt.Errorf("apply: the connection was lost: %w", reason)
}

// refusedBy tells whether a refusal names the object as one that exists otherwise,
// or its exchange type as one that does not.
func (o declaration) refusedBy(e *amqp.Error) bool {
	if o.kind == KindExchange && strings.Contains(e.Reason, "unknown exchange type '"+o.exchangeType+"'") {
		return true
	}
	_, conflict := parseInequivalent(e, o.table)
	return conflict && strings.Contains(e.Reason, fmt.Sprintf("%s '%s' in vhost", o.kind, o.name))
}
