package amqpx

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Middleware wraps a Handler in another one that does something before it, after it or in place of it. The result of
// the outer handler counts, so it may replace an error with another one, for example with Reject(err).
type Middleware func(next Handler) Handler

// chain wraps h in the middleware. It returns nil if a middleware is nil or returns nil.
func chain(h Handler, middleware []Middleware) Handler {
	for _, m := range slices.Backward(middleware) {
		if m == nil || h == nil {
			return nil
		}
		h = m(h)
	}
	return h
}

// Timeout returns a Middleware that cancels the handler's context after d. If the handler then returns an error, the
// attempt has failed. If it returns nil, the attempt has succeeded. A handler that ignores its context counts towards
// WithConcurrency for as long as it runs. A d of 0 or less sets no limit. A d below a microsecond, as in Timeout(30),
// was probably written without its unit, so the Middleware returns nil, which Consume refuses with an error that says
// so.
func Timeout(d time.Duration) Middleware {
	return func(next Handler) Handler {
		if units.Duration(d) != "" {
			return nil
		}
		if d <= 0 || next == nil {
			return next
		}
		return func(ctx context.Context, delivery *Delivery) error {
			ctx, cancel := context.WithTimeoutCause(ctx, d, ErrHandlerTimeout)
			defer cancel()
			err := next(ctx, delivery)
			switch {
			case err == nil || !errors.Is(context.Cause(ctx), ErrHandlerTimeout):
				return err
			case err == ErrHandlerTimeout: //nolint:errorlint // the cause itself, which says nothing more
				return fmt.Errorf("%w after %s", ErrHandlerTimeout, topology.FormatDuration(d))
			default:
				return fmt.Errorf("%w after %s: %w", ErrHandlerTimeout, topology.FormatDuration(d), err)
			}
		}
	}
}

// JSON returns a Handler that decodes each message's body into a T. A body that does not decode into a T is
// rejected without calling fn, as described at Delivery.JSON. If fn is nil, JSON returns nil, which Consume
// refuses with an error that says so.
func JSON[T any](fn func(ctx context.Context, v T, d *Delivery) error) Handler {
	if fn == nil {
		return nil
	}
	return func(ctx context.Context, d *Delivery) error {
		var v T
		if err := d.JSON(&v); err != nil {
			return err
		}
		return fn(ctx, v, d)
	}
}

// JSON decodes the body into the value that v points to. It can be used in any handler:
//
//	var o Order
//	if err := d.JSON(&o); err != nil {
//		return err
//	}
//
// A handler that returns the error of JSON rejects the message: it is dead-lettered immediately, because no further
// attempt could decode the body either. The error wraps ErrUnreadableBody. JSON ignores the content type, and any
// fields of the body that v does not have.
func (d *Delivery) JSON(v any) error {
	err := json.Unmarshal(d.Body, v)
	if err == nil {
		return nil
	}
	what := "the body is not valid JSON for a value"
	if len(d.Body) == 0 {
		what = "the body is empty; expected JSON for a value"
	}
	return Reject(fmt.Errorf("%w: %s of %T (content type %q, %d bytes): %w", ErrUnreadableBody, what, v, d.ContentType, len(d.Body), err))
}

// ByType returns a Handler that calls the handler for the message's type: Message.Type, the AMQP property, or "" for a
// message without one. Messages of other types go to fallback. If fallback is nil, they are rejected with an error that
// lists the known types and wraps ErrUnknownType.
//
// The handlers can be of any kind, such as those of packages schedule and idempotency, or those that JSON returns.
// ByType panics if one of them is nil, as http.Handle does.
func ByType(handlers map[string]Handler, fallback Handler) Handler {
	handlers = maps.Clone(handlers)
	types := slices.Sorted(maps.Keys(handlers))
	for i, name := range types {
		if handlers[name] == nil {
			panic(fmt.Sprintf("amqpx: the handler for messages of type %q is nil", name))
		}
		types[i] = fmt.Sprintf("%q", name)
	}
	return func(ctx context.Context, d *Delivery) error {
		if h, ok := handlers[d.Type]; ok {
			return h(ctx, d)
		}
		if fallback != nil {
			return fallback(ctx, d)
		}
		return Reject(fmt.Errorf("%w %q; there are handlers for %s", ErrUnknownType, d.Type, cmp.Or(strings.Join(types, ", "), "no type at all")))
	}
}
