package consume

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/declare"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/duecheck"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/inner"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Config contains what a client's consumers need from the client.
type Config struct {
	Strategy  Strategy
	Publisher Publisher
	Declarer  *declare.Declarer
	Wire      wire.Config
	// Changed returns the function that is called with the state changes of the connection with the given name.
	Changed func(connection string) func(wire.Event)
	Now     func() time.Time // the wall clock
	Log     *zap.Logger

	Stop   context.Context // ends when Close is called
	Forced context.Context // ends when Close must not wait any longer
	Over   context.Context // ends shortly after Forced, and then the connections are closed abruptly
}

// Strategy is the part of a strategy that a consumer uses to send messages back to their queue.
type Strategy interface {
	Prefix() string
	Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error)
	MaxDelay() time.Duration
}

// Publisher publishes the messages that replace received ones: retries, dead letters and copies.
type Publisher interface {
	// Publishing waits for the publishing connection. If unblocked is true, it also waits until the broker does not
	// block that connection.
	Publishing(ctx context.Context, unblocked bool) (*wire.Session, error)
	// Pass publishes a message, and returns nil when the broker has confirmed it.
	Pass(ctx context.Context, p inner.Copy) error
	// Invalid reports whether an error of Pass means that the message can never be published unchanged, and whether
	// only its headers are the reason.
	Invalid(err error) (invalid, headers bool)
	// NewID returns an id for a message without one.
	NewID() string
}

// Consumers holds the consumers of a client, the connection that they share, and the measurements of the broker's
// clock.
type Consumers struct {
	cfg    Config
	link   *wire.Link[*Session]
	pauses *pauses
	clocks duecheck.Judge
	clock  brokerClock
	began  time.Time // when it was created, with a monotonic clock reading

	mu      sync.Mutex
	closed  bool
	started bool // whether the link has been started
	running map[*Consumer]struct{}
	work    sync.WaitGroup // running consumers and other operations, for which Wait waits

	abandoned atomic.Int64 // handlers that the end of Close's context cut off
}

// NewConsumers returns an empty Consumers for a client.
func NewConsumers(cfg Config) *Consumers {
	return &Consumers{
		cfg: cfg, link: wire.NewLink(cfg.Over, "consume", cfg.Wire, newSession, cfg.Changed("consume")),
		pauses: newPauses(), began: time.Now(), running: map[*Consumer]struct{}{},
	}
}

// Session is a connection on which messages are consumed.
type Session struct {
	*declare.Session

	starts wait.Mutex // held while one of the connection's consumers starts
}

func newSession(_ context.Context, s *wire.Session) (*Session, error) {
	return &Session{Session: &declare.Session{Session: s}, starts: wait.NewMutex()}, nil
}

// Begin registers an operation. Wait waits until the operation calls the returned function. Begin returns
// wire.ErrClosed once Wait has been called.
func (a *Consumers) Begin() (end func(), err error) { return a.work.Done, a.begin(nil) }

// begin registers a consumer or, if k is nil, another operation. It opens the shared connection for the first consumer.
func (a *Consumers) begin(k *Consumer) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return wire.ErrClosed
	}
	a.work.Add(1)
	if k != nil {
		if !a.started {
			a.started = true
			a.link.Start()
		}
		k.become(Starting, nil)
		a.running[k] = struct{}{}
	}
	return nil
}

// end removes a consumer that begin has registered.
func (a *Consumers) end(k *Consumer) {
	a.mu.Lock()
	delete(a.running, k)
	a.mu.Unlock()
	k.endOwn()
	a.work.Done()
}

// Wait calls stop, and returns when all registered consumers and operations have finished. No more can be registered.
func (a *Consumers) Wait(stop func()) {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	stop()
	a.work.Wait()
}

// Close closes the shared connection. It is called after Wait.
func (a *Consumers) Close() {
	a.mu.Lock()
	started := a.started
	a.mu.Unlock()
	if started {
		a.link.Close()
	}
}

// Abandoned returns the number of handlers that the end of Close's context cut off.
func (a *Consumers) Abandoned() int { return int(a.abandoned.Load()) }

// Status returns the status of the shared connection.
func (a *Consumers) Status() wire.Status { return a.link.Status() }

// ClockBehind returns the time at which this process's clock was first seen behind the clocks of brokers and
// publishers, and whether it is behind now.
func (a *Consumers) ClockBehind() (since time.Time, behind bool) {
	_, since, behind = a.clocks.Behind(a.cfg.Now())
	return since, behind
}

// Stats returns the state of each running consumer, in no particular order.
func (a *Consumers) Stats() []Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]Stats, 0, len(a.running))
	for k := range a.running {
		all = append(all, k.stats())
	}
	return all
}

// Probe checks in the background whether the broker answers on the connections of consumers.
func (a *Consumers) Probe() {
	go a.link.Probe()
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := range a.running {
		if own := k.own.Load(); own != nil {
			go own.Probe()
		}
	}
}
