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

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Middleware wraps a Handler in another one that does something before and after
// it, or instead of it. What it returns is the handler's result: it may turn one
// error into another, Reject(err) for instance.
type Middleware func(next Handler) Handler

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

// JSON returns a Handler that decodes the body of each message into a T. A body that is no
// JSON of a T is rejected, and fn is not called: see Delivery.JSON. Without fn there is no
// Handler, and Consume says so.
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

// JSON decodes the body into what v points to, in any handler:
//
//	var o Order
//	if err := d.JSON(&o); err != nil {
//		return err
//	}
//
// Its error rejects the message, which goes to the dead letters at once with the reason:
// no further attempt would decode it. errors.Is finds ErrBody in it. Fields that v does not
// have are ignored, whatever the content type.
func (d *Delivery) JSON(v any) error {
	err := json.Unmarshal(d.Body, v)
	if err == nil {
		return nil
	}
	what := "the body is no JSON"
	if len(d.Body) == 0 {
		what = "the body is empty, expected JSON"
	}
	return Reject(fmt.Errorf("%w: %s of %T (content type %q, %d bytes): %w", ErrBody, what, v, d.ContentType, len(d.Body), err))
}

// ByType returns a Handler that calls the one for the message's type (Message.Type, the AMQP
// property; "" for a message without one). A message of another type goes to otherwise or,
// where that is nil, is rejected with an error that names the types there are. errors.Is finds
// ErrType in it.
//
// A handler may be any: of schedule, of idempotency, made by JSON. ByType panics if one is nil,
// as http.Handle does.
func ByType(handlers map[string]Handler, otherwise Handler) Handler {
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
		if otherwise != nil {
			return otherwise(ctx, d)
		}
		return Reject(fmt.Errorf("%w %q; there are handlers for %s", ErrType, d.Type, cmp.Or(strings.Join(types, ", "), "no type at all")))
	}
}
