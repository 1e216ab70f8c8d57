package amqpx

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/dlx"
)

// Client sends delayed messages to, and consumes from, one RabbitMQ broker or
// cluster. It is safe for concurrent use. It holds one connection to publish
// and, from the first Consume, another to consume, so that a broker that blocks
// publishers does not hold up acknowledgements. While it declares destinations it
// has a third one, because the broker may end a connection over a declaration; it
// is closed after a minute without use.
type Client struct {
	cfg      Config
	strategy Strategy
	hooks    hooks
	log      *zap.Logger
	dests    *destinations
	own      *ownBindings
	sizes    sizes

	pub *link
	con *link

	declares  *declareConns
	declareMu ctxMutex  // held while the strategy's topology is being declared
	declared  time.Time // when it last was
	lookEnded bool      // the connection ended while the client looked for it

	mu         sync.Mutex
	closed     bool
	conStarted bool
	running    map[*consumer]struct{}
	consumers  sync.WaitGroup
	stop       context.Context // ends at Close
	stopCancel context.CancelFunc

	sends        *underWay
	closing      sync.Once
	closingSince atomic.Pointer[time.Time] // nil before Close
	forced       context.Context           // ends when Close is to wait for nothing any more
	force        context.CancelCauseFunc
	over         context.Context // ends soon after that, and cuts the connections
	cut          context.CancelFunc
	abandoned    atomic.Int64  // handlers that Close did not wait for
	shut         chan struct{} // closed when Close is done, after shutErr is set
	shutErr      error
}

// openTimeout bounds Open when its context has no deadline.
const openTimeout = 30 * time.Second

// Open connects to the broker, checks in a few round trips whether the
// strategy's topology exists (live.Broker.Ensure), and declares it if it is
// missing. It tries until the context ends (30 s without a deadline), and fails
// at once when trying again is pointless: an untrusted certificate, a
// *topology.ConflictError. Refused credentials are final after 2 s, because a
// starting broker refuses everybody. Without Config.Logger it writes a line to
// slog.Default after 3 s of failed attempts; its error has the last one. Errors caused by the configuration wrap
// ErrConfig. A strategy that proves the broker by messages of its own (Canary)
// cannot do so while an alarm blocks publishers; the error then wraps ErrBlocked.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	direct := cfg.Dial == nil
	var tell func(why error)
	if cfg.Logger == nil {
		tell = func(why error) {
			slog.WarnContext(ctx, "rabbitdelay: Open waits for a broker (set Config.Logger for more)", slog.Any("error", why))
		}
	}
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	strategy, err := cfg.strategy()
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, strategy: strategy, hooks: newHooks(cfg.Hooks, cfg.Logger), log: cfg.Logger, running: map[*consumer]struct{}{}}
	c.over, c.cut = context.WithCancel(context.Background())
	c.declares, c.declareMu = newDeclareConns(c.over, cfg, direct), newCtxMutex()
	c.dests, c.own = newDestinations(c), newOwnBindings(c)
	c.stop, c.stopCancel = context.WithCancel(context.Background())
	c.forced, c.force = context.WithCancelCause(context.Background())
	c.sends, c.shut = newUnderWay(), make(chan struct{})
	c.pub = newLink(c.over, "publish", cfg, c.hooks, c.setupPublish)
	c.con = newLink(c.over, "consume", cfg, c.hooks, c.setupConsume)
	c.pub.start()

	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, openTimeout)
		defer cancel()
	}
	if err := c.pub.first(ctx, tell); err != nil {
		c.stopCancel()
		c.pub.close()
		c.declares.close()
		c.cut()
		return nil, fmt.Errorf("open: %w", err)
	}
	return c, nil
}

// strategy is the one that was given, or the default.
func (c Config) strategy() (Strategy, error) {
	if c.Strategy != nil {
		return c.Strategy, nil
	}
	return dlx.NewBucket(dlx.BucketConfig{})
}

// Strategy is the client's strategy.
func (c *Client) Strategy() Strategy { return c.strategy }

// MaxDelay is the longest delay that Send accepts.
func (c *Client) MaxDelay() time.Duration { return c.strategy.MaxDelay() }

// BrokerVersion is the product and version of the broker connected last, such as
// "RabbitMQ 4.3.1"; empty while there is no connection.
func (c *Client) BrokerVersion() string {
	if s := c.pub.current(); s != nil {
		return s.broker
	}
	return ""
}

// setupPublish makes a fresh publishing connection usable.
func (c *Client) setupPublish(ctx context.Context, conn *amqp.Connection) (*session, error) {
	pub := newPublisher(conn, c.cfg.MaxInFlight, c.stuck)
	opened := make(chan error, 1)
	go func() { opened <- pub.open(ctx) }() // beside the declaration: one round trip less or two
	err := c.declareStrategy(ctx, conn)
	if openErr := <-opened; err == nil {
		err = openErr
	}
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn, pub: pub, done: make(chan struct{})}
	return s, c.prove(ctx, s)
}

// stuck logs which queues have stopped confirming, and asks whether it is the broker
// that has stopped.
func (c *Client) stuck(queues []string) {
	go c.pub.probe()
	go c.con.probe()
	c.log.Warn("queues do not confirm; only their messages wait", zap.Int("count", len(queues)), zap.Strings("queues", queues[:min(len(queues), 10)]))
}

func (c *Client) setupConsume(_ context.Context, conn *amqp.Connection) (*session, error) {
	return &session{conn: conn, done: make(chan struct{})}, nil
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
