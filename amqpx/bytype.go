package amqpx

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

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
		return Reject(fmt.Errorf("%w %q; there are handlers for %s", ErrType, d.Type, strings.Join(types, ", ")))
	}
}
