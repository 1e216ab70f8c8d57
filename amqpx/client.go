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

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/declare"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/flow"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/lasthop"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

// Client sends delayed messages to, and consumes from, one RabbitMQ broker or
// cluster. It is safe for concurrent use. It holds one connection to publish
// and, from the first Consume, another to consume, so that a broker that blocks
// publishers does not hold up acknowledgements. While it declares destinations it
// has a third one, because the broker may end a connection over a declaration; it
// is closed after a minute without use. For the same reason the consumer of a queue
// over which the broker has ended a connection gets one of its own, and so does a run of
// package inspect.
type Client struct {
	cfg      Config
	strategy Strategy
	hooks    hooks
	log      *zap.Logger
	decl     *declare.Declarer
	clocks   lasthop.Judge
	clock    brokerClock
	began    time.Time // monotonic
	sizes    sizes

	pub *wire.Link[*session]
	con *wire.Link[*session]

	mu         sync.Mutex
	closed     bool
	conStarted bool
	running    map[*consumer]struct{}
	pauses     *pauses  // of queues
	silent     sync.Map // queues whose last answer to basic.get ended a connection, or was none
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
	abandoned    atomic.Int64  // handlers that the end of Close's context cut off
	shut         chan struct{} // closed when Close is done, after shutErr is set
	shutErr      error
}

// openTimeout bounds Open when its context has no deadline.
const openTimeout = 30 * time.Second

// Open connects to the broker, checks in a few round trips whether the
// strategy's topology exists (live.Broker.Ensure), and declares it if it is
// missing. It tries until the context ends (30 s without a deadline), and fails
// at once when trying again is pointless: an untrusted certificate, a
// *plan.ConflictError. Refused credentials are final if they are refused again after 2 s
// or more, because a starting broker refuses everybody; RabbitMQ answers each wrong password
// after 3 s. Without Config.Logger it writes a line to
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
	c := &Client{cfg: cfg, strategy: strategy, began: time.Now(), hooks: newHooks(cfg.Hooks, cfg.Logger), log: cfg.Logger, running: map[*consumer]struct{}{}, pauses: newPauses()}
	c.over, c.cut = context.WithCancel(context.Background())
	c.stop, c.stopCancel = context.WithCancel(context.Background())
	c.forced, c.force = context.WithCancelCause(context.Background())
	c.sends, c.shut = newUnderWay(), make(chan struct{})
	c.pub = wire.NewLink(c.over, "publish", cfg.wire(), c.setupPublish, c.stateHook("publish"))
	c.con = wire.NewLink(c.over, "consume", cfg.wire(), c.setupConsume, c.stateHook("consume"))
	c.decl = declare.New(c.over, c.declaring(direct))
	c.pub.Start()

	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, openTimeout)
		defer cancel()
	}
	if err := c.pub.First(ctx, tell); err != nil {
		c.stopCancel()
		c.pub.Close()
		c.decl.Close()
		c.cut()
		return nil, fmt.Errorf("open: %w", err)
	}
	return c, nil
}

// Strategy is the client's strategy.
func (c *Client) Strategy() Strategy { return c.strategy }

// MaxDelay is the longest delay that Send accepts.
func (c *Client) MaxDelay() time.Duration { return c.strategy.MaxDelay() }

// BrokerVersion is the product and version of the broker connected last, such as
// "RabbitMQ 4.3.1"; empty while there is no connection.
func (c *Client) BrokerVersion() string {
	if s, ok := c.pub.Current(); ok {
		return s.Broker
	}
	return ""
}

// session is a connection of the client's.
type session struct {
	*declare.Session

	pub    *flow.Publisher // nil on a consuming link
	starts wait.Mutex      // of a consuming link, held while one of its consumers starts
}

