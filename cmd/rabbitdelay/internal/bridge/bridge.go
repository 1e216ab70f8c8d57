package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// DefaultConcurrency is how many messages from each queue a bridge handles concurrently by default.
const DefaultConcurrency = 64

// Config configures a Bridge.
type Config struct {
	Exchange Exchange
	// Concurrency is how many messages from each of the two queues are handled concurrently. The default is
	// DefaultConcurrency, and the maximum is 65535. With more than 1, messages that are due at about the same time may be
	// reordered.
	Concurrency int
}

// Stats counts what a Bridge has done since New.
type Stats struct {
	Delayed   int64 `json:"delayed"`   // messages whose delay has begun
	Delivered int64 `json:"delivered"` // messages that were sent to the exchange for consumers
	Dead      int64 `json:"dead"`      // messages that were dead-lettered, with the reason
	Failed    int64 `json:"failed"`    // failed attempts, each of which is repeated
}

// Bridge receives messages that producers publish as they did for the plugin, delays them by the client's strategy, and
// sends them on when they are due. Several bridges may run for one exchange.
type Bridge struct {
	c *amqpx.Client
	x Exchange
	n int

	delayed, delivered, dead, failed atomic.Int64
}

// New returns a Bridge. It fails with ErrExchange if the exchange is invalid, with a *topology.DelayError if the
// strategy does not support all delays that producers may request, which are up to MaxDelay in steps of a millisecond,
// and with a *topology.DestinationError if the client does not list the bridge's queue for due messages.
func New(c *amqpx.Client, cfg Config) (*Bridge, error) {
	if err := cfg.Exchange.Validate(c.Strategy().Prefix()); err != nil {
		return nil, err
	}
	for _, d := range []time.Duration{time.Millisecond, time.Hour + 234567*time.Millisecond, MaxDelay} {
		if err := c.Check(amqpx.Message{Queue: cfg.Exchange.DueQueue(), Delay: d}); err != nil {
			return nil, fmt.Errorf("the client must list the bridge's queue for due messages as a destination, and use a strategy that supports every delay up to %s, such as bucket: %w", topology.FormatDuration(MaxDelay), err)
		}
	}
	return &Bridge{c: c, x: cfg.Exchange, n: cmp.Or(cfg.Concurrency, DefaultConcurrency)}, nil
}

// Stats returns the counts so far.
func (b *Bridge) Stats() Stats {
	return Stats{Delayed: b.delayed.Load(), Delivered: b.delivered.Load(), Dead: b.dead.Load(), Failed: b.failed.Load()}
}

// ErrStarting is returned by Health until both queues have been consumed for the first time.
var ErrStarting = errors.New("starting")

// Health returns nil while the bridge works, and otherwise ErrStarting or the client's *amqpx.HealthError.
func (b *Bridge) Health() error {
	own := 0
	for _, k := range b.c.Stats().Consumers {
		if k.Queue == b.x.Queue() || k.Queue == b.x.DueQueue() {
			own++
		}
	}
	if own < 2 {
		return ErrStarting
	}
	return b.c.Health()
}

// Declare creates the objects of Exchange.Topology that are missing on the broker. It fails with a
// *topology.ConflictError if the broker has a different object with one of the names, most likely the plugin's
// exchange, and with the errors of Client.Apply.
func (b *Bridge) Declare(ctx context.Context) error {
	if err := b.c.Apply(ctx, b.x.Topology()); err != nil {
		return fmt.Errorf("bridge %s: %w", b.x.Name, b.x.Explain(err))
	}
	return nil
}

// Run runs the bridge until ctx is done, and then finishes the messages that are being handled. It declares nothing;
// see Declare. It fails with the errors of Client.Consume.
func (b *Bridge) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, q := range []string{b.x.Queue(), b.x.DueQueue()} {
		g.Go(func() error {
			return b.c.Consume(ctx, q, b.handle, amqpx.WithConcurrency(b.n), amqpx.WithDeadLetterQueue(b.x.DeadQueue()), amqpx.WithRetry(patience))
		})
	}
	return g.Wait()
}

