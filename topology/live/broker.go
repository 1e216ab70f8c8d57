package live

import (
	"context"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
	"github.com/rabbitdelay/rabbitdelay/topology/plan"
	"github.com/rabbitdelay/rabbitdelay/topology/removal"
)

// Broker is a broker to inspect and to change.
type Broker struct {
	// Conn declares and deletes objects. Run one Apply at a time on a connection. Plan does not need a Conn if there
	// is an Inspector.
	Conn Conn
	// Inspector reads the broker's objects. It is usually a *Management. Without an Inspector, Plan and Destroy read
	// over AMQP, and Apply does not inspect.
	Inspector Inspector
}

func (b Broker) inspect(ctx context.Context, want topology.Topology) (observed.Broker, error) {
	if b.Inspector != nil {
		return b.Inspector.Inspect(ctx, want)
	}
	return NewAMQPInspector(b.Conn).Inspect(ctx, want)
}

// Plan compares a topology with the objects on the broker. It fails only if the broker cannot be inspected, because
// conflicts are part of the plan.
func (b Broker) Plan(ctx context.Context, want topology.Topology) (plan.Plan, error) {
	found, err := b.inspect(ctx, want)
	if err != nil {
		return plan.Plan{}, fmt.Errorf("plan: %w", err)
	}
	return plan.Compare(want, found), nil
}

// Removal returns what Destroy would do now. It fails only if the broker cannot be inspected. The returned plan tells
// whether Destroy would refuse.
func (b Broker) Removal(ctx context.Context, t topology.Topology, opts removal.Options) (removal.Plan, error) {
	d := newDestroyer(b, t, opts)
	err := d.plan(ctx)
	return d.removal, err
}