// declaring is what the client declares.
func (c *Client) declaring(direct bool) declare.Config {
	return declare.Config{
		Strategy: c.strategy, OnlyLook: c.cfg.Declare == DeclareNothing, QueueType: c.cfg.QueueType,
		MaxRouteQueues: c.cfg.MaxRouteQueues, Recheck: c.cfg.RecheckInterval, Listed: c.cfg.Listed, Configured: c.cfg.destination,
		Wire: c.cfg.wire(), Direct: direct,
		Publishing: func(ctx context.Context) (*declare.Session, error) {
			sess, err := c.pub.Wait(ctx, false)
			if err != nil {
				return nil, err
			}
			return sess.Session, nil
		},
		Current: func() (*declare.Session, bool) {
			sess, ok := c.pub.Current()
			if !ok {
				return nil, false
			}
			return sess.Session, true
		},
		Alarm: func() string { return c.pub.Status().Alarm },
	}
}

// Apply declares a topology beside the strategy's own, such as the exchanges
// and queues of an application. It fails with *plan.ConflictError when the
// broker has something else under one of the names.
func (c *Client) Apply(ctx context.Context, t topology.Topology) error { return c.decl.Apply(ctx, t) }

// setupPublish makes a fresh publishing connection usable.
func (c *Client) setupPublish(ctx context.Context, s *wire.Session) (*session, error) {
	pub := flow.NewPublisher(s.Conn, c.cfg.MaxInFlight, c.stuck)
	opened := make(chan error, 1)
	go func() { opened <- pub.Open(ctx) }() // beside the declaration: one round trip less or two
	err := c.decl.Strategy(ctx, s.Conn)
	if openErr := <-opened; err == nil {
		err = openErr
	}
	if err != nil {
		return nil, err
	}
	sess := &session{Session: &declare.Session{Session: s, Publishes: true}, pub: pub}
	return sess, c.decl.Prove(ctx, sess.Session)
}

// stateHook returns the function that passes a connection's changes to the hooks.
func (c *Client) stateHook(connection string) func(wire.Event) {
	return func(e wire.Event) {
		c.hooks.connectionState(StateEvent{Connection: connection, State: State(e.State), Attempt: e.Attempt, Broker: e.Broker, Reason: e.Reason, Err: e.Err})
	}
}

// stuck logs which queues have stopped confirming, and asks whether it is the broker
// that has stopped.
func (c *Client) stuck(queues []string) {
	go c.pub.Probe()
	for _, con := range c.consuming() {
		go con.Probe()
	}
	c.log.Warn("queues do not confirm; only their messages wait", zap.Int("count", len(queues)), zap.Strings("queues", queues[:min(len(queues), 10)]))
}

func (c *Client) setupConsume(_ context.Context, s *wire.Session) (*session, error) {
	return &session{Session: &declare.Session{Session: s}, starts: wait.NewMutex()}, nil
}

// QueueInfo is what a broker tells about a queue.
type QueueInfo struct {
	Ready     int // messages that wait for a consumer
	Consumers int
}

// QueueInfo asks the broker about a queue by a passive declaration, which changes
// nothing. It takes three round trips, on a channel of its own of the connection
// for declarations, and needs no right to the queue before RabbitMQ 4.3, and any
// right (configure, write or read) since. A queue that the broker counts as empty and without
// consumers is asked for a message as well, if the user may read it, because the broker counts one
// that does not answer in the same way. A message that has come in the meantime is put back.
//
// The broker counts the messages that are ready. It leaves out those that a
// consumer holds unacknowledged, those that are still in a delay queue, and those
// that the last delay queue has begun to hand over: a queue without a ready
// message need not be done with.
//
// The error wraps an *amqp.Error with the code NotFound for a queue that does not
// exist, or whose node is down; AccessRefused for one that the user may not see;
// ResourceLocked for one that is exclusive to another connection. It wraps ErrUnavailable for a
// queue that does not answer.
func (c *Client) QueueInfo(ctx context.Context, queue string) (QueueInfo, error) {
	info, err := c.queueInfo(ctx, queue)
	if err != nil {
		return QueueInfo{}, fmt.Errorf("looking at queue %s: %w", queue, err)
	}
	return info, nil
}

