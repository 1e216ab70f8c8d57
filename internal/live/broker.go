package live

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Conn opens channels. *amqp091.Connection implements it.
type Conn interface {
	Channel() (*amqp.Channel, error)
}

// Broker inspects a broker, and declares and deletes objects on it.
type Broker struct {
	// Conn declares and deletes objects. Run one Apply at a time on a connection. Plan does not need a Conn if there
	// is an Inspector.
	Conn Conn
	// Inspector reads the broker's objects. It is usually a *Management. Without an Inspector, Plan reads over
	// AMQP, and Apply does not inspect.
	Inspector Inspector
}

// Inspect reads the broker's objects with the Inspector or, if there is none, over AMQP.
func (b Broker) Inspect(ctx context.Context, want topology.Topology) (plan.State, error) {
	if b.Inspector != nil {
		return b.Inspector.Inspect(ctx, want)
	}
	return NewAMQPInspector(b.Conn).Inspect(ctx, want)
}

// Plan compares a topology with the objects on the broker. It fails only if the broker cannot be inspected, because
// conflicts are part of the plan.
func (b Broker) Plan(ctx context.Context, want topology.Topology) (plan.Plan, error) {
	found, err := b.Inspect(ctx, want)
	if err != nil {
		return plan.Plan{}, fmt.Errorf("plan: %w", err)
	}
	return plan.Compare(want, found), nil
}
