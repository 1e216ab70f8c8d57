package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
	"github.com/rabbitdelay/rabbitdelay/topology/plan"
)

// ApplyOptions are the options of Apply. The zero value is ready to use.
type ApplyOptions struct {
	// Force applies although policies would break delay queues or lose dead letters. Conflicts stay errors.
	Force bool
	// Prefix begins the name of the lock, see Apply. Default topology.DefaultPrefix.
	Prefix string
	// Unlocked, if set, is called with the reason when bindings are created without the lock.
	Unlocked func(error)

	locked bool // the caller has the lock
}

// Apply declares what the topology describes: exchanges, then queues, then bindings. It is idempotent, many
// processes may run it at once, and it deletes nothing. What is on the broker already stays untouched; if it
// differs, that is an error.
//
// With an Inspector it looks first, and touches nothing if an object conflicts or a policy would break a delay
// queue or lose dead letters. It looks again afterwards, to check that the effective settings are the described
// ones. Only Management sees policies.
//
// Before RabbitMQ 4.3 it binds under a lock, the exclusive queue naming.LockQueue, so that the broker routes by
// every binding when Apply returns, whichever client made it (see LateBindings). A connection can hold the lock
// only once: run one Apply at a time on it. Without the right to configure that queue it binds without the
// lock; where another has held it for 15 s, those who wait do so one after the other, or one more every 15 s.
//
// Errors, joined when there are several: *topology.ValidationError, *plan.PolicyError, *plan.ConflictError,
// *ObjectError, or the context's. The Report says what exists now, also with an error. The bindings are not
// tried when a queue or an exchange failed.
func (b Broker) Apply(ctx context.Context, want topology.Topology, opts ApplyOptions) (Report, error) {
	began := time.Now()
	opts.Prefix = cmp.Or(opts.Prefix, topology.DefaultPrefix)
	a := &applier{Broker: b, want: want, opts: opts, names: map[string]bool{}}
	stages := declarations(want)
	for _, o := range slices.Concat(stages...) {
		a.report.Results = append(a.report.Results, Result{Kind: o.kind, Name: o.name, State: StateUntried})
		a.names[o.name] = true
	}
	err := a.apply(ctx, stages)
	a.report.Took = time.Since(began)
	return a.report, err
}

type applier struct {
	Broker
	want   topology.Topology
	opts   ApplyOptions
	names  map[string]bool // of everything to be declared
	report Report
}

func (a *applier) apply(ctx context.Context, stages [][]declaration) error {
	described := a.want
	described.Destinations = nil // nothing is declared for them
	if err := described.Validate(topology.AllowUndeclared()); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	if a.Inspector != nil { // refuse before anything is touched
		p, err := a.Plan(ctx, a.want)
		if err != nil {
			return fmt.Errorf("apply: %w", err)
		}
		a.report.Plan = &p
		if err := p.Refusal(a.opts.Force); err != nil {
			return err
		}
	}
	results := a.report.Results
	for _, stage := range stages {
		if err := a.declareAlone(ctx, stage, results[:len(stage)]); err != nil {
			return err
		}
		results = results[len(stage):]
	}
	if a.Inspector == nil {
		return nil
	}
	for i, s := range a.report.Plan.Steps {
		switch s.Action {
		case plan.ActionCreate:
			a.report.Results[i].State = StateCreated
		case plan.ActionSame:
			a.report.Results[i].State = StateExisted
		default: // it was declared
		}
	}
	// What is in force has to be what was described.
	now, err := a.Plan(ctx, a.want)
	if err != nil {
		return fmt.Errorf("apply: everything is declared, reading it back failed: %w", err)
	}
	if err := now.Refusal(a.opts.Force); err != nil {
		return fmt.Errorf("apply: everything is declared, but: %w", err)
	}
	for _, s := range now.Steps {
		if s.Action == plan.ActionCreate {
			return &ObjectError{Kind: s.Kind, Name: s.Name, Op: "declare", Err: errors.New("it was declared and is already gone; another process is deleting it")}
		}
	}
	return nil
}

