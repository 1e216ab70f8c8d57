package telemetry_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/telemetry"
)

// A service with OpenTelemetry's SDK: metrics for Prometheus, and traces that are sent to the global tracer provider.
func Example() {
	ctx := context.Background()
	broker := amqptest.NewServer(amqptest.Options{}) // in a real service, this is RabbitMQ
	defer broker.Close()
	db, _ := sql.Open("sqlite", ":memory:")
	db.SetMaxOpenConns(1)
	defer db.Close()
	if err := schedule.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}

	exporter, err := prometheus.New() // promhttp.Handler() serves the metrics that it collects
	if err != nil {
		log.Fatal(err)
	}
	provider := metric.NewMeterProvider(metric.WithReader(exporter))
	defer func() { _ = provider.Shutdown(ctx) }()
	observe, err := telemetry.New(telemetry.Config{MeterProvider: provider})
	if err != nil {
		log.Fatal(err)
	}
	client, err := amqpx.Open(ctx, amqpx.Config{URL: broker.URL(), Dial: broker.Dial, Hooks: []amqpx.Hook{observe.Hook()}})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close(ctx) }()
	store, err := schedule.New(db, client, schedule.Config{Hooks: observe.Hooks(schedule.Hooks{})})
	if err != nil {
		log.Fatal(err)
	}
	_, _ = observe.ObserveClient(client)
	_, _ = observe.ObserveQueues(client, nil)
	_, _ = observe.ObserveStore(store)
	// To count skipped messages, pass schedule.OnSkip(observe.TaskSkipped) to the handlers.

	fmt.Println(client.Send(ctx, amqpx.Message{Queue: "orders"}))
	// Output: <nil>
}
