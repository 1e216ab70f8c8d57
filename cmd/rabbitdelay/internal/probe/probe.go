// Package probe answers HTTP health checks of a process, and serves its metrics to Prometheus.
package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/telemetry"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Probe answers over HTTP:
//
//	/healthz   200 while the process runs
//	/readyz    200 while ready returns nil, otherwise 503 with the parts that do not work
//	/metrics   the metrics for Prometheus
type Probe struct {
	http.Handler

	server *http.Server

	mu    sync.Mutex
	ready func() error
}

// Errors that /readyz reports while a process starts or stops.
var (
	ErrStarting = service.ErrStarting
	ErrStopping = service.ErrStopping
)

// New returns a probe that reports that the process is starting, until Set is called.
func New(metrics http.Handler) *Probe {
	p := &Probe{ready: func() error { return ErrStarting }}
	mux := http.NewServeMux()
	mux.Handle("/", service.Probe(p.check))
	mux.Handle("GET /metrics", metrics)
	p.Handler = mux
	return p
}

// Server returns a server with timeouts. A handler that streams events must set its own timeouts.
func Server(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute, WriteTimeout: 2 * time.Minute, IdleTimeout: 2 * time.Minute}
}

// Answers reports whether the probe is responsible for a request.
func (*Probe) Answers(r *http.Request) bool {
	return slices.Contains([]string{"/healthz", "/readyz", "/metrics"}, r.URL.Path)
}

// Listen serves the probe at address, which is host:port, and returns the address in use.
func (p *Probe) Listen(ctx context.Context, address string) (net.Addr, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--probe: %w; expected HOST:PORT, such as 127.0.0.1:8087 or :8087", err)
	}
	p.server = Server(p)
	go func() { _ = p.server.Serve(l) }() // until Close is called
	return l.Addr(), nil
}

// Set replaces the function that reports whether the process is ready.
func (p *Probe) Set(ready func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = ready
}

func (p *Probe) check() error {
	p.mu.Lock()
	ready := p.ready
	p.mu.Unlock()
	return ready()
}

// Close closes the server that Listen started.
func (p *Probe) Close() { _ = p.server.Close() }

// Metrics are the metrics of a process, for Prometheus.
type Metrics struct {
	// Handler serves the metrics.
	http.Handler
	// Telemetry contains the hooks for the client and the store.
	*telemetry.Telemetry

	provider *sdk.MeterProvider
}

// NewMetrics returns the metrics of a process, including those of the Go runtime.
func NewMetrics() (*Metrics, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reader, err := otelprom.New(otelprom.WithRegisterer(registry), otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		return nil, err
	}
	m := &Metrics{
		Handler:  promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry}),
		provider: sdk.NewMeterProvider(sdk.WithReader(reader)),
	}
	m.Telemetry, err = telemetry.New(telemetry.Config{MeterProvider: m.provider})
	return m, err
}

// Observe starts to export the metrics of a client and its queues and, if store is not nil, of a store. The
// destinations are those in the configuration.
func (m *Metrics) Observe(client *amqpx.Client, store *schedule.Store, destinations []topology.Destination) error {
	_, err := m.ObserveClient(client)
	_, queuesErr := m.ObserveQueues(client, destinations)
	err = errors.Join(err, queuesErr)
	if store != nil {
		_, storeErr := m.ObserveStore(store)
		err = errors.Join(err, storeErr)
	}
	return err
}

// Close stops the export of metrics.
func (m *Metrics) Close(ctx context.Context) error { return m.provider.Shutdown(ctx) }
