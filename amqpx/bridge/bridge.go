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

// DefaultConcurrency is how many messages of each of its queues a bridge has under way.
const DefaultConcurrency = 64

// Config configures a Bridge.
type Config struct {
	Exchange Exchange
	// Concurrency is how many messages of each of the two queues are under way at once, default
	// DefaultConcurrency, at most 65535. With more than 1, messages that are due at about the same time may
	// change places.
	Concurrency int
}

// Stats counts what a Bridge has done since it was made.
type Stats struct {
	Delayed   int64 `json:"delayed"`   // began to wait
	Delivered int64 `json:"delivered"` // reached the exchange for consumers
	Dead      int64 `json:"dead"`      // went to the dead-letter queue, with the reason
	Failed    int64 `json:"failed"`    // tries that failed, and were or will be repeated
}

// Bridge takes messages that producers publish as they did for the plugin, delays them by the client's strategy,
// and sends them on when they are due. Several may run for one exchange.
type Bridge struct {
	c *amqpx.Client
	x Exchange
	n int

	delayed, delivered, dead, failed atomic.Int64
}

// New makes a bridge. It fails with ErrExchange, with the *topology.DelayError of a strategy that lacks a
// delay which producers may ask for: up to MaxDelay, in steps of a millisecond, or with the
// *topology.DestinationError of a client that does not list its queue for what is due.
func New(c *amqpx.Client, cfg Config) (*Bridge, error) {
	if err := cfg.Exchange.Validate(c.Strategy().Prefix()); err != nil {
		return nil, err
	}
	for _, d := range []time.Duration{time.Millisecond, time.Hour + 234567*time.Millisecond, MaxDelay} {
		if err := c.Check(amqpx.Message{Queue: cfg.Exchange.DueQueue(), Delay: d}); err != nil {
			return nil, fmt.Errorf("a bridge needs its queue for what is due, and every delay up to %s, as strategy bucket has it: %w", topology.FormatDuration(MaxDelay), err)
		}
	}
	return &Bridge{c: c, x: cfg.Exchange, n: cmp.Or(cfg.Concurrency, DefaultConcurrency)}, nil
}

// Stats returns the counts so far.
func (b *Bridge) Stats() Stats {
	return Stats{Delayed: b.delayed.Load(), Delivered: b.delivered.Load(), Dead: b.dead.Load(), Failed: b.failed.Load()}
}

// ErrStarting is Health's answer until both queues are consumed for the first time.
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

// Declare creates what is missing of Exchange.Topology on the broker. It fails with *plan.ConflictError if the
// broker has something else under one of the names, the plugin's exchange above all, and with the errors of
// Client.Apply.
func (b *Bridge) Declare(ctx context.Context) error {
	if err := b.c.Apply(ctx, b.x.Topology()); err != nil {
		return fmt.Errorf("bridge %s: %w", b.x.Name, b.x.Explain(err))
	}
	return nil
}

// Run bridges until ctx ends, and finishes the messages that are under way. It declares nothing: see Declare. It
// fails with the errors of Client.Consume.
func (b *Bridge) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, q := range []string{b.x.Queue(), b.x.DueQueue()} {
		g.Go(func() error {
			return b.c.Consume(ctx, q, b.handle, amqpx.WithConcurrency(b.n), amqpx.WithDeadLetterQueue(b.x.DeadQueue()), amqpx.WithRetry(patience))
		})
	}
	return g.Wait()
}

// handle calls take within tryTimeout and counts the outcome. A message whose try is cut off because the process
// ends returns to its queue unchanged.
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

// tryTimeout bounds a try: the message then waits for the next without a place among those under way.
const tryTimeout = 10 * time.Second

// patience retries a message that its queues refuse for years.
var patience = topology.Retry{MaxAttempts: 1_000_000, Backoff: time.Second, MaxBackoff: time.Minute}

// take is the handler of both queues. It goes by the header: a positive delay has yet to begin; a negative one,
// as the plugin leaves it, is over.
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
		d.Headers[Header] = asked // the next try has to delay it
		return err
	}
	b.delayed.Add(1)
	return nil
}

// judge returns the error of Forward, as a rejection if the message itself is the cause. Any other error is
// retried.
func (b *Bridge) judge(d *amqpx.Delivery, err error) error {
	ae, _ := errors.AsType[*amqp.Error](err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, amqpx.ErrMessage):
		return amqpx.Reject(err)
	case ae != nil && ae.Code == amqp.PreconditionFailed && d.UserID != "":
		return amqpx.Reject(fmt.Errorf("the message has the user-id %q, which the broker takes only of that user, or of one with the tag impersonator: give it to the bridge's user, then requeue: %w", d.UserID, err))
	case errors.Is(err, amqpx.ErrUnroutable) && (ae == nil || ae.Code != amqp.NotFound):
		return amqpx.Reject(fmt.Errorf("exchange %q routes the key %q to no queue: bind one, then requeue: %w", b.x.Due(), d.RoutingKey, err))
	}
	return err
}

// unexpire restores a message that expired before a bridge took it.
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
			if len(keys) > 1 { // before RabbitMQ 4.0 the header went with the death
				d.Headers["CC"] = keys[1:]
			}
		}
		d.Expiration, _ = t["original-expiration"].(string)
		return
	}
}
