package telemetry

import (
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// other is the name of all destinations beyond the limit.
const other = "_OTHER"

// destinations records the destinations seen so far by name. The name is that of a queue, or of an exchange without the
// routing key.
type destinations struct {
	most int
	rest *destination

	mu  sync.RWMutex
	all map[string]*destination
}

func (d *destinations) get(name string) *destination {
	d.mu.RLock()
	found, full := d.all[name], len(d.all) >= d.most
	d.mu.RUnlock()
	if found != nil {
		return found
	}
	if full {
		return d.rest
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.all[name] != nil:
	case len(d.all) >= d.most:
		return d.rest
	default:
		d.all[name] = newDestination(name)
	}
	return d.all[name]
}

// destination caches the names, options and attributes that are recorded for a destination.
type destination struct {
	name                  string
	sendSpan, processSpan string

	lateness  []metric.RecordOption
	sent      [len(sendErrors)]options
	processed [len(outcomes)][len(handleErrors)]options
}

func newDestination(name string) *destination {
	d := &destination{name: name, sendSpan: "send " + name, processSpan: "process " + name}
	if name == other {
		d.sendSpan, d.processSpan = "send", "process"
	}
	d.lateness = recordOptions(d.attribute())
	return d
}

func (d *destination) attribute() attribute.KeyValue { return semconv.MessagingDestinationName(d.name) }

// Attributes and start options of the spans of every send and of every handler.
var (
	sendAttributes = []attribute.KeyValue{
		semconv.MessagingSystemRabbitMQ, semconv.MessagingOperationName("send"), semconv.MessagingOperationTypeSend,
	}
	processAttributes = []attribute.KeyValue{
		semconv.MessagingSystemRabbitMQ, semconv.MessagingOperationName("process"), semconv.MessagingOperationTypeProcess,
	}
	sendOptions    = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(sendAttributes...)}
	processOptions = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(processAttributes...)}
)

// outcomes lists the outcomes that messaging.process.duration distinguishes, in the order of destination.processed.
var outcomes = [...]amqpx.Outcome{
	amqpx.OutcomeAcked, amqpx.OutcomeRetried, amqpx.OutcomeSnoozed, amqpx.OutcomeDeadLettered, amqpx.OutcomeRequeued,
	amqpx.OutcomeReturned, amqpx.OutcomeLost,
}

// options caches the recording options for one set of attributes.
type options struct {
	made atomic.Pointer[[]metric.RecordOption]
}

func (o *options) of(attributes func() []attribute.KeyValue) []metric.RecordOption {
	if made := o.made.Load(); made != nil {
		return *made
	}
	made := recordOptions(attributes()...)
	o.made.Store(&made)
	return made
}

func recordOptions(attributes ...attribute.KeyValue) []metric.RecordOption {
	return []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attributes...))}
}
