package amqpx

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/consume"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Consume runs handler on the messages in queue until ctx is cancelled or the client is closed. It then stops
// receiving, waits for running handlers (WithDrainTimeout), and returns nil, or ErrDrainTimeout. Messages that no
// handler has started on go back to the queue immediately. If the broker does not answer while Consume stops, Consume
// waits at most 2 s for it, and no longer than the drain time.
//
// Consume survives lost connections, and even the deletion of the queue, which it declares and binds again. Until it
// has started to consume for the first time, a refusal by the broker that lasts for 2 s is final, and the error wraps
// an *amqp091.Error. Examples are refused credentials or access, conflicting arguments, and a queue that is exclusive
// to another connection, or that is missing and that the user is not allowed to declare. Once it has started, Consume
// retries indefinitely and logs the failure once a minute.
//
// The broker closes the whole connection (error 541) when a client consumes from a queue whose process is gone. Consume
// then continues on a separate connection for this queue, so that the client's other consumers keep their connection,
// and retries until the queue is back. Health and ConsumerStats.Connection show this.
//
// Consume returns ErrConfig for a queue to which no retry could be sent, because the queue belongs to a delay strategy,
// such as delay.parked, or because its name is too long. It also returns ErrConfig for a stream, because a stream keeps
// acknowledged messages.
//
// A message is acknowledged only after its handler has returned nil, or after the broker has confirmed its retry
// or its dead letter.
//
// Consume wraps its errors in a *ConsumeError, which errors.As finds. To consume several queues, use ConsumeAll.
func (c *Client) Consume(ctx context.Context, queue string, handler Handler, opts ...ConsumeOption) error {
	return c.ConsumeAll(ctx, Consumer{queue, handler, opts})
}

// Consumer holds the arguments for one of the consumers that ConsumeAll runs.
type Consumer struct {
	Queue   string
	Handler Handler
	Options []ConsumeOption
}

// ConsumeError is wrapped by the errors of Consume and ConsumeAll. It says why the consumer of a queue stopped or could
// not start.
type ConsumeError struct {
	Queue string
	Err   error
}

func (e *ConsumeError) Error() string { return fmt.Sprintf("consume %s: %v", e.Queue, e.Err) }

// Unwrap returns the cause.
func (e *ConsumeError) Unwrap() error { return e.Err }

