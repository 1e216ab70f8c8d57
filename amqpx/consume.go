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

// Consume runs handler on the messages of queue until ctx is cancelled or the client is closed. It then stops the
// intake, waits for running handlers (WithDrainTimeout), and returns nil, or ErrDrainTimeout. Messages that no
// handler has started on go back to the queue immediately. For a broker that does not answer, it waits at most 2
// s, and no longer than the drain time.
//
// Consume survives lost connections, and also a deleted queue, which it declares and binds again. Until it has
// started to consume for the first time, a refusal by the broker that lasts for 2 s is final, and the error wraps
// an *amqp091.Error. Examples are refused credentials or access, conflicting arguments, and a queue that is
// exclusive to another connection, or that is missing while the user may not declare it. After that, Consume
// retries without end and logs the failure once a minute.
//
// The broker ends the whole connection (541) when a queue is consumed whose process is gone. Consume then
// continues on a separate connection for this queue, so that the client's other consumers keep theirs, and retries
// until the queue is back. Health and ConsumerStats.Connection show this.
//
// Consume refuses with ErrConfig a queue to which no retry could be sent: one that belongs to a delay strategy,
// such as delay.parked, or one whose name is too long. It also refuses a stream, because a stream keeps messages
// when they are acknowledged.
//
// A message is acknowledged only after its handler has returned nil, or after the broker has confirmed its retry
// or its dead letter.
//
// The error is a *ConsumeError. To consume several queues, use ConsumeAll.
func (c *Client) Consume(ctx context.Context, queue string, handler Handler, opts ...ConsumeOption) error {
	return c.ConsumeAll(ctx, Consumer{queue, handler, opts})
}

// Consumer holds the arguments of one Consume, for ConsumeAll.
type Consumer struct {
	Queue   string
	Handler Handler
	Options []ConsumeOption
}

// ConsumeError is the error of Consume and ConsumeAll. It says why the consumer of a queue ended or could not
// start.
type ConsumeError struct {
	Queue string
	Err   error
}

func (e *ConsumeError) Error() string { return fmt.Sprintf("consume %s: %v", e.Queue, e.Err) }

// Unwrap returns the cause.
func (e *ConsumeError) Unwrap() error { return e.Err }

// ConsumeAll is like Consume, for several queues. It runs until ctx is cancelled or the client is closed. If one
// consumer stops for good, ConsumeAll stops all of them, so that no process continues with only some of its
// consumers. It starts none unless all of them are valid. It returns when all have ended. The error joins a
// *ConsumeError for each consumer that failed.
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

// joinConsumers wraps each error in a *ConsumeError and joins them. It returns nil if there are none.
func joinConsumers(consumers []Consumer, errs []error) error {
	var all []error
	for i, err := range errs {
		if err != nil {
			all = append(all, &ConsumeError{consumers[i].Queue, err})
		}
	}
	return errors.Join(all...)
}

// runConsumer registers a consumer, runs it, and removes it when it ends.
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

// wantHandler tells the caller what to pass to Consume in place of a nil handler.
const wantHandler = "expected a function. JSON makes no handler of a nil function; schedule.Handler and idempotency.Handler " +
	"make none of a nil function or a nil database: on a pool of pgx use pgxtx.TaskHandler and pgxtx.IdempotentHandler"

// consumable returns an error if the queue cannot be consumed, whatever the consumer's options.
func (c *Client) consumable(queue string) error {
	if queue == "" || len(queue) > topology.MaxRoutingKey || !isName(queue) {
		return fmt.Errorf("%w: queue: %q; expected a name of 1 to %d bytes of UTF-8 without line breaks", ErrConfig, queue, topology.MaxRoutingKey)
	}
	if err := c.routesBack(queue, 0, c.strategy.MaxDelay()); err != nil {
		return err
	}
	return c.listed(topology.Destination{Queue: queue})
}

// checkRoutes returns an error if the queue's messages could be consumed, but then neither retried nor
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

// routesBack returns an error if a message could not return to the queue after one of the delays. The strategy
// auto may use different strategies for different delays, which may allow queue names of different lengths.
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

// startConsuming registers a consumer or, if k is nil, a run of package inspect. It opens the consuming connection
// for the first consumer.
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
	// Handlers get the values of the caller's context, but not its cancellation.
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
			k.unsubscribe(sub, returned) // only now, because handlers acknowledge on its channel
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
		// If ctx has ended, serve notices.
		_ = wait.For(ctx, wait.Backoff(k.c.cfg.ReconnectMin, k.c.cfg.ReconnectMax, attempt))
	}
}

// serve consumes on one connection until the subscription or ctx ends. The returned subscription stays open for
// acknowledgements. It is nil if none was started.
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

// stepAside ends a subscription in the background. It cancels the consumers immediately, but keeps the channel
// open until the handlers of its messages have ended.
func (k *consumer) stepAside(s *subscription) {
	k.leaving.Go(func() {
		<-k.beginHandBack(s)
		s.work.Wait()
		k.close(k.c.forced, s)
	})
}

// unsubscribe closes the subscription after the messages that were not handled have been returned to the queue. It
// waits for the broker for at most wire.CloseWait, no longer than the drain time, which is short in a process that
// must end quickly, and not past the end of Close's context.
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

// awaitDrain waits for the running handlers. When the drain time or Close's context is over, it cancels their
// context and gives them two more seconds.
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
