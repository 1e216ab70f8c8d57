package telemetry

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

const horizonKey = attribute.Key("rabbitdelay.horizon")

// horizons are the time ranges of rabbitdelay.tasks.pending. Each range begins where the previous one ends: due within
// a minute, then within an hour, and so on.
var horizons = []struct {
	name   string
	within time.Duration
}{{"1m", time.Minute}, {"1h", time.Hour}, {"1d", 24 * time.Hour}, {"7d", 7 * 24 * time.Hour}}

// maxCount limits each count of tasks, because a database takes a few seconds to read ten million entries of an index.
const maxCount = 1_000_000

// relayParts are the possible values of schedule.Fault.Part.
var relayParts = []string{"relay", "rate limit", "recall", "sweep", "recurring", "purge", "clock", "listen"}

// ObserveStore reports the tasks in a store's table and the health of its relay until the registration is unregistered.
// It reads the table in the background, at most once per Config.Interval and for at most 10 s. A collection waits up to
// 250 ms for a read, and otherwise reports the previous values. Counts are limited to a million. Errors are passed to
// otel.Handle. Use attributes to distinguish the stores of a process.
func (t *Telemetry) ObserveStore(s *schedule.Store, attributes ...attribute.KeyValue) (metric.Registration, error) {
	within := make([]time.Duration, len(horizons))
	for i, h := range horizons {
		within[i] = h.within
	}
	backlog := &reading[schedule.Backlog]{interval: t.interval, read: func(ctx context.Context) (schedule.Backlog, error) {
		return s.Backlog(ctx, within, maxCount)
	}}
	m := &maker{meter: t.meter, own: attributes}
	pending := m.gauge("rabbitdelay.tasks.pending", "{task}", "Pending tasks by when they are due, up to a million each.")
	unsent := m.gauge("rabbitdelay.relay.backlog", "{task}", "Pending tasks that the relay should already have sent to the broker, up to a million.")
	held := m.gauge("rabbitdelay.tasks.held", "{task}", "Tasks that are due and wait because their destination is paused or its rate limit is used up, up to a million each; no other metric includes them.")
	oldest := m.seconds("rabbitdelay.tasks.oldest_overdue", "How long the pending task with the earliest due time has been overdue; 0 if none is.")
	running := m.gauge("rabbitdelay.relay.running", "{relay}", "1 while this process runs the relay, else 0.")
	failing := m.gauge("rabbitdelay.relay.failing", "{part}", "1 while a part of the relay is failing, else 0.")
	return m.register(func(ctx context.Context, o metric.Observer) error {
		err := s.Health()
		runs := !errors.Is(err, schedule.ErrNotRunning)
		health, faulty := errors.AsType[*schedule.HealthError](err)
		o.ObserveInt64(running, oneIf(runs), m.with())
		for _, part := range relayParts {
			fails := runs && faulty && slices.ContainsFunc(health.Faults, func(f schedule.Fault) bool { return f.Part == part })
			o.ObserveInt64(failing, oneIf(fails), m.with(partKey.String(part)))
		}
		b, ok := backlog.recent(ctx)
		if !ok {
			return nil
		}
		o.ObserveInt64(unsent, b.Unsent, m.with())
		o.ObserveInt64(pending, b.Overdue, m.with(horizonKey.String("overdue")))
		for i, n := range b.Within {
			name := "later"
			if i < len(horizons) {
				name = horizons[i].name
			}
			o.ObserveInt64(pending, n, m.with(horizonKey.String(name)))
		}
		o.ObserveInt64(held, b.Paused, m.with(reasonKey.String("paused")))
		o.ObserveInt64(held, b.Throttled, m.with(reasonKey.String("rate_limit")))
		age := 0.0
		if !b.Oldest.IsZero() {
			age = b.At.Sub(b.Oldest).Seconds()
		}
		o.ObserveFloat64(oldest, age, m.with())
		return nil
	})
}
