package amqpx

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Defaults of a consumer.
const (
	DefaultConcurrency  = 16
	DefaultDrainTimeout = 30 * time.Second
)

// consumer is one call of Consume. It outlives connections: its workers take
// messages from whatever session there is, so that Concurrency bounds the
// handlers also while those of a lost connection still run.
type consumer struct {
	c       *Client
	queue   string
	handler Handler
	retry   topology.Retry
	policy  dlx.RetryPolicy
	dead    string

	concurrency int
	prefetch    int
	drain       time.Duration

	jobs     chan job
	handlers context.Context // of running handlers; ends when the drain time is over
	running  atomic.Int64
	began    bool // the broker has let it consume once
	log      *zap.Logger
}

// job is a message with the channel it must be acknowledged on.
type job struct {
	raw  amqp.Delivery
	sess *session
	gone <-chan struct{} // closed when that channel has ended
}

// ConsumeOption tunes one call of Consume.
type ConsumeOption func(*consumer)

// Concurrency is the number of handlers that run at once, default 16.
func Concurrency(n int) ConsumeOption { return func(k *consumer) { k.concurrency = n } }

// Prefetch is the number of unacknowledged messages that the broker hands out,
// those being handled included; default four times the concurrency, at most 65535.
func Prefetch(n int) ConsumeOption { return func(k *consumer) { k.prefetch = n } }

// DrainTimeout is how long running handlers may go on when the consumer ends,
// before their context is cancelled; default 30 s.
func DrainTimeout(d time.Duration) ConsumeOption { return func(k *consumer) { k.drain = d } }

// Retry sets the retry policy, instead of the one in Config.Destinations. Zero
// fields take the defaults of package dlx: 5 attempts, 1 s doubling up to 10 min.
func Retry(r topology.Retry) ConsumeOption { return func(k *consumer) { k.retry = r } }

// DeadLetterQueue names the queue for messages whose attempts are used up or
// that were rejected, instead of Config.Destinations' or queue + ".dead".
func DeadLetterQueue(name string) ConsumeOption { return func(k *consumer) { k.dead = name } }

// ErrDrainTimeout says that handlers were still running when the drain time was over.
// Their messages were not acknowledged and will be delivered again.
var ErrDrainTimeout = errors.New("drain timeout")

// Consume runs handler on the messages of queue, until ctx is cancelled or the
// client is closed; then it stops the intake, lets running handlers finish
// (DrainTimeout), and returns nil, or ErrDrainTimeout. Messages that were handed
// out and not begun go back to the queue. It survives lost connections, and a
// deleted queue, which it declares and binds again. Only before its first
// intake is a lasting refusal by the broker (access, conflicting arguments) final.
//
// A message is acknowledged only after its handler returned nil, or after its
// retry or its dead letter was confirmed by the broker.
func (c *Client) Consume(ctx context.Context, queue string, handler Handler, opts ...ConsumeOption) error {
	k, err := c.newConsumer(queue, handler, opts)
	if err != nil {
		return err
	}
	if err := c.startConsuming(); err != nil {
		return err
	}
	defer c.consumers.Done()
	return k.run(ctx)
}

func (c *Client) newConsumer(queue string, handler Handler, opts []ConsumeOption) (k *consumer, err error) {
	if queue == "" || len(queue) > topology.MaxRoutingKey {
		return nil, fmt.Errorf("%w: queue: %q; expected a name of 1 to %d bytes", ErrConfig, queue, topology.MaxRoutingKey)
	}
	if handler == nil {
		return nil, fmt.Errorf("%w: handler is nil", ErrConfig)
	}
	dest := c.destination(queue)
	k = &consumer{
		c: c, queue: queue, handler: handler, dead: dest.DeadLetterQueue(),
		concurrency: DefaultConcurrency, drain: DefaultDrainTimeout,
		jobs: make(chan job), log: c.log.Named("consume").With(zap.String("queue", queue)),
	}
	if dest.Retry != nil {
		k.retry = *dest.Retry
	}
	for _, o := range opts {
		o(k)
	}
	if k.prefetch == 0 {
		k.prefetch = min(4*k.concurrency, 65535)
	}
	switch {
	case k.concurrency < 1 || k.concurrency > 65535:
		return nil, fmt.Errorf("%w: Concurrency: %d; expected 1 to 65535", ErrConfig, k.concurrency)
	case k.prefetch < 1 || k.prefetch > 65535:
		return nil, fmt.Errorf("%w: Prefetch: %d; expected 1 to 65535", ErrConfig, k.prefetch)
	case k.drain < 0:
		return nil, fmt.Errorf("%w: DrainTimeout: %v; expected 0 or more", ErrConfig, k.drain)
	case k.dead == "" || len(k.dead) > topology.MaxRoutingKey || k.dead == queue:
		return nil, fmt.Errorf("%w: DeadLetterQueue: %q; expected a name of 1 to %d bytes that is not the queue's own", ErrConfig, k.dead, topology.MaxRoutingKey)
	}
	if k.policy, err = dlx.NewRetryPolicy(k.retry); err != nil {
		return nil, fmt.Errorf("%w: Retry: %w", ErrConfig, err)
	}
	return k, nil
}

// startConsuming counts a consumer, and opens the consuming connection for the
// first one.
func (c *Client) startConsuming() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	if !c.conStarted {
		c.conStarted = true
		c.con.start()
	}
	c.consumers.Add(1)
	return nil
}

