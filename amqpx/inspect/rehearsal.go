package inspect

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/inner"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Rehearsal finds what a client would refuse without changing anything on the broker: it
// asks for exchanges and queues by passive declarations. Only publishing shows whether a
// user may publish to an exchange. It is safe for concurrent use.
type Rehearsal struct {
	pass func(context.Context, inner.Parcel) error
}

// Rehearse takes the configuration that amqpx.Open would, and a connection. It fails with
// what is wrong in cfg.
func Rehearse(conn *amqp.Connection, cfg amqpx.Config) (*Rehearsal, error) {
	pass, err := inner.Rehearse(conn, cfg)
	if err != nil {
		return nil, err
	}
	return &Rehearsal{pass: pass}, nil
}

// PassOn returns the error of the function PassOn, as far as it can be known before anything
// is declared and published.
func (r *Rehearsal) PassOn(ctx context.Context, raw amqp.Delivery, to topology.Destination, at time.Time, offset time.Duration) error {
	return r.pass(ctx, passing(raw, to, at, offset))
}
