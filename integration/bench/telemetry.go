package bench

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/telemetry"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// telemetry compares Send and a bare handler with and without OpenTelemetry, whose SDK
// records all metrics and one trace in a hundred, or every trace.
func (r *run) telemetry(ctx context.Context, s *Scenario) error {
	for _, t := range r.o.QueueTypes {
		if err := r.telemetryOn(ctx, s, t); err != nil {
			return fmt.Errorf("%s queues: %w", t, err)
		}
	}
	return nil
}

func (r *run) telemetryOn(ctx context.Context, s *Scenario, t topology.QueueType) (err error) {
	group := string(t) + " queues"
	const without = "without telemetry"
	ways := []struct {
		name    string
		sampled float64 // of the traces; less than 0: no telemetry
	}{{without, -1}, {"one trace in 100", 0.01}, {"every trace", 1}}
	works := []string{"Send, 64 goroutines, ", "bare handler, "}
	n := r.o.Messages
	add, done := r.o.Progress("telemetry, "+group, n*r.o.Repeats*len(ways)*len(works))
	defer done()
	var variants []variant
	var ends []func(context.Context) error
	defer func() {
		for _, end := range ends {
			err = joined(err, end(ctx))
		}
	}()
	for i, w := range ways {
		var hooks []amqpx.Hook
		if w.sampled >= 0 {
			hook, shutdown, err := observer(w.sampled)
			if err != nil {
				return err
			}
			ends, hooks = append(ends, shutdown), []amqpx.Hook{hook}
		}
		c, err := r.open(ctx, r.main, fmt.Sprintf("telemetry-%s-%d", t, i), t, clock(t), hooks...)
		if err != nil {
			return err
		}
		ends = append(ends, c.close)
		sending, handled := s.find(group, works[0]+w.name, w.name == without), s.find(group, works[1]+w.name, w.name == without)
		variants = append(variants, variant{func(ctx context.Context) error {
			k, err := measured(func() error { return c.sendShared(ctx, n, r.o.Body, halfAnHour, add) })
			if err != nil {
				return err
			}
			sending.record(k, n)
			nothing := handling{handler: func(context.Context, *amqpx.Delivery) error { return nil }}
			return errors.Join(c.purge(), r.consumeOnce(ctx, c, nil, nothing, handled, add))
		}})
	}
	if err := interleave(ctx, r.o.Repeats, variants); err != nil {
		return err
	}
	for _, work := range works {
		for _, w := range ways[1:] {
			s.ratio(fmt.Sprintf("%s%s, %s: rate / without", work, w.name, group), s.find(group, work+w.name, false), s.find(group, work+without, true), metricRate, 0.95, false)
		}
	}
	return nil
}

// observer is a hook with an SDK that exports to nowhere.
func observer(sampled float64) (hook amqpx.Hook, shutdown func(context.Context) error, err error) {
	traces := trace.NewTracerProvider(trace.WithSampler(trace.TraceIDRatioBased(sampled)), trace.WithBatcher(tracetest.NewNoopExporter()))
	metrics := metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))
	hook, err = telemetry.New(telemetry.Config{
		TracerProvider: traces, MeterProvider: metrics,
		Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}),
	})
	return hook, func(ctx context.Context) error { return errors.Join(traces.Shutdown(ctx), metrics.Shutdown(ctx)) }, err
}
