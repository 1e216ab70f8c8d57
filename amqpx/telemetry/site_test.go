package telemetry_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	api "go.opentelemetry.io/otel/trace"
	_ "modernc.org/sqlite"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/telemetry"
)

// site is an observed client and store, with an in-memory broker and database, in a bubble in which time passes without
// real waiting.
type site struct {
	*testing.T
	*amqpx.Client

	srv       *amqptest.Server
	db        *sql.DB
	store     *schedule.Store
	telemetry *telemetry.Telemetry
	spans     *tracetest.SpanRecorder
	tracer    api.Tracer
	reader    *metric.ManualReader
}

var w3c = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})

func onSite(t *testing.T, cfg telemetry.Config, test func(t *testing.T, s *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &site{T: t, srv: amqptest.NewServer(amqptest.Options{}), spans: tracetest.NewSpanRecorder(), reader: metric.NewManualReader()}
		defer s.srv.Close()
		traces := trace.NewTracerProvider(trace.WithSpanProcessor(s.spans))
		s.tracer = traces.Tracer("test")
		cfg.TracerProvider, cfg.MeterProvider, cfg.Propagator = traces, metric.NewMeterProvider(metric.WithReader(s.reader)), w3c
		var err error
		s.telemetry, err = telemetry.New(cfg)
		check(t, err)
		s.Client, err = amqpx.Open(t.Context(), amqpx.Config{URL: s.srv.URL(), Dial: s.srv.Dial, Hooks: []amqpx.Hook{s.telemetry.Hook()}})
		check(t, err)
		defer func() { _ = s.Close(context.Background()) }()
		s.db, err = sql.Open("sqlite", ":memory:")
		check(t, err)
		defer s.db.Close()
		s.db.SetMaxOpenConns(1)
		check(t, schedule.Migrate(t.Context(), s.db))
		s.store, err = schedule.New(s.db, s.Client, schedule.Config{Hooks: s.telemetry.Hooks(schedule.Hooks{}), VirtualTime: true})
		check(t, err)
		test(t, s)
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// after waits for d, and then until everything in the bubble is idle.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// run runs f alongside the test until stop is called.
func (s *site) run(f func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			s.Error(err)
		}
	}
}

func (s *site) Context() context.Context { return s.T.Context() }

func (s *site) consume(queue string, h amqpx.Handler, opts ...amqpx.ConsumeOption) (stop func()) {
	return s.run(func(ctx context.Context) error { return s.Consume(ctx, queue, h, opts...) })
}

// named returns the ended spans with the given name, in the order of their start times.
func (s *site) named(name string) []trace.ReadOnlySpan {
	var list []trace.ReadOnlySpan
	for _, span := range s.spans.Ended() {
		if span.Name() == name {
			list = append(list, span)
		}
	}
	slices.SortStableFunc(list, func(a, b trace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	return list
}

// one returns the only ended span with the given name.
func (s *site) one(name string) trace.ReadOnlySpan {
	s.Helper()
	list := s.named(name)
	if len(list) != 1 {
		var all []string
		for _, span := range s.spans.Ended() {
			all = append(all, span.Name())
		}
		s.Fatalf("ended spans: got %d with the name %q among %q, want 1", len(list), name, all)
	}
	return list[0]
}

// isLinked fails the test unless each of the spans has exactly one link, to the given span context.
func (s *site) isLinked(to api.SpanContext, spans ...trace.ReadOnlySpan) {
	s.Helper()
	for _, span := range spans {
		links := span.Links()
		if len(links) != 1 || links[0].SpanContext.SpanID() != to.SpanID() || links[0].SpanContext.TraceID() != to.TraceID() {
			s.Errorf("span %s has the links %v, want one to %v", span.Name(), links, to.SpanID())
		}
	}
}

// text returns an attribute of a span.
func text(span trace.ReadOnlySpan, key string) string {
	for _, a := range span.Attributes() {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

// metrics collects and returns all metrics.
func (s *site) metrics() collected {
	s.Helper()
	var all metricdata.ResourceMetrics
	check(s.T, s.reader.Collect(s.Context(), &all))
	c := collected{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			c[m.Name] = points(m.Data)
		}
	}
	return c
}

// collected contains the values of metrics by name and attributes. For a histogram, the value is its count.
type collected map[string]map[attribute.Distinct]point

type point struct {
	attributes attribute.Set
	value      float64
}

func points(data metricdata.Aggregation) map[attribute.Distinct]point {
	out := map[attribute.Distinct]point{}
	add := func(set attribute.Set, value float64) { out[set.Equivalent()] = point{set, value} }
	switch d := data.(type) {
	case metricdata.Gauge[int64]:
		for _, p := range d.DataPoints {
			add(p.Attributes, float64(p.Value))
		}
	case metricdata.Gauge[float64]:
		for _, p := range d.DataPoints {
			add(p.Attributes, p.Value)
		}
	case metricdata.Sum[int64]:
		for _, p := range d.DataPoints {
			add(p.Attributes, float64(p.Value))
		}
	case metricdata.Histogram[float64]:
		for _, p := range d.DataPoints {
			add(p.Attributes, float64(p.Count))
		}
	}
	return out
}

// get returns the sum and the number of the points that have the given attributes.
func (c collected) get(name string, with ...string) (sum float64, n int) {
	for _, p := range c[name] {
		has := true
		for i := 0; i < len(with); i += 2 {
			v, ok := p.attributes.Value(attribute.Key(with[i]))
			has = has && (ok && v.String() == with[i+1] || !ok && with[i+1] == "")
		}
		if has {
			sum, n = sum+p.value, n+1
		}
	}
	return sum, n
}

// want fails the test unless there are points with the given attributes and their sum is value.
func (c collected) want(t *testing.T, value float64, name string, with ...string) {
	t.Helper()
	if got, n := c.get(name, with...); got != value || n == 0 {
		t.Errorf("%s%v: got %v as the sum of %d points, want %v", name, with, got, n, value)
	}
}

var errAgain = errors.New("again")

// failing returns a handler whose first n attempts fail.
func failing(n int) amqpx.Handler {
	return func(_ context.Context, d *amqpx.Delivery) error {
		if d.Attempt <= n {
			return errAgain
		}
		return nil
	}
}

// headerOf returns a header of the first ready message in a queue.
func (s *site) headerOf(queue, name string) string {
	s.Helper()
	q, ok := s.srv.Queue(queue)
	if !ok || len(q.Messages) == 0 {
		s.Fatalf("%s has no ready messages, want at least 1", queue)
	}
	v, _ := q.Messages[0].Headers[name].(string)
	return cmp.Or(v, "")
}

func traceparent(span api.SpanContext) string {
	return "00-" + span.TraceID().String() + "-" + span.SpanID().String() + "-" + span.TraceFlags().String()
}
