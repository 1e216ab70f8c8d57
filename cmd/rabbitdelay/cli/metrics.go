package cli

import (
	"context"
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/telemetry"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// metrics are what a process shows Prometheus.
type metrics struct {
	// Handler serves them.
	http.Handler
	// Telemetry is the hook of the client, and gives the hooks of the store.
	*telemetry.Telemetry

	provider *sdk.MeterProvider
}

// newMetrics makes the metrics of a process, those of its runtime included.
func newMetrics() (*metrics, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reader, err := otelprom.New(otelprom.WithRegisterer(registry), otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		return nil, err
	}
	m := &metrics{
		Handler:  promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry}),
		provider: sdk.NewMeterProvider(sdk.WithReader(reader)),
	}
	m.Telemetry, err = telemetry.New(telemetry.Config{MeterProvider: m.provider})
	return m, err
}

// observe reports a client, its queues, and a store unless it is nil. The destinations
// are those of the configuration.
func (m *metrics) observe(client *amqpx.Client, store *schedule.Store, destinations []topology.Destination) error {
	_, err := m.ObserveClient(client)
	_, queuesErr := m.ObserveQueues(client, destinations)
	err = errors.Join(err, queuesErr)
	if store != nil {
		_, storeErr := m.ObserveStore(store)
		err = errors.Join(err, storeErr)
	}
	return err
}

// close ends the reporting.
func (m *metrics) close(ctx context.Context) error { return m.provider.Shutdown(ctx) }
