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

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/consume"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/declare"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/flow"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Client sends delayed messages to, and consumes from, one RabbitMQ broker or cluster. It is safe for concurrent use.
// Use Open to create one. If a Client is nil, for example because Open failed, or is the zero value, the methods that
// return an error return one that wraps ErrClosed. Do not call its other methods.
//
// A client keeps one connection for publishing and, from the first call to Consume, another for consuming, so that a
// broker that blocks publishers does not delay acknowledgements. The broker may close a connection because of a failed
// declaration, so destinations are declared on a third connection, which is closed after a minute without use. For the
// same reason, each operation of package inspect has its own connection, and so does a consumer if consuming from its
// queue has made the broker close a connection.
type Client struct {
	cfg      Config
	strategy Strategy
	hooks    hooks
	log      *zap.Logger
	decl     *declare.Declarer
	began    time.Time // when the client was opened, with a monotonic clock reading
	sizes    sizes

	pub       *wire.Link[*session]
	consumers *consume.Consumers
	silent    sync.Map // queues whose last basic.get ended the connection or was not answered

	stop       context.Context // cancelled by Close
	stopCancel context.CancelFunc

	sends        *underWay
	closing      sync.Once
	closingSince atomic.Pointer[time.Time] // nil before Close
	forced       context.Context           // cancelled when the context of Close ends
	force        context.CancelCauseFunc
	over         context.Context // cancelled at the end of Close, or shortly after forced; then connections are closed abruptly
	cut          context.CancelFunc
	shut         chan struct{} // closed when Close has finished, after shutErr is set
	shutErr      error
}

// openTimeout bounds Open when its context has no deadline.
const openTimeout = 30 * time.Second

