package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ApplyOptions contains the options for Apply. The zero value is ready to use.
type ApplyOptions struct {
	// Force applies the topology even if policies would break delay queues or lose dead letters. Conflicts with
	// existing objects are still errors.
	Force bool
	// Prefix is the prefix of the lock's name, see Apply. Default topology.DefaultPrefix.
	Prefix string
	// Unlocked, if set, is called with the reason when bindings are created without the lock.
	Unlocked func(error)

	locked bool // the caller already holds the lock
}

// Apply declares the objects of the topology: exchanges, then queues, then bindings. It is idempotent, and many
// processes may run it concurrently. It deletes nothing, and does not change objects that already exist. If an existing
// object differs, Apply returns an error.
//
// With an Inspector, Apply inspects the broker first, and changes nothing if an object conflicts, a policy would break
// a delay queue or lose dead letters, or the virtual host's limit on queues is too low. It inspects the broker again
// afterwards, to check that the effective settings match the topology. Only Management sees policies and limits.
//
// Before RabbitMQ 4.3, Apply creates bindings while it holds a lock, the exclusive queue naming.LockQueue. The lock
// ensures that the broker routes by every binding when Apply returns, even by bindings that another client has made
// (see LateBindings). A connection can hold the lock only once, so run one Apply at a time on a connection. Without the
// permission to configure the lock's queue, Apply creates bindings without the lock. A client that has waited 15 s for
// the lock continues without it. Clients that wait together continue one at a time, or at least 15 s apart.
//
// If there are several errors, they are joined: *topology.ValidationError, *plan.PolicyError, *topology.ConflictError,
// *plan.QuotaError, *ObjectError, or the context's error. The Report says what exists now, even when Apply fails. If a
// queue or an exchange failed, Apply does not declare the bindings.
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
	names  map[string]bool // names of everything to be declared
	report Report
	// deleted is true if an object was missing when its bindings were declared, although an earlier stage had declared
	// it. Another process, such as retire, is deleting the layout at the same time.
	deleted bool
}

func (a *applier) apply(ctx context.Context, stages [][]declaration) error {
	described := a.want
	described.Destinations = nil // destinations are not declared
	if err := described.Validate(topology.AllowUndeclared()); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	if a.Inspector != nil { // refuse before changing anything
		p, err := a.Plan(ctx, a.want)
		if err != nil {
			return fmt.Errorf("apply: %w", err)
		}
		a.report.Plan = &p
		if err := p.Refusal(a.opts.Force); err != nil {
			return err
		}
	}
	err := a.declareAll(ctx, stages)
	for again := 1; err != nil && a.deleted && again < stageTries; again++ {
		a.deleted = false
		err = a.declareAll(ctx, stages)
	}
	if err != nil {
		return err
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
		default: // the stages above have declared everything else
		}
	}
	// The effective settings must match the topology.
	now, err := a.Plan(ctx, a.want)
	if err != nil {
		return fmt.Errorf("apply: everything was declared, but reading it back failed: %w", err)
	}
	if err := now.Refusal(a.opts.Force); err != nil {
		return fmt.Errorf("apply: everything was declared, but: %w", err)
	}
	for _, s := range now.Steps {
		if s.Action == plan.ActionCreate {
			return &ObjectError{Kind: s.Kind, Name: s.Name, Op: "declare", Err: errors.New("the object was declared but no longer exists; another process is deleting it")}
		}
	}
	return nil
}

// declareAll declares all stages in turn, and stops after the first one that fails.
func (a *applier) declareAll(ctx context.Context, stages [][]declaration) error {
	results := a.report.Results
	for _, stage := range stages {
		if err := a.declareAlone(ctx, stage, results[:len(stage)]); err != nil {
			return err
		}
		results = results[len(stage):]
	}
	return nil
}

// declareAlone declares one stage. If the stage has bindings of topic exchanges and the broker version requires it,
// declareAlone holds the lock while it declares them.
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

// bindsTopics reports whether any binding's exchange is a topic exchange. An exchange that is not in the topology may be
// one, so it counts as well.
func bindsTopics(t topology.Topology) bool {
	return slices.ContainsFunc(t.Bindings, func(b topology.Binding) bool {
		e, described := t.Exchange(b.Exchange)
		return !described || e.Kind == "topic"
	})
}

