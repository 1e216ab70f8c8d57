package amqpx

import (
	"cmp"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ConsumeOption tunes one call of Consume.
type ConsumeOption func(*consumer)

// expect refuses an option's argument that is not as it has to be. The first one counts.
func (k *consumer) expect(ok bool, option string, given any, want string) {
	if !ok && k.refusal == nil {
		k.refusal = fmt.Errorf("%w: %s: %v; expected %s", ErrConfig, option, given, want)
	}
}

// WithConcurrency sets the number of handlers that run at once, default 16.
func WithConcurrency(n int) ConsumeOption {
	return func(k *consumer) {
		k.expect(n >= 1 && n <= maxPrefetch, "WithConcurrency", n, "1 to 65535")
		k.concurrency = n
	}
}

// WithPrefetch sets how many unacknowledged messages the broker delivers,
// including those being handled and those whose retry or dead letter is being
// published; default four times the concurrency, at most 65535. While half of them are
// held until their instant (Config.Lead), the consumer makes room for as many more, up to
// 65535, by further consumers on the broker; a queue with a single active consumer gives
// those nothing, and needs a prefetch for its rate times the lead.
func WithPrefetch(n int) ConsumeOption {
	return func(k *consumer) {
		k.expect(n >= 1 && n <= maxPrefetch, "WithPrefetch", n, "1 to 65535")
		k.prefetch = n
	}
}

// WithHeldBytes sets how many bytes of messages the consumer makes room for while it holds them
// until their instant (Config.Lead); default Config.HeldBytes, 64 MiB, each message counting 1 KiB besides its body. Beyond
// that it takes no more places than its prefetch: messages wait in their queue until places are free, and
// may be late. It does not bound the prefetch itself, whose messages may be of any size.
func WithHeldBytes(n int) ConsumeOption {
	return func(k *consumer) {
		k.expect(n >= 1, "WithHeldBytes", n, "1 or more")
		k.heldBytes = n
	}
}

// WithDrainTimeout sets how long running handlers may go on when the consumer ends,
// before their context is cancelled; default 30 s. One that then returns an error gives its
// message back. If that is within 2 s, Consume returns nil all the same; ErrDrainTimeout is
// for handlers that go on for longer.
func WithDrainTimeout(d time.Duration) ConsumeOption {
	return func(k *consumer) {
		k.expect(d >= 0, "WithDrainTimeout", d, "0 or more")
		k.expect(units.Duration(d) == "", "WithDrainTimeout", d, "a duration with its unit, such as 30*time.Second")
		k.drain = d
	}
}

// WithRetry sets the retry policy, instead of the one in Config.Destinations. Zero
// fields take the defaults of topology.Retry: 5 attempts, 1 s doubling up to 10 min, none
// of them repeated at once (Immediate).
func WithRetry(r topology.Retry) ConsumeOption { return func(k *consumer) { k.retry = r } }

// WithBackoff sets how long a message waits for its next attempt after err,
// instead of the retry policy's growing delay. The policy's MaxAttempts holds;
// RetryIn and Snooze take precedence. A delay below 10 ms, such as 0, stands for 1 s, and
// each is brought to one that the strategy has. It is called at most once for a
// delivery, from the handlers' goroutines; if it panics, the policy's delay applies.
func WithBackoff(backoff func(d *Delivery, err error) time.Duration) ConsumeOption {
	return func(k *consumer) {
		k.expect(backoff != nil, "WithBackoff", "nil", "a function, or no option")
		k.backoff = func(d *Delivery, err error) time.Duration {
			delay := k.growing(d, err)
			guard.Observe(k.log, "WithBackoff's function", func() { delay = orNoDelay(backoff(d, err)) })
			return delay
		}
	}
}

// WithErrorPolicy sets what becomes of a message by its handler's error: policy returns
// the error in its place, such as Reject(err), RetryIn(d, err), Snooze(d) or Requeue(err).
// nil, and an error that it returns unchanged, leave the rest to the retry policy. Errors that
// ask for something themselves (Reject and so on) and panics do not get there.
//
//	amqpx.WithErrorPolicy(func(d *amqpx.Delivery, err error) error {
//		switch {
//		case errors.Is(err, ErrNoSuchOrder):
//			return amqpx.Reject(err) // to the dead letters, at once
//		case errors.Is(err, ErrBusy):
//			return amqpx.RetryIn(5*time.Minute, err) // at another pace
//		case errors.Is(err, ErrProviderDown):
//			return amqpx.Snooze(time.Minute) // until it is up, without using up attempts
//		}
//		return nil
//	})
//
// Handlers of package schedule record in the task's row what the policy makes of an error. It
// is called from the handlers' goroutines, once for each failed run; if it panics, the error
// stays as it is.
func WithErrorPolicy(policy func(d *Delivery, err error) error) ConsumeOption {
	return func(k *consumer) {
		k.expect(policy != nil, "WithErrorPolicy", "nil", "a function, or no option")
		k.policy = func(d *Delivery, err error) error {
			guard.Observe(k.log, "WithErrorPolicy's function", func() { err = cmp.Or(policy(d, err), err) })
			return err
		}
	}
}

// WithDeadLetterQueue names the queue for messages whose attempts are used up or
// that were rejected, instead of Config.Destinations' or queue + ".dead".
func WithDeadLetterQueue(name string) ConsumeOption { return func(k *consumer) { k.dead = name } }

// WithMiddleware wraps the handler; the first middleware is the outermost, and
// those of a second WithMiddleware are within those of the first.
func WithMiddleware(m ...Middleware) ConsumeOption {
	return func(k *consumer) { k.middleware = append(k.middleware, m...) }
}
