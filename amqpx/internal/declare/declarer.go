package declare

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// Strategy is what is declared.
type Strategy interface {
	Name() string
	Prefix() string
	Topology() topology.Topology
	Bindings(dest topology.Destination) []topology.Binding
}

// Config is what a Declarer may create, and for whom. All fields are required.
type Config struct {
	Strategy       Strategy
	OnlyLook       bool // create nothing
	QueueType      topology.QueueType
	MaxRouteQueues int
	Recheck        time.Duration // how long a destination counts as bound
	// Listed returns the error of a destination that may not be used.
	Listed func(topology.Destination) error
	// Configured returns the destination of a queue as it is configured.
	Configured func(queue string) topology.Destination

	Wire   wire.Config
	Direct bool // Wire.Dial reaches any address
	// Publishing returns the publishing connection and waits for it, Current without
	// waiting.
	Publishing func(ctx context.Context) (*Session, error)
	Current    func() (*Session, bool)
	Alarm      func() string // why the broker blocks; empty if it does not
}

// Session is a connection that needs something to be declared.
type Session struct {
	*wire.Session

	Publishes bool
	proof     atomic.Pointer[proof] // nil: nothing may be sent by an instant now
}

// Declarer declares what one client needs.
type Declarer struct {
	cfg   Config
	log   *zap.Logger
	over  context.Context
	conns *conns
	dests *destinations
	own   *ownBindings

	mu        wait.Mutex // held while the strategy's topology is being declared
	declared  time.Time  // when it last was
	lookEnded bool       // the connection ended while it was looked for
}

// New returns a Declarer. The end of over cuts its connections.
func New(over context.Context, cfg Config) *Declarer {
	c := &Declarer{cfg: cfg, log: cfg.Wire.Log, over: over, conns: newConns(over, cfg.Wire, cfg.Direct), mu: wait.NewMutex()}
	c.own = newOwnBindings(c)
	c.dests = &destinations{c: c, known: map[destKey]*destination{}, sweepAt: minSweep, creating: map[string]wait.Mutex{}, routes: map[string]bool{}}
	return c
}

// Do runs f on a connection that the broker may end over what f asks, and gives the
// connection up when it does not answer before ctx ends.
func (c *Declarer) Do(ctx context.Context, s *Session, f func(conn *amqp.Connection) error) error {
	return c.do(ctx, s, false, f)
}

// DoAlone is Do on a connection that nobody else uses, for what the broker may answer by ending it.
func (c *Declarer) DoAlone(ctx context.Context, s *Session, f func(conn *amqp.Connection) error) error {
	return c.do(ctx, s, true, f)
}

func (c *Declarer) do(ctx context.Context, s *Session, alone bool, f func(conn *amqp.Connection) error) error {
	l, err := c.conns.borrow(ctx, s, alone)
	if err != nil {
		return err
	}
	answered := make(chan error, 1)
	if !c.conns.begin(func(context.Context) { defer l.end(); answered <- f(l.conn) }) {
		l.end()
		return wire.ErrClosed
	}
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		l.spoil()
		return fmt.Errorf("%w: %w", errNoAnswer, ctx.Err())
	}
}

// beside runs f until Close at the latest, and returns its error or that of ctx.
func (c *Declarer) beside(ctx context.Context, f func(ctx context.Context) error) error {
	done := make(chan error, 1)
	if !c.conns.begin(func(ctx context.Context) { done <- f(ctx) }) {
		return wire.ErrClosed
	}
	return wait.Result(ctx, done)
}

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
	err := c.applying(func(o live.ApplyOptions) error { return live.Broker{Conn: conn}.Ensure(ctx, t, o) })
	c.lookEnded = wire.EndsConnection(err)
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
	return c.apply(ctx, conn, t)
}

// applying calls do with how this client declares a topology. That it has no lock is worth a line only if something
// was created: a user without the right to the lock may have none at all.
func (c *Declarer) applying(do func(live.ApplyOptions) error) error {
	var unlocked error
	err := do(live.ApplyOptions{Prefix: c.cfg.Strategy.Prefix(), Unlocked: func(err error) { unlocked = err }})
	if unlocked != nil && err == nil {
		c.log.Warn("created bindings without the lock against concurrent binding", zap.String("lock", naming.LockQueue(c.cfg.Strategy.Prefix())), zap.Error(unlocked))
	}
	return err
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
	c.dests.mu.Lock()
	c.dests.epoch++
	c.dests.mu.Unlock()
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
		return c.apply(ctx, conn, t)
	})
}

func (c *Declarer) apply(ctx context.Context, conn *amqp.Connection, t topology.Topology) error {
	return c.applying(func(o live.ApplyOptions) error {
		_, err := live.Broker{Conn: conn}.Apply(ctx, t, o)
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