const (
	// declareTries is the maximum number of attempts for one declaration that fails for a temporary reason, such as
	// two processes that create the same quorum queue.
	declareTries = 6
	// stageTries is the maximum number of times that all stages are declared. They are declared again if another
	// process has deleted objects in the meantime.
	stageTries = 3
	// The pause between the attempts for one declaration doubles from firstPause to lastPause.
	firstPause, lastPause = 100 * time.Millisecond, 2 * time.Second
)

type declaration struct {
	kind  topology.Kind
	name  string
	table map[string]any
	needs []string // names of the objects that must exist first
	// exchangeType is the exchange's type. It is empty for a queue or a binding.
	exchangeType string
	declare      func(ch *amqp.Channel, noWait bool) error
}

// declarations returns what to declare, in stages. The declarations of one stage do not depend on each other.
func declarations(t topology.Topology) [][]declaration {
	var exchanges, queues, bindings []declaration
	for _, e := range t.Exchanges {
		exchanges = append(exchanges, declaration{
			kind: topology.KindExchange, name: e.Name, table: e.Table(), exchangeType: e.Kind,
			declare: func(ch *amqp.Channel, noWait bool) error { return channels.DeclareExchange(ch, e, noWait) },
		})
	}
	for _, q := range t.Queues {
		queues = append(queues, declaration{
			kind: topology.KindQueue, name: q.Name, table: q.Table(),
			declare: func(ch *amqp.Channel, noWait bool) error { return channels.DeclareQueue(ch, q, noWait) },
		})
	}
	for _, b := range t.Bindings {
		bindings = append(bindings, declaration{
			kind: topology.KindBinding, name: b.String(), needs: []string{b.Exchange, b.Queue + b.ToExchange},
			declare: func(ch *amqp.Channel, noWait bool) error { return channels.Bind(ch, b, noWait) },
		})
	}
	return [][]declaration{exchanges, queues, bindings}
}

