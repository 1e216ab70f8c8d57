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
