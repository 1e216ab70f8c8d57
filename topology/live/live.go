package live

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Broker compares a topology with the objects on a broker, and declares it there.
type Broker struct {
	// Conn declares the objects. Run one Apply at a time on a connection. Plan does not need it if there is a
	// Management.
	Conn *amqp.Connection
	// Management reads the broker's objects. Without it, Plan reads over AMQP, which shows neither bindings nor
	// policies, and Apply declares without inspecting the broker first.
	Management *Management
}

func (b Broker) inside() live.Broker {
	in := live.Broker{Conn: b.Conn}
	if b.Management != nil {
		in.Inspector = b.Management.client
	}
	return in
}

// Plan compares a topology with the objects on the broker, and changes nothing. It returns an error only if the broker
// cannot be inspected. Conflicts are part of the plan.
func (b Broker) Plan(ctx context.Context, want topology.Topology) (Plan, error) {
	p, err := b.inside().Plan(ctx, want)
	if err != nil {
		return Plan{}, err
	}
	out := Plan{whole: p}
	for _, s := range p.Steps {
		out.Steps = append(out.Steps, Step{s.Kind, s.Name, string(s.Action), s.Mismatches, s.Unavailable})
	}
	return out, nil
}

// Plan is the comparison of a topology with the objects on a broker.
type Plan struct {
	Steps []Step // exchanges, queues and bindings, each in the order of the topology

	whole plan.Plan
}

// Step is what Apply would do with one object.
type Step struct {
	Kind topology.Kind
	Name string // for a binding, its description
	// Action is "create" if the object is missing, "same" if it exists and matches the topology, and "conflict" if it
	// exists but differs. It is "unverified" for a binding that AMQP does not show. Apply declares such a binding,
	// which changes nothing if it exists.
	Action     string
	Mismatches []topology.Mismatch // for a conflict, the arguments that are known to differ
	// Unavailable says why an existing queue does not answer, for example because it has no leader. It is empty
	// otherwise. Only its existence and its arguments are then known.
	Unavailable string
}

// Empty reports whether there is nothing to create and no conflict. It ignores bindings that could not be verified.
func (p Plan) Empty() bool { return p.whole.Empty() }

// Err returns the reason why Apply would refuse the plan, or nil. The error wraps topology.ErrConflict (a
// *topology.ConflictError for each argument that differs), topology.ErrPolicy or topology.ErrQuota.
func (p Plan) Err() error { return p.whole.Refusal(false) }

// String formats the plan for display, including warnings about policies and bindings. It shortens long lists.
func (p Plan) String() string { return p.whole.String() }

// ApplyOptions contains the options for Apply. The zero value is ready to use.
type ApplyOptions struct {
	// Force applies the topology even if policies would break delay queues or lose dead letters. Conflicts with
	// existing objects remain errors.
	Force bool
	// Prefix is the prefix of the lock's name, see Apply. Default topology.DefaultPrefix.
	Prefix string
}

// Apply declares the objects of the topology: exchanges, then queues, then bindings. It is idempotent, and many
// processes may run it concurrently. It deletes nothing, and does not change objects that already exist. If an existing
// object differs, Apply returns an error.
//
// With a Management it inspects the broker first, and changes nothing if an object conflicts or a policy would break a
// delay queue or lose dead letters. It inspects the broker again afterwards, to check that the effective settings match
// the topology.
//
// Before RabbitMQ 4.3, Apply creates bindings while it holds a lock, an exclusive queue, so that the broker routes by
// every binding when Apply returns. Without the permission to configure that queue, it creates them without the lock.
//
// If there are several errors, they are joined: *topology.ValidationError, *topology.ConflictError, an error that wraps
// topology.ErrPolicy or topology.ErrQuota, the broker's *amqp091.Error, or the context's error. Apply does not try the
// bindings if a queue or an exchange failed.
func (b Broker) Apply(ctx context.Context, want topology.Topology, opts ApplyOptions) error {
	_, err := b.inside().Apply(ctx, want, live.ApplyOptions{Force: opts.Force, Prefix: opts.Prefix})
	return err
}
