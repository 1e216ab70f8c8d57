package amqpx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Middleware wraps a Handler in another one that does something before and after
// it, or instead of it. What it returns is the handler's result: it may turn one
// error into another, Reject(err) for instance.
type Middleware func(next Handler) Handler

// WithMiddleware wraps the handler; the first middleware is the outermost, and
// those of a second WithMiddleware are within those of the first.
func WithMiddleware(m ...Middleware) ConsumeOption {
	return func(k *consumer) { k.middleware = append(k.middleware, m...) }
}

// chain is h within the middleware; nil if one of them is missing or returns none.
func chain(h Handler, middleware []Middleware) Handler {
	for _, m := range slices.Backward(middleware) {
		if m == nil || h == nil {
			return nil
		}
		h = m(h)
	}
	return h
}

// Timeout is a Middleware that ends the handler's context after d. The attempt
// has failed if the handler returns an error after that, and succeeded if it
// returns nil. A handler that does not look at its context keeps its slot for as
// long as it runs. d of 0 or less sets no limit.
func Timeout(d time.Duration) Middleware {
	return func(next Handler) Handler {
		if d <= 0 {
			return next
		}
		return func(ctx context.Context, delivery *Delivery) error {
			ctx, cancel := context.WithTimeoutCause(ctx, d, ErrHandlerTimeout)
			defer cancel()
			err := next(ctx, delivery)
			if err != nil && errors.Is(context.Cause(ctx), ErrHandlerTimeout) {
				return fmt.Errorf("%w after %v: %w", ErrHandlerTimeout, d, err)
			}
			return err
		}
	}
}
