package telemetry

import (
	"context"
	"errors"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// sendStart starts the span of a send. If the message's headers contain no trace context, it adds that of the span.
func (t *Telemetry) sendStart(ctx context.Context, m amqpx.Message, out amqp.Table) context.Context {
	d := t.destinations.get(nameOf(m.Queue, m.Exchange, m.RoutingKey))
	creation := trace.SpanContext{}
	opts := sendOptions
	if len(m.Headers) > 0 {
		if creation = t.creation(headers(m.Headers)); creation.IsValid() {
			opts = append(slices.Clip(opts), trace.WithLinks(trace.Link{SpanContext: creation}))
			if t.parents && !trace.SpanContextFromContext(ctx).IsValid() {
				ctx = trace.ContextWithRemoteSpanContext(ctx, creation)
			}
		}
	}
	ctx, _ = t.tracer.Start(ctx, d.sendSpan, opts...) //nolint:spancheck // sendEnd ends it
	if !creation.IsValid() {
		if _, ok := m.Headers["tracestate"]; ok {
			out["tracestate"] = "" // without a readable traceparent, an existing tracestate belongs to another trace
		}
		// If the trace is not sampled, add only the baggage. A link to a span that was not recorded would be useless,
		// and each header costs the broker and the client time. With ParentSpans the context is still needed, because
		// it makes sure that child spans are not sampled either.
		if sc := trace.SpanContextFromContext(ctx); sc.IsValid() && !sc.IsSampled() && !t.parents {
			t.propagator.Inject(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), headers(out))
		} else {
			t.propagator.Inject(ctx, headers(out))
		}
	}
	return ctx
}

// sendEnd ends the span and records the result.
func (t *Telemetry) sendEnd(ctx context.Context, e amqpx.SendEnd) {
	d := t.destinations.get(nameOf(e.Destination.Queue, e.Destination.Exchange, e.Destination.RoutingKey))
	class := sendError(e.Err)
	opts := d.sent[class].of(func() []attribute.KeyValue {
		all := append(slices.Clip(sendAttributes), d.attribute())
		if class > 0 {
			all = append(all, semconv.ErrorTypeKey.String(sendErrors[class]))
		}
		return all
	})
	t.sendDuration.Record(ctx, e.Duration.Seconds(), opts...)
	span := trace.SpanFromContext(ctx)
	if span.IsRecording() {
		span.SetName(d.sendSpan) // for a dead letter, the destination was not known before
		span.SetAttributes(
			semconv.MessagingDestinationName(fullName(e.Destination)), semconv.MessagingMessageID(e.ID),
			delayKey.Float64(e.Delay.Seconds()), hopsKey.Int(e.Hops), triesKey.Int(e.Tries),
		)
		if class > 0 {
			span.SetAttributes(semconv.ErrorTypeKey.String(sendErrors[class]))
			span.SetStatus(codes.Error, e.Err.Error())
		}
	}
	span.End()
}

// Attributes of the span of a send.
const (
	delayKey = attribute.Key("rabbitdelay.delay") // seconds
	hopsKey  = attribute.Key("rabbitdelay.hops")
	triesKey = attribute.Key("rabbitdelay.tries")
)

// nameOf returns the name of a destination for metrics: a queue or an exchange. For the default exchange the routing
// key is the name of the queue.
func nameOf(queue, exchange, routingKey string) string {
	switch {
	case queue != "":
		return queue
	case exchange != "":
		return exchange
	}
	return routingKey
}

// fullName returns the name of a destination according to OpenTelemetry's conventions: {exchange}:{routing key} if both
// are given.
func fullName(d topology.Destination) string {
	if d.Queue == "" && d.Exchange != "" && d.RoutingKey != "" {
		return d.Exchange + ":" + d.RoutingKey
	}
	return nameOf(d.Queue, d.Exchange, d.RoutingKey)
}

// sendErrors are the values of error.type for a send. The first value means success.
var sendErrors = [...]string{"", "invalid", "blocked", "unroutable", "nacked", "closed", "timeout", "canceled", "refused", other}

// sendError returns the index of an error in sendErrors.
func sendError(err error) int {
	class := other
	var refused *amqp.Error
	var key *topology.KeyError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, amqpx.ErrBlocked):
		class = "blocked"
	case errors.Is(err, amqpx.ErrUnroutable):
		class = "unroutable"
	case errors.Is(err, amqpx.ErrNacked):
		class = "nacked"
	case errors.Is(err, amqpx.ErrClosed):
		class = "closed"
	case errors.As(err, &refused):
		class = "refused"
	case errors.Is(err, context.DeadlineExceeded):
		class = "timeout"
	case errors.Is(err, context.Canceled):
		class = "canceled"
	case errors.Is(err, amqpx.ErrMessage), errors.Is(err, topology.ErrDelay), errors.Is(err, topology.ErrDestination), errors.As(err, &key):
		class = "invalid"
	}
	return slices.Index(sendErrors[:], class)
}

// headers presents the headers of a message to a propagator, which only sees strings.
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

// creation returns the trace context in which a message was created. It is invalid if the headers contain no readable
// trace context.
func (t *Telemetry) creation(h propagation.TextMapCarrier) trace.SpanContext {
	return trace.SpanContextFromContext(t.propagator.Extract(context.Background(), h))
}
