// Package telemetry records OpenTelemetry traces and metrics of clients and stores. It imports only OpenTelemetry's
// API. The program chooses the SDK and the exporters.
//
// Names follow OpenTelemetry's semantic conventions for messaging, version 1.43 (in development). The span of sending a
// message and the span of handling it are connected by a link, because neither span should last as long as the delay,
// which may be a month. Config.ParentSpans puts them into one trace. The context of a sampled trace is stored in the
// message's headers when the message is first sent or its task is scheduled, and stays there through retries, snoozes,
// dead letters and requeues.
//
// Metrics distinguish destinations by name, up to Config.MaxDestinations, but never messages. docs/telemetry.md lists
// all metrics.
//
//   - telemetry.go: Config and the instruments
//   - send.go, handle.go, tasks.go: the hooks with their spans and counters, and the trace context in a message's
//     headers
//   - destinations.go: what is recorded for each destination, and the limit on their number
//   - client.go, store.go, queues.go: what a collection observes; reading.go: values that are read in the background
package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// scopeName is the name of the instrumentation scope.
const scopeName = "github.com/rabbitdelay/rabbitdelay/amqpx/telemetry"

// Config configures a Telemetry. The zero value uses OpenTelemetry's global providers.
type Config struct {
	// TracerProvider is used for traces; the default is the global one.
	TracerProvider trace.TracerProvider
	// MeterProvider is used for metrics; the default is the global one.
	MeterProvider metric.MeterProvider
	// Propagator reads and writes the trace context in headers. The default is the global one or, if that is not set
	// when New is called, W3C's trace context and baggage.
	Propagator propagation.TextMapPropagator
	// ParentSpans makes the span of a handler a child of the span that sent its message. By default, it belongs to a
	// separate trace with a link to that span. A trace with ParentSpans lasts as long as the delay, and most backends
	// can only assemble traces of a few minutes.
	ParentSpans bool
	// MaxDestinations is how many destinations are distinguished in span names and metrics, from 1 to 10,000; the
	// default is 200. All further destinations are recorded as "_OTHER". If it is above 200, also raise the SDK's limit
	// of 2000 attribute sets for each instrument.
	MaxDestinations int
	// Interval is the pause between two reads of the database or of queues, from 1 s to 1 h; the default is 30 s. The
	// pause is longer if reads are slow, so that they take at most a tenth of the time. If reads fail, the last values
	// are reported for up to three intervals and 90 s.
	Interval time.Duration
}

// ErrConfig is wrapped by the errors of New about an invalid Config.
var ErrConfig = errors.New("invalid configuration")

// Telemetry observes clients through Hook and stores through Hooks. It is safe for concurrent use by many clients. The
// zero value is not usable; use New.
type Telemetry struct {
	tracer       trace.Tracer
	meter        metric.Meter
	propagator   propagation.TextMapPropagator
	parents      bool
	interval     time.Duration
	destinations *destinations

	sendDuration    metric.Float64Histogram
	processDuration metric.Float64Histogram
	lateness        metric.Float64Histogram
	skipped         metric.Int64Counter
	tasks           taskInstruments
}

// taskInstruments are the instruments that the hooks of a store record to.
type taskInstruments struct {
	sent, unsent, purged, errors metric.Int64Counter
	skew                         metric.Float64Gauge
}

// Hook returns a hook for amqpx.Config.Hooks of a client.
func (t *Telemetry) Hook() amqpx.Hook {
	return amqpx.Hook{SendStart: t.sendStart, SendEnd: t.sendEnd, HandleStart: t.handleStart, HandleEnd: t.handleEnd}
}

// durations and latenesses are the bucket boundaries of the histograms, in seconds. The boundaries for lateness range
// from a millisecond to a day.
var (
	durations  = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}
	latenesses = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600}
)

