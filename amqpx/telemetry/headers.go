package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// headers presents the headers of a message to a propagator, which sees only strings.
type headers map[string]any

var _ propagation.TextMapCarrier = headers(nil)

func (h headers) Get(key string) string {
	s, _ := h[key].(string)
	return s
}

func (h headers) Set(key, value string) { h[key] = value }

func (h headers) Keys() []string {
	keys := make([]string, 0, len(h))
	for k := range h {
		keys = append(keys, k)
	}
	return keys
}

// creation returns the context in which a message was created, invalid if its headers
// have none that can be read.
func (t *Telemetry) creation(h propagation.TextMapCarrier) trace.SpanContext {
	return trace.SpanContextFromContext(t.propagator.Extract(context.Background(), h))
}

// inject writes the context: the baggage, and the trace if somebody records it. A
// link to a span that nobody has would lead nowhere, and each header costs broker and
// client time; a parent that is not sampled says that its children are not either.
func (t *Telemetry) inject(ctx context.Context, h headers) {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() && !sc.IsSampled() && !t.parents {
		ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	}
	t.propagator.Inject(ctx, h)
}
