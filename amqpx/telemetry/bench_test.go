package telemetry_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/telemetry"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// observing returns a Telemetry with an SDK that records all metrics, and the spans that the sampler selects.
func observing(b *testing.B, sampler trace.Sampler) *telemetry.Telemetry {
	b.Helper()
	tel, err := telemetry.New(telemetry.Config{
		TracerProvider: trace.NewTracerProvider(trace.WithSampler(sampler)),
		MeterProvider:  metric.NewMeterProvider(metric.WithReader(metric.NewManualReader())),
		Propagator:     w3c,
	})
	if err != nil {
		b.Fatal(err)
	}
	return tel
}

func onSamplers(b *testing.B, run func(b *testing.B, tel *telemetry.Telemetry)) {
	for name, sampler := range map[string]trace.Sampler{
		"metrics":       trace.NeverSample(),
		"sampled1in100": trace.TraceIDRatioBased(0.01),
		"traced":        trace.AlwaysSample(),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			run(b, observing(b, sampler))
		})
	}
}

func BenchmarkSend(b *testing.B) {
	onSamplers(b, func(b *testing.B, tel *telemetry.Telemetry) {
		end := amqpx.SendEnd{ID: "id", Destination: topology.Destination{Queue: "orders"}, Duration: time.Millisecond, Tries: 1}
		hook := tel.Hook()
		for b.Loop() {
			m := amqpx.Message{Queue: "orders"}
			hook.SendEnd(hook.SendStart(context.Background(), m, amqp.Table{}), end)
		}
	})
}

func BenchmarkHandle(b *testing.B) {
	onSamplers(b, func(b *testing.B, tel *telemetry.Telemetry) {
		d := &amqpx.Delivery{ID: "id", Queue: "orders", DueAt: time.Now(), Attempt: 1, Headers: map[string]any{
			"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		}}
		end := amqpx.HandleEnd{Delivery: d, Outcome: amqpx.OutcomeAcked, Lateness: time.Millisecond, Duration: time.Microsecond}
		hook := tel.Hook()
		for b.Loop() {
			hook.HandleEnd(hook.HandleStart(context.Background(), d), end)
		}
	})
}

func BenchmarkManyDestinations(b *testing.B) {
	hook := observing(b, trace.NeverSample()).Hook()
	i := 0
	for b.Loop() {
		m := amqpx.Message{Queue: strconv.Itoa(i % 100_000)}
		hook.SendStart(context.Background(), m, amqp.Table{})
		i++
	}
}
