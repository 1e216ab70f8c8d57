package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// setup is what plan, apply and destroy work with.
type setup struct {
	want      topology.Topology
	conn      *amqp.Connection
	inspector topology.Inspector
	// readable tells whether the inspector reads the management API; the AMQP one
	// declares in order to look.
	readable bool
}

func (s *setup) close() {
	_ = s.conn.CloseDeadline(time.Now().Add(2 * time.Second)) // the work is done
}

// setup reads the settings, connects, and finds the best way to look at the
// broker.
func (a *app) setup(ctx context.Context) (*setup, error) {
	c, err := a.load(nil, nil)
	if err != nil {
		return nil, err
	}
	strategy, err := c.Strategy(ctx, a.logger())
	if err != nil {
		return nil, err
	}
	s := &setup{}
	if s.want, err = c.Describe(strategy); err != nil {
		return nil, err
	}
	if s.conn, err = c.Dial(ctx); err != nil {
		return nil, err
	}
	s.inspector, err = a.management(ctx, c, s.want)
	switch {
	case err == nil:
		s.readable = true
	case ctx.Err() != nil:
		s.close()
		return nil, ctx.Err()
	default:
		a.notef("note: looking at the broker over AMQP, which shows neither bindings nor policies: %s", oneLine(err.Error()))
		s.inspector = topology.NewAMQPInspector(s.conn)
	}
	return s, nil
}

// management finds out whether the management API answers.
func (a *app) management(ctx context.Context, c *config.Config, want topology.Topology) (topology.Inspector, error) {
	m, err := c.Management()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := m.Inspect(ctx, want); err != nil {
		return nil, err
	}
	return m, nil
}

// showPlan prints a plan for people.
func (a *app) showPlan(p topology.Plan) error {
	if a.json || a.quiet {
		return nil
	}
	return p.Render(a.stdout, false)
}

// problems is the error of a plan that cannot be applied.
func problems(p topology.Plan) error {
	var errs []error
	if n := p.Count(topology.Conflict); n > 0 {
		errs = append(errs, fmt.Errorf("%d objects exist on the broker with other arguments", n))
	}
	if len(p.Warnings) > 0 {
		errs = append(errs, fmt.Errorf("%d policies or arguments would break delay queues", len(p.Warnings)))
	}
	return errors.Join(errs...)
}