// Open connects to the broker, checks in a few round trips whether the strategy's topology exists, and declares it if
// it is missing (unless Config.Declare is DeclareNothing). It retries until the context ends, or for 30 s if the
// context has no deadline. It fails immediately if retrying is pointless, for example because of an untrusted
// certificate or a *topology.ConflictError. Refused credentials are final only if they are refused again after 2 s or
// more, because a starting broker refuses all users. RabbitMQ takes 3 s to answer a wrong password.
//
// Without Config.Logger, Open writes one line to slog.Default after 3 s of failed attempts. Open's error wraps the
// error of the last attempt. Errors caused by the configuration wrap ErrConfig. If the strategy has to test the broker
// with messages of its own (InstantProber), and a memory or disk alarm blocks publishers until the deadline, the error
// wraps ErrBlocked.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	direct := cfg.Dial == nil
	var tell func(why error)
	if cfg.Logger == nil {
		tell = func(why error) {
			slog.WarnContext(ctx, "rabbitdelay: Open is waiting for a broker (set Config.Logger for details)", slog.Any("error", why))
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
	c := &Client{cfg: cfg, strategy: strategy, began: time.Now(), hooks: newHooks(cfg.Hooks, cfg.Logger), log: cfg.Logger}
	c.over, c.cut = context.WithCancel(context.Background())
	c.stop, c.stopCancel = context.WithCancel(context.Background())
	c.forced, c.force = context.WithCancelCause(context.Background())
	c.sends, c.shut = newUnderWay(), make(chan struct{})
	c.pub = wire.NewLink(c.over, "publish", cfg.wire(), c.setupPublish, c.stateHook("publish"))
	c.decl = declare.New(c.over, c.declaring(direct))
	c.consumers = consume.NewConsumers(consume.Config{
		Strategy: strategy, Publisher: inside{c}, Declarer: c.decl, Wire: cfg.wire(), Changed: c.stateHook, Now: cfg.Now, Log: c.log,
		Stop: c.stop, Forced: c.forced, Over: c.over,
	})
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

// errNotOpened is returned by the methods of a Client that Open did not create.
var errNotOpened = fmt.Errorf("%w: it is nil or the zero value; use the client that amqpx.Open returned without an error", ErrClosed)

// opened returns an error if Open did not create the client.
func (c *Client) opened() error {
	if c == nil || c.force == nil {
		return errNotOpened
	}
	return nil
}

// Strategy returns the strategy that the client uses.
func (c *Client) Strategy() Strategy { return c.strategy }

// MaxDelay returns the longest delay that Send accepts.
func (c *Client) MaxDelay() time.Duration { return c.strategy.MaxDelay() }

// BrokerVersion returns the product and version of the broker that the publishing connection is connected to, such
// as "RabbitMQ 4.3.1". It returns "" while there is no connection.
func (c *Client) BrokerVersion() string {
	if s, ok := c.pub.Current(); ok {
		return s.Broker
	}
	return ""
}

// session is a connection on which messages are published.
type session struct {
	*declare.Session

	pub *flow.Publisher
}

// declaring returns the configuration of the client's declarer. The parameter direct says that connections use the
// default dialer, so the declarer can dial a node by its IP address.
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

// Apply declares a topology in addition to the strategy's own, such as an application's exchanges and queues. It does
// so whatever Config.Declare is. It fails with a *topology.ConflictError if the broker has a different object with one
// of the names.
func (c *Client) Apply(ctx context.Context, t topology.Topology) error {
	if err := c.opened(); err != nil {
		return err
	}
	return c.decl.Apply(ctx, t)
}

// setupPublish opens a publisher on a new connection and, at the same time, makes sure that the strategy's topology
// exists. If the strategy is an InstantProber, it then tests the broker.
func (c *Client) setupPublish(ctx context.Context, s *wire.Session) (*session, error) {
	if !wire.IsRabbitMQ(s.Broker) {
		c.log.Warn("the broker is not RabbitMQ; it may ignore the quorum queue arguments that prevent message loss",
			zap.String("broker", s.Broker))
	}
	pub := flow.NewPublisher(s.Conn, c.cfg.MaxInFlight, c.stuck)
	opened := make(chan error, 1)
	go func() { opened <- pub.Open(ctx) }() // concurrently with the declaration, which saves one or two round trips
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

// stateHook returns the function that passes a connection's state changes to the hooks.
func (c *Client) stateHook(connection string) func(wire.Event) {
	return func(e wire.Event) {
		c.hooks.connectionState(StateEvent{Connection: connection, State: State(e.State), Attempt: e.Attempt, Broker: e.Broker, Reason: e.Reason, Err: e.Err})
	}
}

// stuck logs the queues that have stopped confirming, and checks whether the broker itself has stopped answering. It
// logs nothing while the broker blocks publishers, because no queue confirms then, and the alarm has already been
// logged.
func (c *Client) stuck(queues []string) {
	go c.pub.Probe()
	c.consumers.Probe()
	if c.pub.Status().Alarm != "" {
		return
	}
	c.log.Warn("queues have stopped confirming; messages for other queues are not affected", zap.Int("count", len(queues)), zap.Strings("queues", queues[:min(len(queues), 10)]))
}

// QueueInfo is the broker's information about a queue.
type QueueInfo struct {
	Ready     int // messages that are ready for delivery
	Consumers int
}

// QueueInfo asks the broker about a queue with a passive declaration, which changes nothing. For a queue with messages
// or consumers, it takes three round trips on the connection for declarations. Before RabbitMQ 4.3 it needs no
// permission on the queue, and since then any of configure, write or read.
//
// The broker reports a queue that does not answer as empty and without consumers. If a queue looks like that, QueueInfo
// therefore tries to fetch a message from it, which shows whether the queue answers unless the user is not allowed to
// read it. A message that has just arrived is requeued. Then QueueInfo asks the broker again.
//
// Ready excludes messages that consumers have not acknowledged, messages that are still in a delay queue, and messages
// that the last delay queue is transferring at that moment. So a queue without ready messages may still receive some.
//
// The error wraps an *amqp.Error with the code NotFound if the queue does not exist or its node is down,
// AccessRefused if the user is not allowed to see it, and ResourceLocked if it is exclusive to another
// connection. It wraps ErrUnavailable if the queue does not answer.
func (c *Client) QueueInfo(ctx context.Context, queue string) (QueueInfo, error) {
	info, err := c.queueInfo(ctx, queue)
	if err != nil {
		return QueueInfo{}, fmt.Errorf("inspecting queue %s: %w", queue, err)
	}
	return info, nil
}

func (c *Client) queueInfo(ctx context.Context, queue string) (QueueInfo, error) {
	if err := c.opened(); err != nil {
		return QueueInfo{}, err
	}
	sess, err := c.pub.Wait(ctx, false)
	if err != nil {
		return QueueInfo{}, err
	}
	info, err := c.count(ctx, sess.Session, queue)
	if err != nil || info != (QueueInfo{}) {
		return info, err
	}
	if err := c.answers(ctx, sess.Session, queue); err != nil {
		return QueueInfo{}, err
	}
	return c.count(ctx, sess.Session, queue) // try again, because the queue may have had no leader for a moment
}

func (c *Client) count(ctx context.Context, sess *declare.Session, queue string) (QueueInfo, error) {
	answered := make(chan QueueInfo, 1) // buffered, because Do leaves the request running when ctx ends
	err := c.decl.Do(ctx, sess, func(conn *amqp.Connection) error {
		ch := wire.Channel{Conn: conn}
		defer ch.Close()
		return ch.Do(func(ch *amqp.Channel) error {
			q, err := channels.Count(ctx, ch, queue)
			if err == nil {
				answered <- QueueInfo{Ready: q.Messages, Consumers: q.Consumers}
			}
			return err
		})
	})
	if err != nil {
		return QueueInfo{}, err
	}
	return <-answered, nil
}

// answers returns a *live.UnavailableError if the broker reports a queue as empty because the queue does not answer.
// Asking may make the broker close the connection, so a queue that did not answer before is asked on a separate
// connection.
func (c *Client) answers(ctx context.Context, sess *declare.Session, queue string) error {
	do := c.decl.Do
	if _, silent := c.silent.Load(queue); silent {
		do = c.decl.DoAlone
	}
	return do(ctx, sess, func(conn *amqp.Connection) error {
		why, err := live.Answers(ctx, conn, queue)
		if why == "" && !conn.IsClosed() { // asking a stream closes the connection
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

// Close shuts the client down gracefully. First, the consumers stop as described at Consume. During that time, their
// handlers and the rest of the program may still send. Then further sends are refused with ErrClosed, and Close waits
// until each message that is being sent has been confirmed or has failed by its own deadline. Finally, the connections
// are closed.
//
// If ctx ends first, the contexts of running handlers are cancelled and handlers get two more seconds, waiting sends
// return with ErrClosed, and connections to a broker that does not answer are cut. The error is then a *CloseError that
// says what was left unfinished. So give Close a separate context, with a deadline shorter than the process's grace
// period. Do not pass the context whose cancellation started the shutdown. It has already ended, so Close would not
// wait at all. With a context that never ends, Close may take the longest drain time of a consumer plus the longest
// deadline of a send (30 s each by default), and a few seconds more.
//
// Close may be called more than once, and concurrently. All calls wait for the end of the shutdown and return the same
// error, and the end of any of their contexts cuts the shutdown short.
func (c *Client) Close(ctx context.Context) error {
	if err := c.opened(); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		c.sends.keepFailures() // from now on, including those of handlers that are cut off
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
	c.consumers.Wait(c.stopCancel)
	defer context.AfterFunc(c.forced, func() { time.AfterFunc(closeGrace, c.cut) })()
	c.consumers.Close()
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
	left := CloseError{Unconfirmed: failed, Messages: first, Handlers: c.consumers.Abandoned()}
	if left.Unconfirmed == 0 && left.Handlers == 0 {
		return nil
	}
	left.Cause = context.Cause(c.forced)
	return &left
}

// closeGrace is how long the connections may still take to close gracefully after Close's context has ended and the
// consumers have stopped.
const closeGrace = 200 * time.Millisecond