func (k *consumer) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.c.stop, cancel)()
	// Values of the caller's context reach the handlers; its end does not.
	handlers, endHandlers := context.WithCancel(context.WithoutCancel(ctx))
	defer endHandlers()
	k.handlers = handlers

	var workers sync.WaitGroup
	for range k.concurrency {
		workers.Go(func() {
			for j := range k.jobs {
				k.process(j)
			}
		})
	}
	idle := make(chan struct{})
	drained := func() error {
		close(k.jobs)
		go func() { workers.Wait(); close(idle) }()
		return k.awaitDrain(idle, endHandlers)
	}

	var refused time.Time // since when every attempt was; zero: none
	for attempt := 1; ; attempt++ {
		sess, err := k.c.con.wait(ctx, false)
		if err == nil {
			began := time.Now()
			var release func()
			release, err = k.intake(ctx, sess)
			if ctx.Err() != nil {
				err := drained()
				release()
				return err
			}
			release()
			if time.Since(began) > k.c.cfg.ReconnectMax {
				attempt = 0
			}
		}
		if ctx.Err() != nil {
			return drained()
		}
		if errors.Is(err, ErrClosed) {
			return errors.Join(drained(), err)
		}
		switch {
		case k.began || err == nil || !permanent(err):
			refused = time.Time{}
		case refused.IsZero():
			refused = time.Now()
		case time.Since(refused) > refusalStands:
			return errors.Join(fmt.Errorf("consume %s: %w", k.queue, err), drained())
		}
		k.log.Warn("consumer ended; starting again", zap.Error(err))
		select {
		case <-ctx.Done():
		case <-time.After(backoff(k.c.cfg.ReconnectMin, k.c.cfg.ReconnectMax, attempt)):
		}
	}
}

// awaitDrain waits for the workers, cancels their context when the drain time
// is over, and gives them a moment to notice.
func (k *consumer) awaitDrain(idle <-chan struct{}, cancel func()) error {
	const notice = 2 * time.Second
	select {
	case <-idle:
		return nil
	case <-time.After(k.drain):
	}
	cancel()
	select {
	case <-idle:
		return nil
	case <-time.After(notice):
		return fmt.Errorf("%w: %d handlers of queue %s ran past %v; their messages will be delivered again", ErrDrainTimeout, k.running.Load(), k.queue, k.drain)
	}
}

// refusalStands is for how long a consumer that has not run yet must be refused
// before that is believed: a broker that is starting or stopping refuses access,
// too, while it does not know its users and virtual hosts. One that has run goes
// on trying, since what ended it may be over: a handler that took longer than the
// broker's consumer_timeout (406), permissions that are being changed.
const refusalStands = 2 * time.Second

// intake feeds the workers from one session until ctx or the session ends. The
// channel stays open until release is called, for acknowledgements.
func (k *consumer) intake(ctx context.Context, sess *session) (release func(), err error) {
	release = func() {}
	var ch *amqp.Channel
	var deliveries <-chan amqp.Delivery
	const tag = "rabbitdelay"
	err = within(ctx, func() error {
		var err error
		if err = k.c.dests.declare(ctx, sess.conn, topology.Destination{Queue: k.queue, DeadLetter: k.dead}); err != nil {
			return err
		}
		if ch, err = sess.conn.Channel(); err != nil {
			return err
		}
		if err = ch.Qos(k.prefetch, 0, false); err != nil {
			return err
		}
		deliveries, err = ch.Consume(k.queue, tag, false, false, false, false, nil)
		return err
	})
	if err != nil {
		return release, err
	}
	k.began = true
	release = func() { _ = ch.Close() }
	gone := make(chan struct{})
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	var closeErr error
	go func() {
		if e := <-closed; e != nil {
			closeErr = e
		}
		close(gone)
	}()

	for {
		select {
		case <-ctx.Done():
			_ = within(k.handlers, func() error { return ch.Cancel(tag, true) })
			return release, ctx.Err()
		case <-gone:
			return release, errors.Join(errors.New("channel closed"), closeErr)
		case d, ok := <-deliveries:
			if !ok {
				select {
				case <-gone:
					return release, errors.Join(errors.New("channel closed"), closeErr)
				default:
					return release, errors.New("the broker cancelled the consumer (was the queue deleted?)")
				}
			}
			k.hold(ctx, d)
			select {
			case k.jobs <- job{raw: d, sess: sess, gone: gone}:
			case <-ctx.Done(): // not begun: goes back with the channel
			case <-gone: // the broker delivers it again
			}
		}
	}
}

// maxHold bounds how long a message that is early by this process's clock waits
// for its due instant before its handler runs.
const maxHold = 20 * time.Millisecond

// hold keeps a message back until its due instant. The broker does not deliver
// early by its own clock, but its clock (Erlang corrects it smoothly) and this
// process's may differ by milliseconds. Messages come in the order of their due
// instants, nearly, so this holds up nothing that could run.
func (k *consumer) hold(ctx context.Context, d amqp.Delivery) {
	due, ok := headerInt(d.Headers, HeaderDue)
	if !ok {
		return
	}
	wait := time.Until(time.UnixMilli(due))
	if wait <= 0 {
		return
	}
	t := time.NewTimer(min(wait, maxHold))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
