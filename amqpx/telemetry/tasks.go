package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

const (
	resentKey = attribute.Key("rabbitdelay.resent")
	finalKey  = attribute.Key("rabbitdelay.final")
	partKey   = attribute.Key("rabbitdelay.part")
	reasonKey = attribute.Key("rabbitdelay.reason")
)

// Hooks returns hooks for schedule.Config.Hooks of a store. They record the events and then call the hooks in next. A
// task and each of its messages carry the trace context and the baggage of the context in which the task was scheduled,
// unless the task has its own.
func (t *Telemetry) Hooks(next schedule.Hooks) schedule.Hooks {
	// Add 0 to the counters to create their series, so that the first increase is visible.
	ctx := context.Background()
	for _, yes := range []bool{false, true} { // series with a destination are created when a task for that destination fails
		t.tasks.sent.Add(ctx, 0, metric.WithAttributes(resentKey.Bool(yes)))
		t.tasks.unsent.Add(ctx, 0, metric.WithAttributes(finalKey.Bool(yes)))
	}
	t.tasks.purged.Add(ctx, 0)
	for _, part := range relayParts {
		t.tasks.errors.Add(ctx, 0, metric.WithAttributes(partKey.String(part)))
	}
	h := next
	h.BeforeSchedule = func(ctx context.Context, task *schedule.Task) {
		// Add the context to the task, unless the task has its own.
		if own := propagation.MapCarrier(task.Headers); !t.creation(own).IsValid() && trace.SpanContextFromContext(ctx).IsValid() {
			delete(own, "tracestate")
			if task.Headers == nil {
				task.Headers = map[string]string{}
			}
			t.propagator.Inject(ctx, propagation.MapCarrier(task.Headers))
		}
		if next.BeforeSchedule != nil {
			next.BeforeSchedule(ctx, task)
		}
	}
	h.Relayed = func(n int, resent bool) {
		t.tasks.sent.Add(context.Background(), int64(n), metric.WithAttributes(resentKey.Bool(resent)))
		if next.Relayed != nil {
			next.Relayed(n, resent)
		}
	}
	h.SendFailed = func(task schedule.TaskRow, err error, failed bool) {
		d := t.destinations.get(nameOf(task.Queue, task.Exchange, task.RoutingKey))
		t.tasks.unsent.Add(context.Background(), 1, metric.WithAttributes(d.attribute(), finalKey.Bool(failed)))
		if next.SendFailed != nil {
			next.SendFailed(task, err, failed)
		}
	}
	h.ClockSkew = func(skew, uncertainty time.Duration) {
		t.tasks.skew.Record(context.Background(), skew.Seconds())
		if next.ClockSkew != nil {
			next.ClockSkew(skew, uncertainty)
		}
	}
	h.Purged = func(n int64) {
		t.tasks.purged.Add(context.Background(), n)
		if next.Purged != nil {
			next.Purged(n)
		}
	}
	h.Error = func(what string, err error) {
		t.tasks.errors.Add(context.Background(), 1, metric.WithAttributes(partKey.String(what)))
		if next.Error != nil {
			next.Error(what, err)
		}
	}
	return h
}

// TaskSkipped counts a message whose effect was skipped. Pass it to schedule.OnSkip.
func (t *Telemetry) TaskSkipped(ctx context.Context, d *amqpx.Delivery, reason schedule.SkipReason) {
	t.skip(ctx, d, string(reason))
}

// MessageSkipped counts a message whose effect was skipped. Pass it to idempotency.OnSkip.
func (t *Telemetry) MessageSkipped(ctx context.Context, d *amqpx.Delivery, reason idempotency.SkipReason) {
	t.skip(ctx, d, string(reason))
}

// skip counts the message and adds the reason to the handler's span.
func (t *Telemetry) skip(ctx context.Context, d *amqpx.Delivery, reason string) {
	t.skipped.Add(ctx, 1, metric.WithAttributes(t.destinations.get(d.Queue).attribute(), reasonKey.String(reason)))
	trace.SpanFromContext(ctx).SetAttributes(reasonKey.String(reason))
}
