// Package probe answers those who ask over HTTP whether a process works, and Prometheus.
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
//	/readyz    200 while ready returns nil, else 503 with the parts that do not work
//	/metrics   what Prometheus reads
type Probe struct {
	http.Handler

	server *http.Server

	mu    sync.Mutex
	ready func() error
}

// What a process that does not work yet, or no longer, answers to /readyz.
var (
	ErrStarting = service.ErrStarting
	ErrStopping = service.ErrStopping
)

// New returns a probe that answers that the process is starting.
func New(metrics http.Handler) *Probe {
	p := &Probe{ready: func() error { return ErrStarting }}
	mux := http.NewServeMux()
	mux.Handle("/", service.Probe(p.check))
	mux.Handle("GET /metrics", metrics)
	p.Handler = mux
	return p
}

// Server returns a server whose connections are bounded. A handler that sends events sets bounds of its own.
func Server(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute, WriteTimeout: 2 * time.Minute, IdleTimeout: 2 * time.Minute}
}

// Answers reports whether a request is the probe's.
func (*Probe) Answers(r *http.Request) bool {
	return slices.Contains([]string{"/healthz", "/readyz", "/metrics"}, r.URL.Path)
}

// Listen answers at address, host:port, and returns the address in use.
func (p *Probe) Listen(ctx context.Context, address string) (net.Addr, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--probe: %w; expected HOST:PORT, such as 127.0.0.1:8087 or :8087", err)
	}
	p.server = Server(p)
	go func() { _ = p.server.Serve(l) }() // until Close
	return l.Addr(), nil
}

// Set has ready decide from now on.
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

// Close ends what Listen began.
func (p *Probe) Close() { _ = p.server.Close() }

// Metrics are the metrics of a process, for Prometheus.
type Metrics struct {
	// Handler answers with them.
	http.Handler
	// Telemetry has the hooks of the client and of the store.
	*telemetry.Telemetry

	provider *sdk.MeterProvider
}

// NewMetrics returns the metrics of a process, those of its runtime included.
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

// Observe reports a client, its queues, and a store unless it is nil. The destinations
// are those of the configuration.
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

// Close ends the reporting.
func (m *Metrics) Close(ctx context.Context) error { return m.provider.Shutdown(ctx) }
