package declare

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// Strategy declares the strategy's topology where it is not there, on a connection that is
// new and has published nothing, or checks that it is there. The caller closes the
// connection when ctx ends first, which ends what is under way.
func (c *Declarer) Strategy(ctx context.Context, conn *amqp.Connection) error {
	return c.beside(ctx, func(whole context.Context) error { // also during Close, whose handlers may send
		if err := c.mu.Lock(ctx); err != nil {
			return err
		}
		defer c.mu.Unlock()
		return c.declareStrategy(whole, conn, c.ensureTopology)
	})
}

// declareStrategy declares by one of the functions below, for a caller that holds mu.
func (c *Declarer) declareStrategy(ctx context.Context, conn *amqp.Connection, declare func(context.Context, *amqp.Connection, topology.Topology) error) error {
	began := time.Now()
	if err := declare(ctx, conn, c.cfg.Strategy.Topology()); err != nil {
		what := "declare"
		if c.cfg.OnlyLook {
			what = "look for"
		}
		return fmt.Errorf("%s the %s strategy's topology: %w", what, c.cfg.Strategy.Name(), err)
	}
	c.declared, c.lookEnded = time.Now(), false
	c.log.Debug("declared", zap.String("strategy", c.cfg.Strategy.Name()), zap.Duration("took", time.Since(began)))
	return nil
}

// ensureTopology declares a topology that is not there. A look over which the broker ended
// the connection is not repeated: see live.Broker.Ensure.
func (c *Declarer) ensureTopology(ctx context.Context, conn *amqp.Connection, t topology.Topology) error {
	switch {
	case c.cfg.OnlyLook:
		return notApplied(live.Broker{Conn: conn}.Verify(ctx, c.cfg.Strategy.Prefix(), t))
	case c.lookEnded:
		if err := c.declareAll(ctx, conn, t); err != nil {
			return err
		}
		return live.Broker{Conn: conn}.MarkDeclared(ctx, c.cfg.Strategy.Prefix(), t)
	}
	err := live.Broker{Conn: conn}.Ensure(ctx, t, c.applying())
	c.lookEnded = endsConnection(err)
	return err
}

// notApplied adds to a missing exchange what to do about it.
func notApplied(err error) error {
	if wire.IsCode(err, amqp.NotFound) {
		return fmt.Errorf("%w; %w", err, errNotApplied)
	}
	return err
}

// declareAll declares a topology of which something is missing.
func (c *Declarer) declareAll(ctx context.Context, conn *amqp.Connection, t topology.Topology) error {
	if c.cfg.OnlyLook {
		return notApplied(live.Broker{Conn: conn}.VerifyExchanges(ctx, t))
	}
	_, err := live.Broker{Conn: conn}.Apply(ctx, t, c.applying())
	return err
}

// applying is how this client declares a topology.
func (c *Declarer) applying() live.ApplyOptions {
	return live.ApplyOptions{Prefix: c.cfg.Strategy.Prefix(), Unlocked: func(err error) {
		c.log.Warn("created bindings without the lock against concurrent binding", zap.String("lock", naming.LockQueue(c.cfg.Strategy.Prefix())), zap.Error(err))
	}}
}

// redeclareTimeout bounds one declaration of everything.
const redeclareTimeout = time.Minute

// Again declares again everything that messages need, unless that was done after the
// instant given. It goes on when its caller does not wait any more. Its errors are final
// when Config.Wire.Permanent or a *topology.DestinationError says so.
func (c *Declarer) Again(ctx context.Context, s *Session, after time.Time) error {
	return c.beside(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, redeclareTimeout)
		defer cancel()
		return c.Do(ctx, s, func(conn *amqp.Connection) error {
			return believed(ctx, false, func() error { return c.redeclare(ctx, conn, after) })
		})
	})
}

// redeclare is Again on a connection. What may be new is proven again.
func (c *Declarer) redeclare(ctx context.Context, conn *amqp.Connection, after time.Time) error {
	if err := c.mu.Lock(ctx); err != nil {
		return err
	}
	defer c.mu.Unlock()
	if c.declared.After(after) {
		return nil
	}
	c.dests.forgetAll()
	unproven := c.unprove()
	err := c.declareStrategy(ctx, conn, c.declareAll)
	if unproven == nil {
		return err
	}
	if err == nil {
		err = c.Prove(ctx, unproven)
	}
	if err != nil {
		wire.CloseConn(unproven.Conn) // the next session declares and proves, or says why not
	}
	return err
}

// Apply declares a topology beside the strategy's own, such as the exchanges
// and queues of an application. It fails with *plan.ConflictError when the
// broker has something else under one of the names.
func (c *Declarer) Apply(ctx context.Context, t topology.Topology) error {
	s, err := c.cfg.Publishing(ctx)
	if err != nil {
		return err
	}
	return c.Do(ctx, s, func(conn *amqp.Connection) error {
		if err := c.mu.Lock(ctx); err != nil { // of a connection's Applies one at a time
			return err
		}
		defer c.mu.Unlock()
		_, err := live.Broker{Conn: conn}.Apply(ctx, t, c.applying())
		return err
	})
}

// exchangeExists asks for an exchange of any type.
func exchangeExists(ch *amqp.Channel, name string) error {
	return ch.ExchangeDeclarePassive(name, amqp.ExchangeTopic, true, false, false, false, nil)
}

func queueExists(ch *amqp.Channel, name string) error {
	_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
	return err
}
