package amqpx

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sparse"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// Consume runs handler on the messages of queue, until ctx is cancelled or the
// client is closed; then it stops the intake, lets running handlers finish
// (WithDrainTimeout), and returns nil, or ErrDrainTimeout. Messages that were
// handed out and not begun go back to the queue at once. For a broker that does not
// answer it waits 2 s at most, and no longer than the drain time. It survives lost
// connections, and a deleted queue, which it declares and binds again. Until
// its first message can be taken, a refusal by the broker that lasts for 2 s is
// final, and the error wraps an *amqp091.Error: credentials, access,
// conflicting arguments, or a queue that is exclusive to another connection or
// missing without the right to declare it. Later Consume retries without end
// and logs it once a minute.
//
// The broker ends the whole connection (541) when a queue is consumed whose process is gone. Consume then goes on
// with a connection for this queue alone, so that the client's other consumers keep theirs, and retries until the
// queue is back; Health and ConsumerStats.Connection show that.
//
// A queue to which no retry could be sent is refused with ErrConfig: one that
// belongs to a delay strategy, such as delay.parked, or whose name is too long. So is a
// stream, whose messages stay when they are acknowledged.
//
// A message is acknowledged only after its handler returned nil, or after its
// retry or its dead letter was confirmed by the broker.
//
// Errors are a *ConsumeError. ConsumeAll consumes several queues.
func (c *Client) Consume(ctx context.Context, queue string, handler Handler, opts ...ConsumeOption) error {
	return c.ConsumeAll(ctx, Consumer{queue, handler, opts})
}

// Consumer is one call of Consume, as ConsumeAll takes it.
type Consumer struct {
	Queue   string
	Handler Handler
	Options []ConsumeOption
}

// ConsumeError is what Consume and ConsumeAll return: why the consumer of a queue ended, or
// did not begin.
type ConsumeError struct {
	Queue string
	Err   error
}

func (e *ConsumeError) Error() string { return fmt.Sprintf("consume %s: %v", e.Queue, e.Err) }

// Unwrap returns the cause.
func (e *ConsumeError) Unwrap() error { return e.Err }

// ConsumeAll is Consume for several queues. It runs until ctx is cancelled or the client is
// closed, and ends all when one ends for good, so that no process goes on with half of its
// consumers. Nothing is consumed unless all consumers are valid. It returns when all have
// ended; the error joins a *ConsumeError for each queue that has one.
func (c *Client) ConsumeAll(ctx context.Context, consumers ...Consumer) error {
	if len(consumers) == 0 {
		return fmt.Errorf("%w: no consumers; give ConsumeAll one for each queue", ErrConfig)
	}
	all := make([]*consumer, len(consumers))
	errs := make([]error, len(consumers))
	for i, x := range consumers {
		all[i], errs[i] = c.newConsumer(x.Queue, x.Handler, x.Options)
	}
	if err := joinConsumers(consumers, errs); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	for i, k := range all {
		running.Go(func() {
			if errs[i] = c.runConsumer(ctx, k); errs[i] != nil {
				cancel()
			}
		})
	}
	running.Wait()
	return joinConsumers(consumers, errs)
}

// joinConsumers joins the errors of consumers, each with its queue; nil if there are none.
func joinConsumers(consumers []Consumer, errs []error) error {
	var all []error
	for i, err := range errs {
		if err != nil {
			all = append(all, &ConsumeError{consumers[i].Queue, err})
		}
	}
	return errors.Join(all...)
}

// runConsumer runs a consumer to its end.
func (c *Client) runConsumer(ctx context.Context, k *consumer) error {
	if err := c.startConsuming(k); err != nil {
		return err
	}
	defer c.endConsuming(k)
	return k.run(ctx)
}

