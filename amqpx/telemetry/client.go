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

// ObserveClient reports Client.Stats at each collection until the registration is unregistered. Use attributes such as
// semconv.MessagingClientID("billing") to distinguish the clients of a process; each client needs different ones.
func (t *Telemetry) ObserveClient(c *amqpx.Client, attributes ...attribute.KeyValue) (metric.Registration, error) {
	m := &maker{meter: t.meter, own: attributes}
	connection := m.gauge("rabbitdelay.connection.state", "{connection}", "1 for the connection's current state, 0 for all other states.")
	sessions := m.total("rabbitdelay.connection.sessions", "{connection}", "Connections established so far; more than one means that a connection was lost.")
	behind := m.gauge("rabbitdelay.client.clock_behind", "{client}", "1 while this process's clock appears to be behind the clocks of the brokers and publishers, else 0.")
	sending := m.gauge("rabbitdelay.client.sending", "{message}", "Messages that are being sent and have no outcome yet.")
	inFlight := m.gauge("rabbitdelay.client.in_flight", "{message}", "Messages that were written and await their confirms.")
	stuck := m.gauge("rabbitdelay.client.stuck_queues", "{queue}", "Queues that have confirmed nothing for a second although messages await confirms.")
	consuming := m.gauge("rabbitdelay.consumer.consuming", "{consumer}", "1 while the broker delivers to a consumer or it is paused, else 0.")
	oldest := m.seconds("rabbitdelay.consumer.oldest_waiting", "How long the oldest message that waits for a handler has been ready.")
	sums := []struct { // summed over the consumers of a destination
		instrument metric.Int64Observable
		of         func(amqpx.ConsumerStats) int64
	}{
		{m.gauge("rabbitdelay.consumer.held", "{message}", "Messages that were received before their due time and are held until then."), func(k amqpx.ConsumerStats) int64 { return int64(k.Held) }},
		{m.total("rabbitdelay.consumer.returned", "{message}", "Messages that arrived before their due time and were sent back for the rest of the delay."), func(k amqpx.ConsumerStats) int64 { return int64(k.Returned) }},
		{m.gauge("rabbitdelay.consumer.running", "{message}", "Running handlers."), func(k amqpx.ConsumerStats) int64 { return int64(k.Running) }},
		{m.gauge("rabbitdelay.consumer.blocked", "{message}", "Running handlers that wait because their database is unavailable."), func(k amqpx.ConsumerStats) int64 { return int64(k.Blocked) }},
		{m.gauge("rabbitdelay.consumer.waiting", "{message}", "Received messages that are waiting for a handler."), func(k amqpx.ConsumerStats) int64 { return int64(k.Waiting) }},
		{m.gauge("rabbitdelay.consumer.settling", "{message}", "Messages whose retry or dead letter is being published."), func(k amqpx.ConsumerStats) int64 { return int64(k.Settling) }},
	}
	return m.register(func(_ context.Context, o metric.Observer) error {
		s, now := c.Stats(), time.Now()
		for name, k := range map[string]amqpx.ConnectionStats{"publish": s.Publish, "consume": s.Consume} {
			if k.State == "" {
				continue // there is no connection, because none has been needed yet
			}
			for _, state := range []amqpx.State{amqpx.StateConnecting, amqpx.StateConnected, amqpx.StateBlocked, amqpx.StateDisconnected, amqpx.StateClosed} {
				o.ObserveInt64(connection, oneIf(k.State == state), m.with(connectionKey.String(name), stateKey.String(string(state))))
			}
			o.ObserveInt64(sessions, int64(k.Sessions), m.with(connectionKey.String(name)))
		}
		o.ObserveInt64(behind, oneIf(!s.ClockBehind.IsZero()), m.with())
		o.ObserveInt64(sending, int64(s.Sending), m.with())
		o.ObserveInt64(inFlight, int64(s.InFlight), m.with())
		o.ObserveInt64(stuck, int64(len(s.Stuck)), m.with())
		of := map[*destination][]amqpx.ConsumerStats{}
		for _, k := range s.Consumers {
			d := t.destinations.get(k.Queue)
			of[d] = append(of[d], k)
		}
		for d, consumers := range of {
			at, all, age := m.with(d.attribute()), true, time.Duration(0)
			for _, k := range consumers {
				all = all && (k.State == amqpx.ConsumerConsuming || k.State == amqpx.ConsumerPaused)
				if !k.Oldest.IsZero() {
					age = max(age, now.Sub(k.Oldest))
				}
			}
			o.ObserveInt64(consuming, oneIf(all), at)
			o.ObserveFloat64(oldest, age.Seconds(), at)
			for _, sum := range sums {
				n := int64(0)
				for _, k := range consumers {
					n += sum.of(k)
				}
				o.ObserveInt64(sum.instrument, n, at)
			}
		}
		return nil
	})
}

func oneIf(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}
