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
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
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
	c.dests, c.own = newDestinations(c), newOwnBindings(c)
	return c
}

// Ensure declares and binds a destination on first use in a session. An error that wraps
// topology.ErrDestination is final. Any other may pass: it comes at once when a try has
// just failed, and is worth another call after a pause.
func (c *Declarer) Ensure(ctx context.Context, s *Session, dest topology.Destination) error {
	return c.dests.ensure(ctx, s, dest)
}

// Consume declares and binds a queue for a consumer, whatever is known of it.
func (c *Declarer) Consume(ctx context.Context, s *Session, dest topology.Destination) error {
	return c.dests.declare(ctx, s, dest)
}

// Do runs f on a connection that the broker may end over what f asks, and gives the
// connection up when it does not answer before ctx ends.
func (c *Declarer) Do(ctx context.Context, s *Session, f func(conn *amqp.Connection) error) error {
	return c.do(ctx, s, false, f)
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

// Unbind takes this client's own bindings away, if the broker answers soon. It is called
// before Close, while there is a publishing connection.
func (c *Declarer) Unbind() { c.own.close() }

// Close ends the connections and what runs on them.
func (c *Declarer) Close() { c.conns.close() }

// Status returns the state of the shared connection. It takes no lock.
func (c *Declarer) Status() Status { return c.conns.status() }