// declareAlone declares one stage, bindings of topic exchanges under the lock.
func (a *applier) declareAlone(ctx context.Context, stage []declaration, results []Result) error {
	if !a.opts.locked && len(stage) > 0 && stage[0].kind == topology.KindBinding && bindsTopics(a.want) {
		version := ""
		if c, ok := a.Conn.(*amqp.Connection); ok {
			version, _ = c.Properties["version"].(string)
		}
		if LateBindings(version) {
			unlock, err := lockUnless(ctx, a.Conn, a.opts, never)
			if err != nil {
				return err
			}
			defer unlock()
		}
	}
	return a.declare(ctx, stage, results)
}

// bindsTopics reports whether a binding's exchange is a topic exchange or not known.
func bindsTopics(t topology.Topology) bool {
	return slices.ContainsFunc(t.Bindings, func(b topology.Binding) bool {
		e, described := t.Exchange(b.Exchange)
		return !described || e.Kind == "topic"
	})
}

const (
	// declareTries bounds the tries of one declaration that failed for a reason
	// that passes, such as two processes creating one quorum queue.
	declareTries = 6
	// The pauses between them.
	firstPause, lastPause = 100 * time.Millisecond, 2 * time.Second
)

type declaration struct {
	kind  topology.Kind
	name  string
	table map[string]any
	needs []string // names of objects that must exist before
	// exchangeType is the type of an exchange.
	exchangeType string
	declare      func(ch *amqp.Channel, noWait bool) error
}

// declarations are stage by stage what there is to declare. Those of one stage do not depend on each other.
func declarations(t topology.Topology) [][]declaration {
	var exchanges, queues, bindings []declaration
	for _, e := range t.Exchanges {
		exchanges = append(exchanges, declaration{
			kind: topology.KindExchange, name: e.Name, table: e.Table(), exchangeType: e.Kind,
			declare: func(ch *amqp.Channel, noWait bool) error { return declareExchange(ch, e, noWait) },
		})
	}
	for _, q := range t.Queues {
		queues = append(queues, declaration{
			kind: topology.KindQueue, name: q.Name, table: q.Table(),
			declare: func(ch *amqp.Channel, noWait bool) error { return declareQueue(ch, q, noWait) },
		})
	}
	for _, b := range t.Bindings {
		bindings = append(bindings, declaration{
			kind: topology.KindBinding, name: b.String(), needs: []string{b.Exchange, b.Queue + b.ToExchange},
			declare: func(ch *amqp.Channel, noWait bool) error { return bind(ch, b, noWait) },
		})
	}
	return [][]declaration{exchanges, queues, bindings}
}