func (c *Client) newConsumer(queue string, handler Handler, opts []ConsumeOption) (k *consumer, err error) {
	if err := c.consumable(queue); err != nil {
		return nil, err
	}
	if handler == nil {
		return nil, fmt.Errorf("%w: handler is nil; %s", ErrConfig, wantHandler)
	}
	dest := c.cfg.destination(queue)
	k = &consumer{
		c: c, queue: queue, handler: handler, dead: dest.DeadLetterQueue(),
		concurrency: DefaultConcurrency, drain: DefaultDrainTimeout, heldBytes: c.cfg.HeldBytes,
		log: c.log.Named("consume").With(zap.String("queue", queue)),
	}
	k.backoff = k.growing
	if dest.Retry != nil {
		k.retry = *dest.Retry
	}
	for i, o := range opts {
		if o == nil {
			return nil, fmt.Errorf("%w: option %d of %d is nil", ErrConfig, i+1, len(opts))
		}
		o(k)
	}
	if k.prefetch == 0 {
		k.prefetch = min(4*k.concurrency, maxPrefetch)
	}
	switch {
	case k.refusal != nil:
		return nil, k.refusal
	case k.dead == "" || len(k.dead) > topology.MaxRoutingKey || k.dead == queue || strings.HasPrefix(k.dead, "amq.") || !isName(k.dead):
		return nil, fmt.Errorf("%w: WithDeadLetterQueue: %q; expected 1 to %d bytes of UTF-8 without line breaks, other than the queue's own name and not beginning with amq., which the broker reserves", ErrConfig, k.dead, topology.MaxRoutingKey)
	}
	if err := c.listed(topology.Destination{Queue: k.dead}); err != nil {
		return nil, err
	}
	if err := k.retry.Validate(); err != nil {
		return nil, fmt.Errorf("%w: WithRetry: %w", ErrConfig, err)
	}
	k.retry = k.retry.WithDefaults()
	if err := k.checkRoutes(); err != nil {
		return nil, err
	}
	if k.handler = chain(handler, k.middleware); k.handler == nil {
		return nil, fmt.Errorf("%w: WithMiddleware: a middleware is nil, or returned no handler", ErrConfig)
	}
	k.places.Store(int64(k.prefetch))
	k.slots = make(chan struct{}, k.concurrency)
	k.ids = newBusyIDs()
	return k, nil
}

// wantHandler is what to give Consume instead of a nil handler.
const wantHandler = "expected a function. JSON makes no handler of a nil function; schedule.Handler and idempotency.Handler " +
	"make none of a nil function or a nil database: on a pool of pgx use pgxtx.TaskHandler and pgxtx.IdempotentHandler"

// consumable returns why no consumer can have a queue, whatever its options; nil if one can.
func (c *Client) consumable(queue string) error {
	if queue == "" || len(queue) > topology.MaxRoutingKey || !isName(queue) {
		return fmt.Errorf("%w: queue: %q; expected a name of 1 to %d bytes of UTF-8 without line breaks", ErrConfig, queue, topology.MaxRoutingKey)
	}
	if err := c.routesBack(queue, 0, c.strategy.MaxDelay()); err != nil {
		return err
	}
	return c.listed(topology.Destination{Queue: queue})
}

// checkRoutes refuses what could be consumed and then neither retried nor
// dead-lettered.
func (k *consumer) checkRoutes() error {
	if err := k.c.routesBack(k.queue, k.possible(k.retry.Backoff), k.possible(k.retry.MaxBackoff)); err != nil {
		return err
	}
	if prefix := k.c.strategy.Prefix(); naming.Reserved(prefix, k.dead) {
		return fmt.Errorf("%w: WithDeadLetterQueue: %q belongs to the delay strategies with prefix %q; choose another name", ErrConfig, k.dead, prefix)
	}
	return nil
}

// routesBack refuses a queue to which a message could not come back after each of the
// delays. auto may choose another strategy for another delay, and so leave less room in the
// routing key for the queue's name.
func (c *Client) routesBack(queue string, delays ...time.Duration) error {
	for _, delay := range delays {
		_, err := c.strategy.Route(topology.Destination{Queue: queue}, delay, 0)
		if err == nil {
			continue
		}
		hint := "a message whose handler failed could never come back to it"
		if queue == topology.ParkedQueue(c.strategy.Prefix()) {
			hint = "rabbitdelay peek shows parked messages, and rabbitdelay requeue --parked sends them again"
		}
		return fmt.Errorf("%w: queue: %w; %s", ErrConfig, err, hint)
	}
	return nil
}

// startConsuming counts a consumer, or without one a run of package inspect, and opens the
// consuming connection for the first consumer.
func (c *Client) startConsuming(k *consumer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.consumers.Add(1)
	if k != nil {
		if !c.conStarted {
			c.conStarted = true
			c.con.Start()
		}
		k.become(ConsumerStarting, nil)
		c.running[k] = struct{}{}
	}
	return nil
}