func (c *Client) queueInfo(ctx context.Context, queue string) (info QueueInfo, err error) {
	sess, err := c.pub.Wait(ctx, false)
	if err != nil {
		return info, err
	}
	err = c.decl.Do(ctx, sess.Session, func(conn *amqp.Connection) error {
		ch := wire.Channel{Conn: conn}
		defer ch.Close()
		return ch.Do(func(ch *amqp.Channel) error {
			q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
			info = QueueInfo{Ready: q.Messages, Consumers: q.Consumers}
			return err
		})
	})
	if err != nil || info != (QueueInfo{}) {
		return info, err
	}
	return info, c.answers(ctx, sess.Session, queue)
}

// answers returns a *live.UnavailableError for a queue that the broker counts as empty because it does not answer. The
// broker may end the connection over that, so a queue that has not answered before is asked on one of its own.
func (c *Client) answers(ctx context.Context, sess *declare.Session, queue string) error {
	do := c.decl.Do
	if _, silent := c.silent.Load(queue); silent {
		do = c.decl.DoAlone
	}
	return do(ctx, sess, func(conn *amqp.Connection) error {
		why, err := live.Answers(ctx, conn, queue)
		if why == "" && !conn.IsClosed() { // as it is after a question to a stream
			c.silent.Delete(queue)
			return err
		}
		c.silent.Store(queue, true)
		if why != "" {
			return &live.UnavailableError{Queue: queue, Reason: why}
		}
		return err
	})
}

// Close ends the client in order. Consumers end as Consume describes; their
// handlers, and everybody else, may send meanwhile. Then further sends are refused
// with ErrClosed, and Close waits until each message that is under way has been
// confirmed, or has failed by its own deadline. Then the connections are closed.
//
// When ctx ends first, handlers get the end of their context and two seconds to
// notice, sends that wait return with ErrClosed, connections to a broker that does not
// answer are cut, and the error is a *CloseError that says what was left. So give it a context of its own, with a deadline below
// the grace period of the process, and not the one whose end asked the process to
// stop: with that nothing is waited for. Close with a context that does not end
// takes as long as the longest deadline of a send and drain time of a consumer
// (30 s each by default).
//
// A Client that was not made by Open returns ErrClosed.
//
// It may be called more than once and by many goroutines: all calls wait for the
// end, the end of any call's context counts, and all return the same error.
func (c *Client) Close(ctx context.Context) error {
	if c.force == nil {
		return ErrClosed
	}
	defer context.AfterFunc(ctx, func() {
		c.sends.keepFailures() // those of handlers that are cut off, too
		c.force(ctx.Err())
	})()
	c.closing.Do(func() {
		now := time.Now()
		c.closingSince.Store(&now)
		go func() {
			defer close(c.shut)
			c.shutErr = c.shutDown()
		}()
	})
	<-c.shut
	return c.shutErr
}

func (c *Client) shutDown() error {
	c.mu.Lock()
	c.closed = true
	started := c.conStarted
	c.mu.Unlock()
	c.stopCancel()
	c.consumers.Wait()
	defer context.AfterFunc(c.forced, func() { time.AfterFunc(closeGrace, c.cut) })()
	if started {
		c.con.Close()
	}
	c.sends.close()
	select {
	case <-c.sends.none:
	case <-c.forced.Done():
	}
	c.decl.Unbind()
	c.pub.Close()
	c.decl.Close()
	c.cut()
	failed, first := c.sends.failures()
	left := CloseError{Unconfirmed: failed, Messages: first, Handlers: int(c.abandoned.Load())}
	if left.Unconfirmed == 0 && left.Handlers == 0 {
		return nil
	}
	left.Cause = context.Cause(c.forced)
	return &left
}

// closeGrace is how long after the end of Close's context the connections may still end
// in order, as far as the broker answers.
const closeGrace = 200 * time.Millisecond