// handle calls take with the timeout tryTimeout, and counts the result. If the bridge is stopped during the attempt,
// the message returns to its queue unchanged.
func (b *Bridge) handle(ctx context.Context, d *amqpx.Delivery) error {
	try, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	err := b.take(try, d)
	switch {
	case err == nil:
	case amqpx.IsRejected(err):
		b.dead.Add(1)
	case ctx.Err() != nil:
		return amqpx.Requeue(err)
	default:
		b.failed.Add(1)
	}
	return err
}

// tryTimeout limits one attempt. After that, the message waits for its next attempt and no longer counts towards
// Concurrency.
const tryTimeout = 10 * time.Second

// patience is a retry policy that retries a message for years while its queues refuse it.
var patience = topology.Retry{MaxAttempts: 1_000_000, Backoff: time.Second, MaxBackoff: time.Minute}

// take handles the messages from both queues. The header x-delay of a message shows whether its delay has begun: before
// that, the header is positive, and afterwards it is negative, which is how the plugin marks a delivered message.
func (b *Bridge) take(ctx context.Context, d *amqpx.Delivery) error {
	b.unexpire(d)
	delay, err := Delay(d.Headers)
	if err != nil {
		return amqpx.Reject(err)
	}
	if delay == 0 {
		if err := b.judge(d, b.c.Forward(ctx, d, topology.Destination{Exchange: b.x.Due(), RoutingKey: d.RoutingKey}, 0)); err != nil {
			return err
		}
		b.delivered.Add(1)
		return nil
	}
	asked := d.Headers[Header]
	d.Headers[Header] = -delay.Milliseconds()
	if err := b.judge(d, b.c.Forward(ctx, d, topology.Destination{Queue: b.x.DueQueue()}, delay)); err != nil {
		d.Headers[Header] = asked // restore the requested delay for the next attempt
		return err
	}
	b.delayed.Add(1)
	return nil
}

// judge classifies an error from Forward. If the message itself is the cause, judge wraps the error with amqpx.Reject.
// All other errors are returned unchanged, so that the message is retried.
func (b *Bridge) judge(d *amqpx.Delivery, err error) error {
	ae, _ := errors.AsType[*amqp.Error](err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, amqpx.ErrMessage):
		return amqpx.Reject(err)
	case ae != nil && ae.Code == amqp.PreconditionFailed && d.UserID != "":
		return amqpx.Reject(fmt.Errorf("the message has the user-id %q, which the broker only accepts from that user and from users with the impersonator tag; give the bridge's user this tag, then requeue the message: %w", d.UserID, err))
	case errors.Is(err, amqpx.ErrUnroutable) && (ae == nil || ae.Code != amqp.NotFound):
		return amqpx.Reject(fmt.Errorf("exchange %q does not route the key %q to any queue; bind a queue, then requeue the message: %w", b.x.Due(), d.RoutingKey, err))
	}
	return err
}

// unexpire restores the routing key, CC and expiration of a message that expired before a bridge received it.
func (b *Bridge) unexpire(d *amqpx.Delivery) {
	deaths, _ := d.Headers["x-death"].([]any)
	for _, e := range deaths {
		t, _ := e.(amqp.Table)
		if queue, _ := t["queue"].(string); queue != b.x.Queue() {
			continue
		}
		d.Exchange = b.x.Name
		if keys, _ := t["routing-keys"].([]any); len(keys) > 0 {
			d.RoutingKey, _ = keys[0].(string)
			if len(keys) > 1 { // before RabbitMQ 4.0, dead-lettering removed the CC header
				d.Headers["CC"] = keys[1:]
			}
		}
		d.Expiration, _ = t["original-expiration"].(string)
		return
	}
}
