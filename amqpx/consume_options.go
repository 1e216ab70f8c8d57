package amqpx

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/consume"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ConsumeOption configures one call to Consume.
type ConsumeOption func(*consumeOptions)

// consumeOptions holds the settings of one consumer.
type consumeOptions struct {
	set        consume.Settings
	backoff    func(d *Delivery, err error) time.Duration // nil for the retry policy's delay
	policy     func(d *Delivery, err error) error         // nil for none
	middleware []Middleware
	refusal    error // the error about the first invalid option
	log        *zap.Logger
}

// expect records an error if an option's argument is invalid. Only the first error is kept.
func (o *consumeOptions) expect(ok bool, option string, given any, want string) {
	if !ok && o.refusal == nil {
		o.refusal = fmt.Errorf("%w: %s: %v; expected %s", ErrConfig, option, given, want)
	}
}

// WithConcurrency sets the maximum number of concurrently running handlers, 1 to 65535. The default is 16.
func WithConcurrency(n int) ConsumeOption {
	return func(o *consumeOptions) {
		o.expect(n >= 1 && n <= consume.MaxPrefetch, "WithConcurrency", n, "1 to 65535")
		o.set.Concurrency = n
	}
}

// WithPrefetch sets the maximum number of messages that the broker has delivered and that are not acknowledged, 1 to
// 65535. These include the messages that are being handled and those whose retry or dead letter is being published. The
// default is four times the concurrency, at most 65535.
//
// When messages that are held until their due time (Config.Lead) use half of the prefetch, the consumer doubles it, up
// to 65535, by starting additional consumers on the broker. On a queue with a single active consumer, the additional
// consumers receive nothing. There, set a prefetch of at least the number of messages that arrive during the lead and
// one more second.
func WithPrefetch(n int) ConsumeOption {
	return func(o *consumeOptions) {
		o.expect(n >= 1 && n <= consume.MaxPrefetch, "WithPrefetch", n, "1 to 65535")
		o.set.Prefetch = n
	}
}

// WithHeldBytes sets the size in bytes up to which the consumer enlarges its buffer while it holds messages until their
// due time (Config.Lead). The default is Config.HeldBytes, 64 MiB. Each message counts as its body plus 1 KiB.
//
// Above that size the consumer uses only its prefetch. Further messages wait in their queue and may be late. The
// option does not limit the prefetch itself, whose messages may be of any size.
func WithHeldBytes(n int) ConsumeOption {
	return func(o *consumeOptions) {
		o.expect(n >= 1, "WithHeldBytes", n, "1 or more")
		o.set.HeldBytes = n
	}
}

// WithDrainTimeout sets how long running handlers may continue when the consumer stops, before their context is
// cancelled. The default is 30 s. If a handler returns an error after that, its message is requeued. If all handlers
// return within 2 s of the cancellation, Consume returns nil. Otherwise it returns ErrDrainTimeout.
func WithDrainTimeout(d time.Duration) ConsumeOption {
	return func(o *consumeOptions) {
		o.expect(d >= 0, "WithDrainTimeout", d, "0 or more")
		o.expect(units.Duration(d) == "", "WithDrainTimeout", d, "a duration with its unit, such as 30*time.Second")
		o.set.Drain = d
	}
}

// WithRetry sets the retry policy, in place of the one in Config.Destinations. Fields that are zero have the defaults
// of topology.Retry: 5 attempts, a back-off of 1 s that doubles up to 10 min with a jitter of 20 %, and no immediate
// repetitions (ImmediateRetries).
func WithRetry(r topology.Retry) ConsumeOption { return func(o *consumeOptions) { o.set.Retry = r } }

// WithBackoff sets a function that returns how long a message waits for its next attempt after err, in place of the
// retry policy's growing delay. The policy's MaxAttempts still applies, and RetryIn and Snooze take precedence. A delay
// below 10 ms, such as 0, becomes 1 s. A delay that the strategy does not support is replaced by one that it supports
// (see RetryIn). The function is called at most once per delivery, on the handlers' goroutines. If it panics, the
// policy's delay applies.
func WithBackoff(backoff func(d *Delivery, err error) time.Duration) ConsumeOption {
	return func(o *consumeOptions) {
		o.expect(backoff != nil, "WithBackoff", "nil", "a function, or no option")
		o.backoff = backoff
	}
}

// WithErrorPolicy sets a function that decides from the handler's error what happens to the message. policy returns an
// error to use in place of the handler's, such as Reject(err), RetryIn(d, err), Snooze(d) or Requeue(err). If it
// returns nil or the same error, the retry policy applies. It is not called for panics, or for errors that Reject,
// RetryIn, Snooze or Requeue has returned.
//
//	amqpx.WithErrorPolicy(func(d *amqpx.Delivery, err error) error {
//		switch {
//		case errors.Is(err, ErrNoSuchOrder):
//			return amqpx.Reject(err) // dead-letter immediately
//		case errors.Is(err, ErrBusy):
//			return amqpx.RetryIn(5*time.Minute, err) // retry more slowly
//		case errors.Is(err, ErrProviderDown):
//			return amqpx.Snooze(time.Minute) // wait until it is up, without using up attempts
//		}
//		return nil
//	})
//
// Handlers of package schedule record the policy's decision in the task's row. The policy is called on the
// handlers' goroutines, once per failed run. If it panics, the handler's error is used unchanged.
func WithErrorPolicy(policy func(d *Delivery, err error) error) ConsumeOption {
	return func(o *consumeOptions) {
		o.expect(policy != nil, "WithErrorPolicy", "nil", "a function, or no option")
		o.policy = policy
	}
}

// WithDeadLetterQueue names the queue for messages that were rejected or whose attempts are used up. The default
// is the dead-letter queue in Config.Destinations, or queue + ".dead".
func WithDeadLetterQueue(name string) ConsumeOption {
	return func(o *consumeOptions) { o.set.DeadLetter = name }
}

// WithMiddleware wraps the handler. The first middleware is the outermost. If the option is given more than once, the
// middleware of an earlier option encloses that of a later one.
func WithMiddleware(m ...Middleware) ConsumeOption {
	return func(o *consumeOptions) { o.middleware = append(o.middleware, m...) }
}
