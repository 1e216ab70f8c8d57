package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// setup is what plan, apply and destroy work with.
type setup struct {
	cfg      *config.Config
	strategy amqpx.Strategy
	want     topology.Topology
	conn     *amqp.Connection
	broker   live.Broker
	// readable tells whether the broker's inspector reads the management API; the
	// AMQP one declares in order to look.
	readable bool
}

func (s *setup) close() {
	_ = s.conn.CloseDeadline(time.Now().Add(2 * time.Second)) // the work is done
}

// setup reads the settings, connects, and finds the best way to look at the
// broker.
func (a *app) setup(ctx context.Context) (*setup, error) {
	c, err := a.Load(nil, nil)
	if err != nil {
		return nil, err
	}
	strategy, err := c.Strategy(ctx, a.Logger())
	if err != nil {
		return nil, err
	}
	s := &setup{cfg: c, strategy: strategy}
	if s.want, err = c.Describe(strategy); err != nil {
		return nil, err
	}
	err = s.connect(ctx, a)
	return s, err
}

// connect finds the best way to look at the broker. An API of another broker is
// no way at all.
func (s *setup) connect(ctx context.Context, a *app) (err error) {
	if s.conn, err = s.cfg.Dial(ctx); err != nil {
		return err
	}
	s.broker.Conn = s.conn
	s.broker.Inspector, err = management(ctx, s.cfg, s.conn)
	_, foreign := errors.AsType[*live.ClusterError](err)
	switch {
	case err == nil:
		s.readable = true
	case ctx.Err() != nil:
		s.close()
		return ctx.Err()
	case foreign:
		s.close()
		return err
	default:
		a.Notef("note: looking at the broker over AMQP, which shows neither bindings nor policies: %s", term.OneLine(err.Error()))
		s.broker.Inspector = live.NewAMQPInspector(s.conn)
	}
	return nil
}

// management finds out whether the management API answers, and is the broker's.
func management(ctx context.Context, c *config.Config, conn *amqp.Connection) (live.Inspector, error) {
	m, err := c.Management()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := m.SameCluster(ctx, conn); err != nil {
		return nil, err
	}
	if _, err := m.Inspect(ctx, topology.Topology{}); err != nil {
		return nil, err
	}
	return m, nil
}

// showPlan prints a plan for people.
func (a *app) showPlan(p topology.Plan) error {
	if a.JSON || a.Quiet {
		return nil
	}
	return p.Render(a.Stdout, false)
}

// problems is the error of a plan that cannot be applied.
func problems(p topology.Plan) error {
	var errs []error
	if n := p.Count(topology.ActionConflict); n > 0 {
		errs = append(errs, fmt.Errorf("%d objects exist on the broker with other arguments", n))
	}
	if n := len(p.Grave()); n > 0 {
		errs = append(errs, fmt.Errorf("policies would break delays or lose dead letters, in %s", counted(int64(n), "case")))
	}
	return errors.Join(errs...)
}
