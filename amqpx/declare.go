package amqpx

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// declareStrategy declares the strategy's topology where it is not there, on a
// connection that is new and has published nothing, or checks that it is there when
// the client may not declare. The connection is closed by the caller when ctx ends first,
// which ends what is under way.
func (c *Client) declareStrategy(ctx context.Context, conn *amqp.Connection) error {
	if err := c.declareMu.lock(ctx); err != nil {
		return err
	}
	done := make(chan error, 1)
	begun := c.declares.begin(func(ctx context.Context) { // also during Close, whose handlers may send
		defer c.declareMu.unlock()
		done <- c.declareStrategyLocked(ctx, conn, c.ensure)
	})
	if !begun {
		c.declareMu.unlock()
		return ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// declareStrategyLocked declares by one of the functions below, for a caller that
// holds declareMu.
func (c *Client) declareStrategyLocked(ctx context.Context, conn *amqp.Connection, declare func(context.Context, *amqp.Connection, topology.Topology) error) error {
	began := time.Now()
	if err := declare(ctx, conn, c.strategy.Topology()); err != nil {
		what := "declare"
		if c.cfg.Declare == DeclareNothing {
			what = "look for"
		}
		return fmt.Errorf("%s the %s strategy's topology: %w", what, c.strategy.Name(), err)
	}
	c.declared, c.lookEnded = time.Now(), false
	c.log.Debug("declared", zap.String("strategy", c.strategy.Name()), zap.Duration("took", time.Since(began)))
	return nil
}

// ensure declares a topology that is not there. A look over which the broker ended
// the connection is not repeated: see live.Broker.Ensure.
func (c *Client) ensure(ctx context.Context, conn *amqp.Connection, t topology.Topology) error {
	switch {
	case c.cfg.Declare == DeclareNothing:
		return notApplied(live.Broker{Conn: conn}.Verify(ctx, c.strategy.Prefix(), t))
	case c.lookEnded:
		if err := c.declareAll(ctx, conn, t); err != nil {
			return err
		}
		return live.Broker{Conn: conn}.MarkDeclared(ctx, c.strategy.Prefix(), t)
	}
	err := live.Broker{Conn: conn}.Ensure(ctx, t, c.applying())
	c.lookEnded = endsConnection(err)
	return err
}

// notApplied adds to a missing exchange what to do about it.
func notApplied(err error) error {
	if isCode(err, amqp.NotFound) {
		return fmt.Errorf("%w; %w", err, errNotApplied)
	}
	return err
}

// declareAll declares a topology of which something is missing.
func (c *Client) declareAll(ctx context.Context, conn *amqp.Connection, t topology.Topology) error {
	if c.cfg.Declare == DeclareNothing {
		return notApplied(live.Broker{Conn: conn}.VerifyExchanges(ctx, t))
	}
	_, err := live.Broker{Conn: conn}.Apply(ctx, t, c.applying())
	return err
}

// applying is how this client declares a topology.
func (c *Client) applying() live.ApplyOptions {
	return live.ApplyOptions{Prefix: c.strategy.Prefix(), Unlocked: func(err error) {
		c.log.Warn("created bindings without the lock against concurrent binding", zap.String("lock", topology.LockQueue(c.strategy.Prefix())), zap.Error(err))
	}}
}

// redeclareTimeout bounds one declaration of everything.
const redeclareTimeout = time.Minute

// redeclare declares again everything that messages need, unless that was done
// after the instant given. It goes on when its caller does not wait any more. Its
// errors are final when permanent or a *topology.DestinationError says so.
func (c *Client) redeclare(ctx context.Context, sess *session, after time.Time) error {
	done := make(chan error, 1)
	begun := c.declares.begin(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, redeclareTimeout)
		defer cancel()
		done <- c.onDeclareConn(ctx, sess, false, func(conn *amqp.Connection) error {
			return believed(ctx, false, func() error { return c.redeclareOn(ctx, conn, after) })
		})
	})
	if !begun {
		return ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// redeclareOn is redeclare on a connection. What may be new is proven again.
func (c *Client) redeclareOn(ctx context.Context, conn *amqp.Connection, after time.Time) error {
	if err := c.declareMu.lock(ctx); err != nil {
		return err
	}
	defer c.declareMu.unlock()
	if c.declared.After(after) {
		return nil
	}
	c.dests.forgetAll()
	unproven := c.unprove()
	err := c.declareStrategyLocked(ctx, conn, c.declareAll)
	if unproven == nil {
		return err
	}
	if err == nil {
		err = c.prove(ctx, unproven)
	}
	if err != nil {
		closeConn(unproven.conn) // the next session declares and proves, or says why not
	}
	return err
}

// Apply declares a topology beside the strategy's own, such as the exchanges
// and queues of an application. It fails with *topology.ConflictError when the
// broker has something else under one of the names.
func (c *Client) Apply(ctx context.Context, t topology.Topology) error {
	sess, err := c.pub.wait(ctx, false)
	if err != nil {
		return err
	}
	return c.onDeclareConn(ctx, sess, false, func(conn *amqp.Connection) error {
		if err := c.declareMu.lock(ctx); err != nil { // of a connection's Applies one at a time
			return err
		}
		defer c.declareMu.unlock()
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

// oneChannel runs operations one after another on a channel, a fresh one after
// each that failed.
type oneChannel struct {
	conn *amqp.Connection
	ch   *amqp.Channel
}

func (o *oneChannel) do(op func(ch *amqp.Channel) error) (err error) {
	if o.ch == nil {
		if o.ch, err = o.conn.Channel(); err != nil {
			o.ch = nil
			return err
		}
	}
	if err = op(o.ch); err != nil {
		o.close()
	}
	return err
}

func (o *oneChannel) close() {
	if o.ch != nil {
		_ = o.ch.Close() // the broker may have closed it
		o.ch = nil
	}
}
