package amqpx

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Client sends delayed messages to, and consumes from, one RabbitMQ broker or
// cluster. It is safe for concurrent use. It holds one connection to publish
// and, from the first Consume, another to consume, so that a broker that blocks
// publishers does not hold up acknowledgements.
type Client struct {
	cfg      Config
	strategy Strategy
	hooks    hooks
	log      *zap.Logger
	dests    *destinations
	sizes    sizes

	pub *link
	con *link

	declareMu ctxMutex
	declared  time.Time // when the strategy's topology was last declared

	mu         sync.Mutex
	closed     bool
	conStarted bool
	consumers  sync.WaitGroup
	aside      sync.WaitGroup  // what background runs
	stop       context.Context // ends at Close
	stopCancel context.CancelFunc
}

// openTimeout bounds Open when its context has no deadline.
const openTimeout = 30 * time.Second

// Open connects to the broker and declares the strategy's topology. It tries
// until the context ends (30 s without a deadline), and fails at once when
// trying again is pointless: refused credentials, an untrusted certificate, a
// *topology.ConflictError. Errors wrap ErrConfig when the configuration is the
// reason.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	strategy := cfg.Strategy
	if strategy == nil {
		b, err := dlx.NewBucket(dlx.BucketConfig{Prefix: cfg.Prefix})
		if err != nil {
			return nil, fmt.Errorf("%w: Prefix: %w", ErrConfig, err)
		}
		strategy = b
	}
	if err := checkPrefix(strategy, cfg.Prefix); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, strategy: strategy, hooks: newHooks(cfg.Hooks), log: cfg.Logger}
	c.declareMu = newCtxMutex()
	c.dests = newDestinations(c)
	c.stop, c.stopCancel = context.WithCancel(context.Background())
	c.pub = newLink("publish", cfg, c.hooks, c.setupPublish)
	c.con = newLink("consume", cfg, c.hooks, c.setupConsume)
	c.pub.start()

	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, openTimeout)
		defer cancel()
	}
	if err := c.pub.first(ctx); err != nil {
		c.stopCancel()
		c.pub.close()
		return nil, fmt.Errorf("open: %w", err)
	}
	return c, nil
}

// checkPrefix finds a strategy that was built with another prefix.
func checkPrefix(s Strategy, prefix string) error {
	probe := topology.Destination{Exchange: "amq.topic", RoutingKey: "rabbitdelay"}
	for _, b := range s.Bindings(probe) {
		if b.Exchange != topology.DeliveryExchange(prefix) || b.Queue != probe.TargetQueue(prefix) {
			return fmt.Errorf("%w: Prefix: %q is not the prefix of the %s strategy, which binds %s to %s; give both the same", ErrConfig, prefix, s.Name(), b.Queue, b.Exchange)
		}
	}
	return nil
}

// Strategy is the client's strategy.
func (c *Client) Strategy() Strategy { return c.strategy }

// MaxDelay is the longest delay that Send accepts.
func (c *Client) MaxDelay() time.Duration { return c.strategy.MaxDelay() }

// Broker is the product and version of the broker connected last, such as
// "RabbitMQ 4.3.1"; empty while there is no connection.
func (c *Client) Broker() string {
	c.pub.mu.Lock()
	defer c.pub.mu.Unlock()
	if c.pub.cur == nil {
		return ""
	}
	return c.pub.cur.broker
}

// Apply declares a topology beside the strategy's own, such as the exchanges
// and queues of an application. It fails with *topology.ConflictError when the
// broker has something else under one of the names.
func (c *Client) Apply(ctx context.Context, t topology.Topology) error {
	sess, err := c.pub.wait(ctx, false)
	if err != nil {
		return err
	}
	return within(ctx, func() error {
		_, err := topology.Apply(ctx, sess.conn, t, topology.ApplyOptions{})
		return err
	})
}