// ConsumeAll is like Consume, for several consumers, usually of different queues. It runs until ctx is cancelled or the
// client is closed. If one consumer fails permanently, ConsumeAll stops all of them, so that no process continues with
// only some of its consumers. If any of them is invalid, it starts none. It returns when all of them have stopped. The
// error joins a *ConsumeError for each consumer that failed.
func (c *Client) ConsumeAll(ctx context.Context, consumers ...Consumer) error {
	if err := c.opened(); err != nil {
		return err
	}
	if len(consumers) == 0 {
		return fmt.Errorf("%w: no consumers; pass ConsumeAll one for each queue", ErrConfig)
	}
	all := make([]*consume.Consumer, len(consumers))
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
			errs[i] = k.Run(ctx)
			if errors.Is(errs[i], live.ErrStream) {
				errs[i] = fmt.Errorf("%w: queue: %w", ErrConfig, errs[i])
			}
			if errs[i] != nil {
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

// newConsumer returns a consumer that has not been started, or an error if the arguments of Consume are invalid.
func (c *Client) newConsumer(queue string, handler Handler, opts []ConsumeOption) (*consume.Consumer, error) {
	if err := c.consumable(queue); err != nil {
		return nil, err
	}
	if handler == nil {
		return nil, fmt.Errorf("%w: handler is nil; %s", ErrConfig, wantHandler)
	}
	o, err := c.consumeOptions(queue, opts)
	if err != nil {
		return nil, err
	}
	h := chain(handler, o.middleware)
	if h == nil {
		return nil, fmt.Errorf("%w: WithMiddleware: a middleware is nil, or returned no handler, as Timeout does for a duration without a unit (write 30*time.Second instead of 30)", ErrConfig)
	}
	o.set.Handling = func(d *consume.Delivery) consume.Handling {
		return &handling{hooks: c.hooks, handler: h, o: o, received: d, d: deliveryOf(d)}
	}
	return c.consumers.New(o.set), nil
}

// consumeOptions applies the options of a consumer to the defaults, and checks the result.
func (c *Client) consumeOptions(queue string, opts []ConsumeOption) (*consumeOptions, error) {
	dest := c.cfg.destination(queue)
	o := &consumeOptions{log: c.log.Named("consume").With(zap.String("queue", queue)), set: consume.Settings{
		Queue: queue, DeadLetter: dest.DeadLetterQueue(),
		Concurrency: defaultConcurrency, HeldBytes: c.cfg.HeldBytes, Drain: defaultDrainTimeout,
	}}
	if dest.Retry != nil {
		o.set.Retry = *dest.Retry
	}
	for i, apply := range opts {
		if apply == nil {
			return nil, fmt.Errorf("%w: option %d of %d is nil", ErrConfig, i+1, len(opts))
		}
		apply(o)
	}
	if o.set.Prefetch == 0 {
		o.set.Prefetch = min(4*o.set.Concurrency, consume.MaxPrefetch)
	}
	if o.refusal != nil {
		return nil, o.refusal
	}
	if dead := o.set.DeadLetter; dead == "" || len(dead) > topology.MaxRoutingKey || dead == queue || strings.HasPrefix(dead, "amq.") || !isName(dead) {
		return nil, fmt.Errorf("%w: WithDeadLetterQueue: %q; expected 1 to %d bytes of UTF-8 without line breaks, other than the queue's own name and not beginning with amq., which the broker reserves", ErrConfig, dead, topology.MaxRoutingKey)
	}
	if err := c.listed(topology.Destination{Queue: o.set.DeadLetter}); err != nil {
		return nil, err
	}
	if err := o.set.Retry.Validate(); err != nil {
		return nil, fmt.Errorf("%w: WithRetry: %w", ErrConfig, err)
	}
	o.set.Retry = o.set.Retry.WithDefaults()
	return o, c.checkRoutes(o.set)
}

// wantHandler tells the caller what to pass to Consume in place of a nil handler.
const wantHandler = "expected a function. JSON returns a nil handler if its function is nil, and schedule.Handler and idempotency.Handler return " +
	"one if the function or the database is nil; for a pgx pool, use pgxtx.TaskHandler and pgxtx.IdempotentHandler. Timeout and " +
	"WithLease need a duration with its unit, such as 30*time.Second instead of 30"

// consumable returns an error if the queue cannot be consumed, whatever the options are.
func (c *Client) consumable(queue string) error {
	if queue == "" || len(queue) > topology.MaxRoutingKey || !isName(queue) {
		return fmt.Errorf("%w: queue: %q; expected a name of 1 to %d bytes of UTF-8 without line breaks", ErrConfig, queue, topology.MaxRoutingKey)
	}
	if err := c.routesBack(queue, 0, c.strategy.MaxDelay()); err != nil {
		return err
	}
	return c.listed(topology.Destination{Queue: queue})
}

// checkRoutes returns an error if the queue's messages could be consumed, but not retried or dead-lettered.
func (c *Client) checkRoutes(set consume.Settings) error {
	for _, delay := range []time.Duration{set.Retry.Backoff, set.Retry.MaxBackoff} {
		if err := c.routesBack(set.Queue, consume.PossibleDelay(c.strategy, set.Queue, delay)); err != nil {
			return err
		}
	}
	if prefix := c.strategy.Prefix(); naming.Reserved(prefix, set.DeadLetter) {
		return fmt.Errorf("%w: WithDeadLetterQueue: %q belongs to the delay strategies with prefix %q; choose another name", ErrConfig, set.DeadLetter, prefix)
	}
	return nil
}

// routesBack returns an error if there is a delay after which a message could not return to the queue. It checks
// several delays because the auto strategy may use a different strategy for each, and strategies differ in the length
// of the queue names that they allow.
func (c *Client) routesBack(queue string, delays ...time.Duration) error {
	for _, delay := range delays {
		_, err := c.strategy.Route(topology.Destination{Queue: queue}, delay, 0)
		if err == nil {
			continue
		}
		hint := "a message whose handler failed could not be sent back to the queue"
		if queue == topology.ParkedQueue(c.strategy.Prefix()) {
			hint = "rabbitdelay peek shows parked messages, and rabbitdelay requeue --parked sends them again"
		}
		return fmt.Errorf("%w: queue: %w; %s", ErrConfig, err, hint)
	}
	return nil
}