// New returns a Telemetry. Its errors wrap ErrConfig, or are errors of the meter.
func New(cfg Config) (*Telemetry, error) {
	cfg.TracerProvider, cfg.MeterProvider = cmp.Or(cfg.TracerProvider, otel.GetTracerProvider()), cmp.Or(cfg.MeterProvider, otel.GetMeterProvider())
	cfg.MaxDestinations, cfg.Interval = cmp.Or(cfg.MaxDestinations, 200), cmp.Or(cfg.Interval, 30*time.Second)
	if cfg.Propagator == nil {
		cfg.Propagator = otel.GetTextMapPropagator()
		if len(cfg.Propagator.Fields()) == 0 {
			cfg.Propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
		}
	}
	if cfg.MaxDestinations < 1 || cfg.MaxDestinations > 10_000 {
		return nil, fmt.Errorf("%w: MaxDestinations: %d; expected 1 to 10000", ErrConfig, cfg.MaxDestinations)
	}
	if cfg.Interval < time.Second || cfg.Interval > time.Hour {
		return nil, fmt.Errorf("%w: Interval: %s; expected 1s to 1h", ErrConfig, topology.FormatDuration(cfg.Interval))
	}
	t := &Telemetry{
		tracer:     cfg.TracerProvider.Tracer(scopeName, trace.WithSchemaURL(semconv.SchemaURL)),
		meter:      cfg.MeterProvider.Meter(scopeName, metric.WithSchemaURL(semconv.SchemaURL)),
		propagator: cfg.Propagator, parents: cfg.ParentSpans, interval: cfg.Interval,
		destinations: &destinations{most: cfg.MaxDestinations, rest: newDestination(other), all: map[string]*destination{}},
	}
	m := &maker{meter: t.meter}
	t.sendDuration = m.histogram("messaging.client.operation.duration", "Time from the call to the broker's confirm or the error, for each message sent.", durations)
	t.processDuration = m.histogram("messaging.process.duration", "Duration of the handler, for each delivery.", durations)
	t.lateness = m.histogram("rabbitdelay.lateness", "Start of a message's handler minus the message's due time.", latenesses)
	t.skipped = m.counter("rabbitdelay.skipped", "{message}", "Messages that were acknowledged without an effect.")
	t.tasks = taskInstruments{
		sent:   m.counter("rabbitdelay.relay.sent", "{task}", "Tasks whose messages were confirmed; resent ones were sent again by the sweeper."),
		unsent: m.counter("rabbitdelay.relay.send_failures", "{task}", "Tasks that could not be sent: they are retried, or have failed permanently."),
		purged: m.counter("rabbitdelay.relay.purged", "{task}", "Finished tasks that were deleted after their retention."),
		errors: m.counter("rabbitdelay.relay.errors", "{error}", "Errors in parts of the relay, which continue to run."),
	}
	var err error
	t.tasks.skew, err = t.meter.Float64Gauge("rabbitdelay.relay.clock_skew", metric.WithUnit("s"), metric.WithDescription("The database's clock minus this process's clock, as last measured."))
	m.note(err)
	return t, m.err
}

// maker creates instruments and keeps the first error. Observable instruments share one callback.
type maker struct {
	meter metric.Meter
	own   []attribute.KeyValue // attributes of every observation
	all   []metric.Observable
	err   error
}

func (m *maker) note(err error) {
	if m.err == nil && err != nil {
		m.err = fmt.Errorf("telemetry: %w", err)
	}
}

func (m *maker) histogram(name, description string, boundaries []float64) metric.Float64Histogram {
	h, err := m.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(boundaries...))
	m.note(err)
	return h
}

func (m *maker) counter(name, unit, description string) metric.Int64Counter {
	c, err := m.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
	m.note(err)
	return c
}

func (m *maker) gauge(name, unit, description string) metric.Int64Observable {
	g, err := m.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	return observed(m, g, err)
}

func (m *maker) total(name, unit, description string) metric.Int64Observable {
	c, err := m.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	return observed(m, c, err)
}

func (m *maker) seconds(name, description string) metric.Float64Observable {
	g, err := m.meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(description))
	return observed(m, g, err)
}

func observed[I metric.Observable](m *maker, instrument I, err error) I {
	m.note(err)
	m.all = append(m.all, instrument)
	return instrument
}

// with returns the attributes of an observation, including the maker's own.
func (m *maker) with(more ...attribute.KeyValue) metric.ObserveOption {
	return metric.WithAttributes(append(more, m.own...)...)
}

// register registers a callback that calls observe at each collection.
func (m *maker) register(observe func(context.Context, metric.Observer) error) (metric.Registration, error) {
	if m.err != nil {
		return nil, m.err
	}
	return m.meter.RegisterCallback(observe, m.all...)
}