// Close stops consuming, waits for running handlers (DrainTimeout of each
// consumer), and closes the connections. Sends that are waiting return with
// ErrClosed. It may be called more than once.
func (c *Client) Close() error {
	c.mu.Lock()
	already := c.closed
	c.closed = true
	started := c.conStarted
	c.mu.Unlock()
	if already {
		return nil
	}
	c.stopCancel()
	c.consumers.Wait()
	if started {
		c.con.close()
	}
	c.pub.close()
	c.aside.Wait()
	return nil
}

// background runs f, which ends with the publishing connection at the latest.
// It reports false when the client is closed.
func (c *Client) background(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.aside.Go(f)
	}
	return !c.closed
}

// setupPublish makes a fresh publishing connection usable.
func (c *Client) setupPublish(ctx context.Context, conn *amqp.Connection) (*session, error) {
	if err := c.declareStrategy(ctx, conn); err != nil {
		return nil, err
	}
	pub, err := newPubChannel(conn, c.cfg.MaxInFlight)
	if err != nil {
		return nil, err
	}
	return &session{conn: conn, pub: pub, done: make(chan struct{})}, nil
}

func (c *Client) setupConsume(_ context.Context, conn *amqp.Connection) (*session, error) {
	return &session{conn: conn, done: make(chan struct{})}, nil
}

// declareStrategy declares the strategy's topology, or checks that its
// exchanges exist when the client may not declare.
func (c *Client) declareStrategy(ctx context.Context, conn *amqp.Connection) error {
	if err := c.declareMu.lock(ctx); err != nil {
		return err
	}
	defer c.declareMu.unlock()
	return c.declareStrategyLocked(ctx, conn)
}

func (c *Client) declareStrategyLocked(ctx context.Context, conn *amqp.Connection) error {
	began := time.Now()
	err := within(ctx, func() error {
		if c.cfg.Declare == DeclareNothing {
			return verifyExchanges(conn, c.strategy.Topology())
		}
		_, err := topology.Apply(ctx, conn, c.strategy.Topology(), topology.ApplyOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("declare the %s strategy's topology: %w", c.strategy.Name(), err)
	}
	c.declared = time.Now()
	c.log.Debug("declared", zap.String("strategy", c.strategy.Name()), zap.Duration("took", time.Since(began)))
	return nil
}

// redeclare declares again everything that messages need, unless that was done
// after the instant given.
func (c *Client) redeclare(ctx context.Context, sess *session, after time.Time) error {
	if err := c.declareMu.lock(ctx); err != nil {
		return err
	}
	defer c.declareMu.unlock()
	if c.declared.After(after) {
		return nil
	}
	c.dests.forgetAll()
	return c.declareStrategyLocked(ctx, sess.conn)
}

// verifyExchanges finds out whether the strategy's exchanges exist, those that
// the user may look at: since RabbitMQ 4.3 that takes some right to an object.
func verifyExchanges(conn *amqp.Connection, t topology.Topology) error {
	for _, e := range t.Exchanges {
		err := exchangeExists(conn, e.Name)
		if err != nil && !isCode(err, amqp.AccessRefused) {
			return fmt.Errorf("exchange %s: %w; this client may not declare (DeclareNothing): run rabbitdelay apply first", e.Name, err)
		}
	}
	return nil
}

// first waits for the first session, and returns early on a permanent error.
func (l *link) first(ctx context.Context) error {
	for {
		l.mu.Lock()
		cur, last, fatal, changed := l.cur, l.lastErr, l.fatal, l.changed
		l.mu.Unlock()
		switch {
		case fatal != nil:
			return fatal
		case cur != nil:
			return nil
		case last != nil && permanent(last):
			return last
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if last != nil {
				return errors.Join(last, ctx.Err())
			}
			return ctx.Err()
		}
	}
}

// within runs f, which may hang on a broker that has stopped reading, and gives
// up waiting for it when ctx ends. f then ends with its connection.
func within(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ctxMutex is a mutex that one stops waiting for when a context ends: its
// holder may be talking to a broker that does not answer.
type ctxMutex chan struct{}

func newCtxMutex() ctxMutex { return make(ctxMutex, 1) }

func (m ctxMutex) lock(ctx context.Context) error {
	select {
	case m <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m ctxMutex) unlock() { <-m }