// declare runs one stage: pipelined, and if that fails one by one, so that the error names the object.
func (a *applier) declare(ctx context.Context, stage []declaration, results []Result) error {
	reason := a.pipelined(ctx, stage)
	if reason == nil {
		for i := range results {
			results[i].State = StateDeclared
		}
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		setStates(results, StateUnknown)
		return err
	}
	s := &session{conn: a.Conn}
	defer s.close()
	var errs []error
	for i, o := range stage {
		err := a.declareOne(ctx, s, o)
		switch {
		case err == nil:
			results[i].State = StateDeclared
		case context.Cause(ctx) != nil:
			setStates(results[i:], StateUnknown)
			return errors.Join(append(errs, context.Cause(ctx))...)
		case isConnectionLost(err):
			setStates(results[i:], StateUnknown)
			return errors.Join(append(errs, a.connectionLost(stage, results, reason, err))...)
		default:
			results[i].State = StateFailed
			errs = append(errs, objectError(o.kind, o.name, "declare", o.table, err))
		}
	}
	if err := allRefused(errs); err != nil {
		return err
	}
	if more := len(errs) - mostErrors; more > 0 {
		errs = append(errs[:mostErrors], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// mostErrors is how many failures of a stage its error names. The results have the others.
const mostErrors = 5

// refusedError is that of a user who lacks a right to several objects.
type refusedError struct {
	first  *ObjectError
	others int
}

// allRefused returns one error for several that are all about a missing right, nil otherwise.
func allRefused(errs []error) error {
	if len(errs) < 2 {
		return nil
	}
	for _, err := range errs {
		if e, ok := errors.AsType[*amqp.Error](err); !ok || e.Code != amqp.AccessRefused {
			return nil
		}
	}
	first, ok := errors.AsType[*ObjectError](errs[0])
	if !ok {
		return nil
	}
	return &refusedError{first, len(errs) - 1}
}

func (e *refusedError) Error() string {
	more := ""
	if e.others > 0 {
		more = fmt.Sprintf(", and likewise %d more of this layout", e.others)
	}
	return fmt.Sprintf("%v%s. If another user declares it (rabbitdelay apply), let this one declare nothing: "+
		"broker.declare: nothing in the file, Config.Declare: amqpx.DeclareNothing in Go; docs/permissions.md lists the rights for both", e.first, more)
}

func (e *refusedError) Unwrap() error { return e.first }

func setStates(results []Result, s State) {
	for i := range results {
		results[i].State = s
	}
}

// pipelined declares without waiting for each answer; a last operation with an answer shows that all went well.
func (a *applier) pipelined(ctx context.Context, stage []declaration) error {
	errs := make([]error, len(stage)) // of a run, at its beginning
	onChannels(a.Conn, len(stage), func(s *session, from, to int) {
		errs[from] = s.do(ctx, func(ch *amqp.Channel) error {
			return fenced(ch, func() error {
				for _, o := range stage[from:to] {
					if err := o.declare(ch, true); err != nil {
						return err
					}
				}
				return ch.Qos(0, 0, false) // answered after everything before it
			})
		})
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

func (a *applier) declareOne(ctx context.Context, s *session, o declaration) error {
	for try := 1; ; try++ {
		err := s.do(ctx, func(ch *amqp.Channel) error { return o.declare(ch, false) })
		if err == nil || try == declareTries || !a.mayPass(o, err) {
			return err
		}
		if wait.For(ctx, wait.Backoff(firstPause, lastPause, try)) != nil {
			return context.Cause(ctx)
		}
	}
}

// mayPass reports whether a refusal may be over soon: a timeout of the broker's
// metadata store or of a queue's leader, or an object that is missing although
// it belongs to this topology, because another process is making it.
func (a *applier) mayPass(o declaration, err error) bool {
	e, answered := errors.AsType[*amqp.Error](err)
	if _, conflict := parseInequivalent(err, o.table); conflict || !answered {
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

// isConnectionLost distinguishes an error of the whole connection, after which no
// channel can be opened, from one of a channel.
func isConnectionLost(err error) bool {
	e, answered := errors.AsType[*amqp.Error](err)
	if !answered {
		return true // of the network
	}
	switch e.Code {
	case amqp.ConnectionForced, amqp.FrameError, amqp.SyntaxError, amqp.CommandInvalid, amqp.ChannelError,
		amqp.UnexpectedFrame, amqp.ResourceError, amqp.NotAllowed, amqp.NotImplemented, amqp.InternalError:
		return true
	}
	return false
}

// connectionLost names the object that the broker refused before the connection ended, where the
// broker names it: before 4.0 an unknown exchange type ends it, and so does an operation that the
// client library sends right after the broker has closed the channel for the one before.
func (a *applier) connectionLost(stage []declaration, results []Result, reason, err error) error {
	e, answered := errors.AsType[*amqp.Error](reason)
	if !answered {
		reason = err
		e, answered = errors.AsType[*amqp.Error](reason)
	}
	if !answered {
		return fmt.Errorf("apply: the connection was lost: %w", reason)
	}
	for i, o := range stage {
		if e.Code == amqp.AccessRefused && strings.Contains(e.Reason, fmt.Sprintf("%s '%s' in vhost", o.kind, o.name)) {
			results[i].State = StateFailed
			return &refusedError{&ObjectError{Kind: o.kind, Name: o.name, Op: "declare", Err: reason}, 0}
		}
		_, conflict := parseInequivalent(e, o.table)
		if o.kind == topology.KindExchange && strings.Contains(e.Reason, "unknown exchange type '"+o.exchangeType+"'") ||
			conflict && strings.Contains(e.Reason, fmt.Sprintf("%s '%s' in vhost", o.kind, o.name)) {
			results[i].State = StateFailed
			return objectError(o.kind, o.name, "declare", o.table, reason)
		}
	}
	return fmt.Errorf("apply: the connection was lost: %w", reason)
}
