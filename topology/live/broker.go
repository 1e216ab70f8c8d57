package live

import (
	"context"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
	"github.com/rabbitdelay/rabbitdelay/topology/plan"
	"github.com/rabbitdelay/rabbitdelay/topology/removal"
)

// Broker is a broker that is to be looked at and changed.
type Broker struct {
	// Conn declares and deletes; a connection runs one Apply at a time. Plan needs
	// none where there is an Inspector.
	Conn Conn
	// Inspector reads the broker; usually a *Management. Without one Plan and
	// Destroy read over AMQP, and Apply does not look.
	Inspector Inspector
}

func (b Broker) inspect(ctx context.Context, want topology.Topology) (observed.Broker, error) {
	if b.Inspector != nil {
		return b.Inspector.Inspect(ctx, want)
	}
	return NewAMQPInspector(b.Conn).Inspect(ctx, want)
}

// Plan compares a topology with what is there. Its error is that of looking; conflicts are part of the plan.
func (b Broker) Plan(ctx context.Context, want topology.Topology) (plan.Plan, error) {
	found, err := b.inspect(ctx, want)
	if err != nil {
		return plan.Plan{}, fmt.Errorf("plan: %w", err)
	}
	return plan.Compare(want, found), nil
}

// Removal returns what Destroy would do now. Its error is that of looking; whether
// Destroy would refuse is part of the answer.
func (b Broker) Removal(ctx context.Context, t topology.Topology, opts removal.Options) (removal.Plan, error) {
	d := newDestroyer(b, t, opts)
	err := d.plan(ctx)
	return d.removal, err
}
