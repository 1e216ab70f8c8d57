package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

const (
	connectionKey = attribute.Key("rabbitdelay.connection")
	stateKey      = attribute.Key("rabbitdelay.state")
)

// connectionStates are the states that are reported.
var connectionStates = []amqpx.State{amqpx.StateConnecting, amqpx.StateConnected, amqpx.StateBlocked, amqpx.StateDisconnected, amqpx.StateClosed}

// ObserveClient reports Client.Stats at each collection, until Unregister. Attributes such
// as semconv.MessagingClientID("billing") distinguish the clients of a process; each needs
// its own.
func (t *Telemetry) ObserveClient(c *amqpx.Client, attributes ...attribute.KeyValue) (metric.Registration, error) {
	m := &maker{meter: t.meter}
	sessions, err := t.meter.Int64ObservableCounter("rabbitdelay.connection.sessions", metric.WithUnit("{connection}"), metric.WithDescription("Connections that were made so far: more than one means that one was lost."))
	m.note(err)
	returned, err := t.meter.Int64ObservableCounter("rabbitdelay.consumer.returned", metric.WithUnit("{message}"), metric.WithDescription("Messages that came before their instant and were sent back for the rest."))
	m.note(err)
	g := clientGauges{
		connection: m.gauge("rabbitdelay.connection.state", "{connection}", "1 for the state that a connection is in, 0 for the others."),
		sessions:   sessions,
		behind:     m.gauge("rabbitdelay.client.clock_behind", "{client}", "1 while this process's clock is seen behind those of the brokers and the publishers, else 0."),
		held:       m.gauge("rabbitdelay.consumer.held", "{message}", "Messages that were handed out and whose instant is to come."),
		returned:   returned,
		sending:    m.gauge("rabbitdelay.client.sending", "{message}", "Messages between the call of a send and its outcome."),
		inFlight:   m.gauge("rabbitdelay.client.in_flight", "{message}", "Messages that were written and await their confirm."),
		stuck:      m.gauge("rabbitdelay.client.stuck_queues", "{queue}", "Queues that have confirmed nothing for a second although messages wait for it."),
		consuming:  m.gauge("rabbitdelay.consumer.consuming", "{consumer}", "1 while the broker delivers to a consumer or it is paused, else 0."),
		running:    m.gauge("rabbitdelay.consumer.running", "{message}", "Handlers that run."),
		waiting:    m.gauge("rabbitdelay.consumer.waiting", "{message}", "Messages that were handed out and no handler has begun."),
		settling:   m.gauge("rabbitdelay.consumer.settling", "{message}", "Messages whose retry or dead letter is being published."),
		oldest:     m.seconds("rabbitdelay.consumer.oldest_waiting", "How long the first of those that wait for a handler could have begun."),
	}
	if m.err != nil {
		return nil, m.err
	}
	return t.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		g.observe(o, c.Stats(), time.Now(), t.destinations, attributes)
		return nil
	}, g.connection, g.sessions, g.behind, g.sending, g.inFlight, g.stuck, g.consuming, g.held, g.returned, g.running, g.waiting, g.settling, g.oldest)
}

type clientGauges struct {
	connection, behind, sending, inFlight, stuck metric.Int64ObservableGauge
	consuming, held, running, waiting, settling  metric.Int64ObservableGauge
	sessions, returned                           metric.Int64ObservableCounter
	oldest                                       metric.Float64ObservableGauge
}

func (g *clientGauges) observe(o metric.Observer, s amqpx.Stats, now time.Time, all *destinations, own []attribute.KeyValue) {
	with := func(more ...attribute.KeyValue) metric.ObserveOption {
		return metric.WithAttributes(append(more, own...)...)
	}
	for _, c := range []struct {
		name string
		amqpx.ConnectionStats
	}{{"publish", s.Publish}, {"consume", s.Consume}} {
		if c.State == "" {
			continue // none is wanted
		}
		for _, state := range connectionStates {
			o.ObserveInt64(g.connection, oneIf(c.State == state), with(connectionKey.String(c.name), stateKey.String(string(state))))
		}
		o.ObserveInt64(g.sessions, int64(c.Sessions), with(connectionKey.String(c.name)))
	}
	o.ObserveInt64(g.behind, oneIf(!s.ClockBehind.IsZero()), with())
	o.ObserveInt64(g.sending, int64(s.Sending), with())
	o.ObserveInt64(g.inFlight, int64(s.InFlight), with())
	o.ObserveInt64(g.stuck, int64(len(s.Stuck)), with())
	for d, k := range perDestination(s.Consumers, all) {
		at := with(d.attribute())
		o.ObserveInt64(g.consuming, oneIf(k.consuming), at)
		o.ObserveInt64(g.held, k.held, at)
		o.ObserveInt64(g.returned, k.returned, at)
		o.ObserveInt64(g.running, k.running, at)
		o.ObserveInt64(g.waiting, k.waiting, at)
		o.ObserveInt64(g.settling, k.settling, at)
		age := 0.0
		if !k.oldest.IsZero() {
			age = max(0, now.Sub(k.oldest).Seconds())
		}
		o.ObserveFloat64(g.oldest, age, at)
	}
}

// consumers sums up the consumers of a destination.
type consumers struct {
	consuming                        bool // all of them
	held, running, waiting, settling int64
	returned                         int64
	oldest                           time.Time
}

func perDestination(list []amqpx.ConsumerStats, all *destinations) map[*destination]*consumers {
	sums := map[*destination]*consumers{}
	for _, k := range list {
		d := all.get(k.Queue)
		sum := sums[d]
		if sum == nil {
			sum = &consumers{consuming: true}
			sums[d] = sum
		}
		sum.consuming = sum.consuming && (k.State == amqpx.ConsumerConsuming || k.State == amqpx.ConsumerPaused)
		sum.held += int64(k.Held)
		sum.returned += int64(k.Returned)
		sum.running += int64(k.Running)
		sum.waiting += int64(k.Waiting)
		sum.settling += int64(k.Settling)
		if !k.Oldest.IsZero() && (sum.oldest.IsZero() || k.Oldest.Before(sum.oldest)) {
			sum.oldest = k.Oldest
		}
	}
	return sums
}

func oneIf(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}