func (c *Client) endConsuming(k *consumer) {
	c.mu.Lock()
	delete(c.running, k)
	c.mu.Unlock()
	k.endOwn()
	c.consumers.Done()
}

func (k *consumer) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.c.stop, cancel)()
	// Values of the caller's context reach the handlers; its end does not.
	handlers, endHandlers := context.WithCancel(context.WithoutCancel(ctx))
	defer endHandlers()
	k.handlers, k.ending = handlers, ctx

	for attempt := 1; ; attempt++ {
		k.awaitResume(ctx)
		sub, err := k.serve(ctx)
		if ctx.Err() == nil && errors.Is(err, errPaused) {
			k.stepAside(sub)
			attempt = 0
			continue
		}
		if ctx.Err() != nil {
			k.become(ConsumerEnding, nil)
			returned := k.beginHandBack(sub)
			err := k.awaitDrain(endHandlers)
			k.unsubscribe(sub, returned) // not before: handlers acknowledge on its channel
			return err
		}
		k.down(err)
		k.close(k.c.forced, sub)
		if !k.began && (k.barred || k.refused.stand(err)) {
			return errors.Join(err, k.awaitDrain(endHandlers))
		}
		if sub != nil && time.Since(sub.began) > k.c.cfg.ReconnectMax {
			attempt = 1
		}
		k.restarts.Warn(k.log, sparse.Kind(err), "consumer ended; starting again", zap.Error(err))
		_ = wait.For(ctx, wait.Backoff(k.c.cfg.ReconnectMin, k.c.cfg.ReconnectMax, attempt)) // serve finds out
	}
}

// serve takes messages from one connection until that, or ctx, ends. The
// subscription stays open, for acknowledgements; it is nil when there was none.
func (k *consumer) serve(ctx context.Context) (*subscription, error) {
	sess, err := k.connection(ctx)
	if err != nil {
		return nil, err
	}
	sub, err := k.subscribe(ctx, sess)
	if err != nil {
		return nil, err
	}
	k.began = true
	return sub, k.intake(ctx, sub)
}

// stepAside takes a subscription off its queue. Its channel stays open until the handlers of its
// messages have ended.
func (k *consumer) stepAside(s *subscription) {
	k.leaving.Go(func() {
		<-k.beginHandBack(s)
		s.work.Wait()
		k.close(k.c.forced, s)
	})
}

// unsubscribe ends the subscription when what was not begun has been returned. It waits for
// the broker at most for wire.CloseWait and the drain time, which is short where the process
// has to be, and not past the end of Close's context.
func (k *consumer) unsubscribe(s *subscription, returned <-chan struct{}) {
	ctx, cancel := context.WithTimeout(k.c.forced, min(wire.CloseWait, k.drain))
	defer cancel()
	left := make(chan struct{})
	go func() { k.leaving.Wait(); close(left) }()
	for _, done := range []<-chan struct{}{returned, left} {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	k.close(ctx, s)
}

// down records why the consumer is not consuming.
func (k *consumer) down(err error) {
	if k.began {
		k.become(ConsumerDown, err)
		return
	}
	k.become(ConsumerStarting, err)
}

// awaitDrain waits for what was begun, cancels the handlers' context when the
// drain time or Close's context is over, and gives them a moment to notice.
func (k *consumer) awaitDrain(cancel func()) error {
	const notice = 2 * time.Second
	idle := make(chan struct{})
	go func() { k.work.Wait(); close(idle) }()
	bound := k.drain.String()
	select {
	case <-idle:
		return nil
	case <-k.c.forced.Done():
		bound = "the end of Close's context"
	case <-time.After(k.drain):
	}
	cancel()
	select {
	case <-idle:
		return nil
	case <-time.After(notice):
		if k.c.forced.Err() != nil {
			k.abandoned.Store(true)
			k.c.abandoned.Add(k.running.Load())
		}
		return fmt.Errorf("%w: handlers of queue %s that ran past %s: %d; their messages will be delivered again", ErrDrainTimeout, k.queue, bound, k.running.Load())
	}
}