// declare runs one stage. It pipelines the declarations, and if that fails it repeats them one by one, so that the
// error names the object.
func (a *applier) declare(ctx context.Context, stage []declaration, results []Result) error {
	reason := a.pipelined(ctx, stage)
	if reason == nil {
		for i := range results {
			results[i].State = StateDeclared
		}
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		setUnknown(results)
		return err
	}
	if full := a.overQuota(reason); full != nil {
		setUnknown(results)
		return full
	}
	s := channels.New(a.Conn)
	defer s.Close()
	var errs []error
	for i, o := range stage {
		tries := declareTries
		if a.deleted {
			tries = 1 // the object of an earlier binding did not come back, and waiting for each one could take minutes
		}
		err := a.declareOne(ctx, s, o, tries)
		switch {
		case err == nil:
			results[i].State = StateDeclared
		case context.Cause(ctx) != nil:
			setUnknown(results[i:])
			return errors.Join(append(errs, context.Cause(ctx))...)
		case isConnectionLost(err):
			setUnknown(results[i:])
			return errors.Join(append(errs, a.connectionLost(stage, results, reason, err))...)
		case a.overQuota(err) != nil:
			results[i].State = StateFailed
			return a.overQuota(err) // stop here, because the broker would refuse every further queue as well
		default:
			results[i].State = StateFailed
			a.deleted = a.deleted || o.kind == topology.KindBinding && channels.IsCode(err, amqp.NotFound) && a.mayPass(o, err)
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

// queueLimit matches the broker's refusal of a queue beyond a limit of the virtual host or the cluster.
var queueLimit = regexp.MustCompile(`(?:queue limit in vhost '(.*)'|cluster queue limit) \((\d+)\) is reached`)

// overQuota returns a *plan.QuotaError if the broker refused a queue because it would exceed a limit, and nil
// otherwise.
func (a *applier) overQuota(err error) error {
	refusal, ok := errors.AsType[*amqp.Error](err)
	if !ok || refusal.Code != amqp.PreconditionFailed {
		return nil
	}
	found := queueLimit.FindStringSubmatch(refusal.Reason)
	if found == nil {
		return nil
	}
	limit, _ := strconv.ParseInt(found[2], 10, 64) // the expression matches digits only
	return &plan.QuotaError{Vhost: found[1], Limit: limit, Have: -1, Missing: -1, Layout: int64(len(a.want.Queues)), Err: refusal}
}

// mostErrors is the maximum number of failures of a stage that the joined error names. The results list all of them.
const mostErrors = 5

// refusedError reports a user who lacks the permissions for one or several objects.
type refusedError struct {
	first  *ObjectError
	others int
}

// allRefused combines several errors into one if all of them are about a missing permission, and returns nil
// otherwise.
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
		more = fmt.Sprintf(", and for %d more objects of this layout", e.others)
	}
	return fmt.Sprintf("%v%s. If another user declares the layout (rabbitdelay apply), configure this one to declare nothing: "+
		"broker.declare: nothing in the file, Config.Declare: amqpx.DeclareNothing in Go; docs/permissions.md lists the permissions for both", e.first, more)
}

func (e *refusedError) Unwrap() error { return e.first }

func setUnknown(results []Result) {
	for i := range results {
		results[i].State = StateUnknown
	}
}

// pipelined declares without waiting for each answer. The broker answers only the last operation, which shows whether
// all of them succeeded.
func (a *applier) pipelined(ctx context.Context, stage []declaration) error {
	errs := make([]error, len(stage)) // the error of each run is at the index of its first declaration
	channels.OnChannels(a.Conn, len(stage), func(s *channels.Session, from, to int) {
		errs[from] = s.Do(ctx, func(ch *amqp.Channel) error {
			return fenced(ch, func() error {
				for _, o := range stage[from:to] {
					if err := o.declare(ch, true); err != nil {
						return err
					}
				}
				return ch.Qos(0, 0, false) // the broker answers this after it has processed everything before it
			})
		})
	})
	return mostInformative(errs)
}

// mostInformative returns the error that says most about the cause: the broker's first refusal of an operation or, if
// there is none, the first loss of the connection. The refusal may have caused that loss.
func mostInformative(errs []error) error {
	for _, err := range errs {
		if err != nil && !isConnectionLost(err) {
			return err
		}
	}
	return cmp.Or(errs...)
}

// fenced runs operations that the broker does not answer, followed by one that it does answer. If one of them closed
// the channel, fenced returns the broker's reason.
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

func (a *applier) declareOne(ctx context.Context, s *channels.Session, o declaration, tries int) error {
	for try := 1; ; try++ {
		err := s.Do(ctx, func(ch *amqp.Channel) error { return o.declare(ch, false) })
		if err == nil || try == tries || !a.mayPass(o, err) {
			return err
		}
		if wait.For(ctx, wait.Backoff(firstPause, lastPause, try)) != nil {
			return context.Cause(ctx)
		}
	}
}

// mayPass reports whether a refusal may be temporary. The reason can be a timeout of the broker's metadata store or of
// a queue's leader, or a missing object of this topology that another process may be creating now.
func (a *applier) mayPass(o declaration, err error) bool {
	e, answered := errors.AsType[*amqp.Error](err)
	if _, conflict := channels.Inequivalent(err, o.table); conflict || !answered {
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

// isConnectionLost reports whether an error closed the whole connection, so that no further channel can be opened.
// Other errors close only their channel.
func isConnectionLost(err error) bool {
	e, answered := errors.AsType[*amqp.Error](err)
	if !answered {
		return true // a network error
	}
	switch e.Code {
	case amqp.ConnectionForced, amqp.FrameError, amqp.SyntaxError, amqp.CommandInvalid, amqp.ChannelError,
		amqp.UnexpectedFrame, amqp.ResourceError, amqp.NotAllowed, amqp.NotImplemented, amqp.InternalError:
		return true
	}
	return false
}

// connectionLost returns the error for a lost connection. If the broker's reason names an object, the error names it
// too. Before RabbitMQ 4.0, an unknown exchange type closes the connection. The same happens when the client library
// sends another operation right after the broker has closed the channel because of the previous one.
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
		if o.kind == topology.KindQueue && channels.IsNameHeld(e) && strings.Contains(e.Reason, fmt.Sprintf("queue '%s' in vhost", o.name)) {
			results[i].State = StateFailed
			return &ObjectError{Kind: o.kind, Name: o.name, Op: "declare", Err: reason}
		}
		_, conflict := channels.Inequivalent(e, o.table)
		if o.kind == topology.KindExchange && strings.Contains(e.Reason, "unknown exchange type '"+o.exchangeType+"'") ||
			conflict && strings.Contains(e.Reason, fmt.Sprintf("%s '%s' in vhost", o.kind, o.name)) {
			results[i].State = StateFailed
			return objectError(o.kind, o.name, "declare", o.table, reason)
		}
	}
	return fmt.Errorf("apply: the connection was lost: %w", reason)
}
