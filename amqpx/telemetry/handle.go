package telemetry

import (
	"context"
	"errors"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// handleStart starts the span of a delivery. The handler's context contains the span and the message's baggage. The
// span ends when the message is settled. The duration of the handler alone is in messaging.process.duration.
func (t *Telemetry) handleStart(ctx context.Context, d *amqpx.Delivery) context.Context {
	dest := t.destinations.get(d.Queue)
	opts := processOptions
	if len(d.Headers) > 0 {
		ctx = t.propagator.Extract(ctx, headers(d.Headers))
	}
	sent := trace.SpanContextFromContext(ctx)
	switch {
	case !sent.IsValid():
	case !sent.IsRemote(): // the context comes from the call to Consume, whose span would last as long as the consumer
		opts = append(slices.Clip(opts), trace.WithNewRoot())
	case t.parents:
	default:
		opts = append(slices.Clip(opts), trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: sent}))
	}
	ctx, _ = t.tracer.Start(ctx, dest.processSpan, opts...) //nolint:spancheck // handleEnd ends it
	return ctx
}

// handleEnd ends the span and records the outcome.
func (t *Telemetry) handleEnd(ctx context.Context, e amqpx.HandleEnd) {
	dest := t.destinations.get(e.Delivery.Queue)
	class := handleError(e)
	if i := slices.Index(outcomes[:], e.Outcome); i >= 0 {
		opts := dest.processed[i][class].of(func() []attribute.KeyValue {
			all := append(slices.Clip(processAttributes), dest.attribute(), outcomeKey.String(string(e.Outcome)))
			if class > 0 {
				all = append(all, semconv.ErrorTypeKey.String(handleErrors[class]))
			}
			return all
		})
		t.processDuration.Record(ctx, e.Duration.Seconds(), opts...)
	}
	if !e.Delivery.DueSince().IsZero() {
		t.lateness.Record(ctx, max(0, e.Lateness.Seconds()), dest.lateness...)
	}
	span := trace.SpanFromContext(ctx)
	if span.IsRecording() {
		span.SetAttributes(
			semconv.MessagingDestinationName(e.Delivery.Queue), semconv.MessagingMessageID(e.Delivery.ID),
			outcomeKey.String(string(e.Outcome)), attemptKey.Int(e.Delivery.Attempt), latenessKey.Float64(e.Lateness.Seconds()),
		)
		if class > 0 {
			span.SetAttributes(semconv.ErrorTypeKey.String(handleErrors[class]))
			span.SetStatus(codes.Error, e.Err.Error())
		}
	}
	span.End()
}

// Attributes of the span of a handler. The outcome is also an attribute of its metrics.
const (
	outcomeKey  = attribute.Key("rabbitdelay.outcome")
	attemptKey  = attribute.Key("rabbitdelay.attempt")
	latenessKey = attribute.Key("rabbitdelay.lateness") // seconds
)

// handleErrors are the values of error.type for a handler. The first value means success, which
// includes a snooze and a message that arrived early.
var handleErrors = [...]string{"", "panic", "rejected", "timeout", "canceled", other}

// handleError returns the index in handleErrors for the result of a handler.
func handleError(e amqpx.HandleEnd) int {
	class := other
	switch {
	case e.Err == nil, amqpx.IsSnoozed(e.Err), e.Outcome == amqpx.OutcomeReturned:
		return 0
	case e.Panicked:
		class = "panic"
	case amqpx.IsRejected(e.Err):
		class = "rejected"
	case errors.Is(e.Err, amqpx.ErrHandlerTimeout), errors.Is(e.Err, context.DeadlineExceeded):
		class = "timeout"
	case errors.Is(e.Err, context.Canceled):
		class = "canceled"
	}
	return slices.Index(handleErrors[:], class)
}
