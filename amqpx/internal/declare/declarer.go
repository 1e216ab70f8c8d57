package declare

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Strategy is the delay strategy whose topology and bindings are declared.
type Strategy interface {
	Name() string
	Prefix() string
	Topology() topology.Topology
	Bindings(dest topology.Destination) []topology.Binding
}

// Config configures a Declarer. All fields are required.
type Config struct {
	Strategy       Strategy
	OnlyLook       bool // create nothing, only check that objects exist
	QueueType      topology.QueueType
	MaxRouteQueues int
	Recheck        time.Duration // how long a destination is assumed to be bound
	// Listed returns the error for a destination that the client is not allowed to use.
	Listed func(topology.Destination) error
	// Configured returns the destination of a queue with its configured options.
	Configured func(queue string) topology.Destination

	Wire   wire.Config
	Direct bool // Wire.Dial can reach any address
	// Publishing returns the publishing connection and waits for it if necessary. Current does not wait.
	Publishing func(ctx context.Context) (*Session, error)
	Current    func() (*Session, bool)
	Alarm      func() string // the reason why the broker blocks; empty if it does not
}

// Session is a connection together with what the Declarer has found out about it.
type Session struct {
	*wire.Session

	Publishes bool
	proof     atomic.Pointer[proof] // nil while messages that are due at a given time must not be sent
}

// Declarer makes sure that the objects that one client needs exist on the broker.
type Declarer struct {
	cfg   Config
	log   *zap.Logger
	over  context.Context
	conns *conns
	dests *destinations
	own   *ownBindings

	mu        wait.Mutex // held while the strategy's topology is being declared
	declared  time.Time  // when it was last declared
	lookEnded bool       // the broker closed the connection during the check for the topology
}

// New returns a Declarer. The parameter over is a context whose end closes its connections abruptly.
func New(over context.Context, cfg Config) *Declarer {
	c := &Declarer{cfg: cfg, log: cfg.Wire.Log, over: over, conns: newConns(over, cfg.Wire, cfg.Direct), mu: wait.NewMutex()}
	c.own = newOwnBindings(c)
	c.dests = &destinations{c: c, known: map[destKey]*destination{}, sweepAt: minSweep, creating: map[string]wait.Mutex{}, routes: map[string]bool{}}
	return c
}

// Do runs f on a connection that the broker may close in reply to the requests in f. If ctx ends before f returns, Do
// returns an error, and the connection gets no new users.
func (c *Declarer) Do(ctx context.Context, s *Session, f func(conn *amqp.Connection) error) error {
	return c.do(ctx, s, false, f)
}

// DoAlone works like Do, but on a connection that is not shared. Use it for requests that are likely to make the broker
// close the connection, which would disturb its other users.
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
		return l.ending.Explain(err)
	case <-ctx.Done():
		l.spoil()
		return fmt.Errorf("%w: %w", errNoAnswer, ctx.Err())
	}
}

// detached runs f in another goroutine, with a context that ends when the Declarer is closed. It returns the error of
// f, or the error of ctx if that ends first. In that case f continues.
func (c *Declarer) detached(ctx context.Context, f func(ctx context.Context) error) error {
	done := make(chan error, 1)
	if !c.conns.begin(func(ctx context.Context) { done <- f(ctx) }) {
		return wire.ErrClosed
	}
	return wait.Result(ctx, done)
}

// Strategy declares the parts of the strategy's topology that are missing, or only checks for them if the client is not
// allowed to declare them. The connection must be new, and nothing may have been published on it. If ctx ends before
// Strategy returns, the caller must close the connection, which stops the declarations.
func (c *Declarer) Strategy(ctx context.Context, conn *amqp.Connection) error {
	return c.detached(ctx, func(whole context.Context) error { // also works during Close, because handlers may still send
		if err := c.mu.Lock(ctx); err != nil {
			return err
		}
		defer c.mu.Unlock()
		return c.declareStrategy(whole, conn, c.ensureTopology)
	})
}

// declareStrategy declares the strategy's topology with the given function. The caller holds mu.
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
	c.log.Debug("the strategy's topology is declared", zap.String("strategy", c.cfg.Strategy.Name()), zap.Duration("took", time.Since(began)))
	return nil
}

// ensureTopology declares a topology unless it exists. If the client must not declare, it only checks the topology. If
// the broker closed the connection during the check, the check is not repeated; see live.Broker.Ensure.
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

// notApplied adds advice to the error for a missing exchange.
func notApplied(err error) error {
	if wire.IsCode(err, amqp.NotFound) {
		return fmt.Errorf("%w; %w", err, errNotApplied)
	}
	return err
}

// declareAll declares a topology without checking for it first. If the client must not declare, it only checks the
// exchanges.
func (c *Declarer) declareAll(ctx context.Context, conn *amqp.Connection, t topology.Topology) error {
	if c.cfg.OnlyLook {
		return notApplied(live.Broker{Conn: conn}.VerifyExchanges(ctx, t))
	}
	return c.apply(ctx, conn, t)
}

// applying passes this client's options for declaring a topology to the function do. If the lock could not be taken,
// that is logged only after something was created, because a user without the permission for the lock may not be able
// to create anything.
func (c *Declarer) applying(do func(live.ApplyOptions) error) error {
	var unlocked error
	err := do(live.ApplyOptions{Prefix: c.cfg.Strategy.Prefix(), Unlocked: func(err error) { unlocked = err }})
	if unlocked != nil && err == nil {
		c.log.Warn("created bindings without the lock that prevents concurrent binding", zap.String("lock", naming.LockQueue(c.cfg.Strategy.Prefix())), zap.Error(unlocked))
	}
	return err
}

// redeclareTimeout is the time limit of Again.
const redeclareTimeout = time.Minute

// Again redeclares everything that messages need, unless that has been done since the time given by after. It continues
// even if its caller stops waiting. An error is final if Config.Wire.Permanent reports it or if it is a
// *topology.DestinationError.
func (c *Declarer) Again(ctx context.Context, s *Session, after time.Time) error {
	return c.detached(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, redeclareTimeout)
		defer cancel()
		return c.Do(ctx, s, func(conn *amqp.Connection) error {
			return believed(ctx, false, func() error { return c.redeclare(ctx, conn, after) })
		})
	})
}

// redeclare does what Again does, on a given connection. If delays have to be proven, they are proven again.
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
		wire.CloseConn(unproven.Conn) // the next session declares and proves again, or returns the reason why it cannot
	}
	return err
}

// Apply declares a topology in addition to the strategy's, such as an application's exchanges and queues. It fails with
// a *topology.ConflictError if the broker has a different object with one of the names.
func (c *Declarer) Apply(ctx context.Context, t topology.Topology) error {
	s, err := c.cfg.Publishing(ctx)
	if err != nil {
		return err
	}
	return c.Do(ctx, s, func(conn *amqp.Connection) error {
		if err := c.mu.Lock(ctx); err != nil { // one Apply at a time on a connection
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

// exchangeExists checks whether an exchange of any type exists.
func exchangeExists(ch *amqp.Channel, name string) error {
	return ch.ExchangeDeclarePassive(name, amqp.ExchangeTopic, true, false, false, false, nil)
}

func queueExists(ch *amqp.Channel, name string) error {
	_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
	return err
}
