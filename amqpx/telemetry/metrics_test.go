package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/duecheck"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/telemetry"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

const (
	destination = "messaging.destination.name"
	outcome     = "rabbitdelay.outcome"
)

func TestMetricsOfMessages(t *testing.T) {
	onSite(t, telemetry.Config{}, func(t *testing.T, s *site) {
		early := true
		stop := s.consume("orders", func(_ context.Context, d *amqpx.Delivery) error {
			switch {
			case d.ID == "early" && early: // as schedule's handlers decide by the database's clock
				early = false
				return &duecheck.EarlyError{Offset: -time.Minute}
			case d.ID == "panics":
				panic("oh")
			case d.ID == "rejected":
				return amqpx.Reject(errors.New("never"))
			case d.ID == "snoozed" && d.Snoozes == 0:
				return amqpx.Snooze(time.Minute)
			}
			return failing(1)(t.Context(), d)
		}, amqpx.WithRetry(topology.Retry{MaxAttempts: 2}))
		for _, id := range []string{"early", "panics", "rejected", "snoozed", "fine"} {
			check(t, s.Send(t.Context(), amqpx.Message{ID: id, Queue: "orders", Delay: time.Second}))
		}
		for range 3 {
			_ = s.Send(t.Context(), amqpx.Message{Queue: "orders", Delay: -1})
		}
		_ = s.Send(t.Context(), amqpx.Message{Exchange: "events", RoutingKey: "order.42", Delay: -1})
		after(time.Hour)
		stop()
		m := s.metrics()
		const sent, handled = "messaging.client.operation.duration", "messaging.process.duration"
		// Five messages, four retries, a snooze and the message that was sent back.
		m.want(t, 5+4+1+1, sent, destination, "orders", "error.type", "")
		m.want(t, 3, sent, destination, "orders", "error.type", "invalid")
		m.want(t, 1, sent, destination, "events", "error.type", "invalid")
		m.want(t, 2, sent, destination, "orders.dead", "error.type", "")
		m.want(t, 3, handled, outcome, "acked", "error.type", "")
		m.want(t, 1, handled, outcome, "retried", "error.type", "panic")
		m.want(t, 3, handled, outcome, "retried", "error.type", "_OTHER")
		m.want(t, 1, handled, outcome, "snoozed", "error.type", "")
		m.want(t, 1, handled, outcome, "returned", "error.type", "")
		m.want(t, 1, handled, outcome, "dead-lettered", "error.type", "panic")
		m.want(t, 1, handled, outcome, "dead-lettered", "error.type", "rejected")
		m.want(t, 11, "rabbitdelay.lateness", destination, "orders")
	})
}

func TestMetricsOfAClient(t *testing.T) {
	onSite(t, telemetry.Config{}, func(t *testing.T, s *site) {
		registered, err := s.telemetry.ObserveClient(s.Client)
		check(t, err)
		const state = "rabbitdelay.connection.state"
		m := s.metrics()
		m.want(t, 1, state, "rabbitdelay.connection", "publish", "rabbitdelay.state", "connected")
		if _, n := m.get(state, "rabbitdelay.connection", "consume"); n != 0 {
			t.Errorf("the gauge has %d points for the unused consume connection, want 0", n)
		}
		hold := make(chan struct{})
		stop := s.consume("orders", func(context.Context, *amqpx.Delivery) error { <-hold; return nil }, amqpx.WithConcurrency(1))
		for range 3 {
			check(t, s.Send(t.Context(), amqpx.Message{Queue: "orders"}))
		}
		after(time.Second)
		m = s.metrics()
		m.want(t, 1, "rabbitdelay.consumer.consuming", destination, "orders")
		m.want(t, 1, "rabbitdelay.consumer.running", destination, "orders")
		m.want(t, 0, "rabbitdelay.consumer.blocked", destination, "orders")
		m.want(t, 2, "rabbitdelay.consumer.waiting", destination, "orders")
		m.want(t, 0, "rabbitdelay.consumer.held", destination, "orders")
		m.want(t, 0, "rabbitdelay.consumer.returned", destination, "orders")
		m.want(t, 0, "rabbitdelay.client.clock_behind")
		m.want(t, 1, state, "rabbitdelay.connection", "consume", "rabbitdelay.state", "connected")
		close(hold)
		s.srv.Block("low on memory")
		after(time.Second)
		s.metrics().want(t, 1, state, "rabbitdelay.connection", "publish", "rabbitdelay.state", "blocked")
		s.srv.Unblock()
		accept := s.srv.RefuseConnections()
		s.srv.CutConnections()
		after(time.Minute)
		m = s.metrics()
		m.want(t, 1, state, "rabbitdelay.connection", "publish", "rabbitdelay.state", "disconnected")
		m.want(t, 0, state, "rabbitdelay.connection", "publish", "rabbitdelay.state", "connected")
		m.want(t, 0, "rabbitdelay.consumer.consuming", destination, "orders")
		accept()
		after(time.Minute)
		s.metrics().want(t, 2, "rabbitdelay.connection.sessions", "rabbitdelay.connection", "publish")
		stop()
		check(t, registered.Unregister())
		if _, n := s.metrics().get(state); n != 0 {
			t.Errorf("the gauge has %d points after Unregister, want 0", n)
		}
	})
}

func TestMetricsOfAStore(t *testing.T) {
	onSite(t, telemetry.Config{Interval: time.Minute}, func(t *testing.T, s *site) {
		_, err := s.telemetry.ObserveStore(s.store)
		check(t, err)
		_, err = s.telemetry.ObserveQueues(s.Client, []topology.Destination{{Queue: "tasks"}, {Queue: "absent"}})
		check(t, err)
		now := time.Now()
		for id, in := range map[string]time.Duration{"a": -time.Minute, "b": time.Second, "c": time.Hour / 2, "d": 30 * 24 * time.Hour} {
			check(t, s.store.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: id, Queue: "tasks", DeliverAt: now.Add(in)}))
		}
		const pending, horizon = "rabbitdelay.tasks.pending", "rabbitdelay.horizon"
		m := s.metrics()
		for name, want := range map[string]float64{"overdue": 1, "1m": 1, "1h": 1, "1d": 0, "7d": 0, "later": 1} {
			m.want(t, want, pending, horizon, name)
		}
		m.want(t, 2, "rabbitdelay.relay.backlog")
		m.want(t, 60, "rabbitdelay.tasks.oldest_overdue")
		m.want(t, 0, "rabbitdelay.relay.running")
		m.want(t, 0, "rabbitdelay.relay.sent", "rabbitdelay.resent", "true")
		m.want(t, 0, "rabbitdelay.relay.send_failures", "rabbitdelay.final", "true")
		m.want(t, 0, "rabbitdelay.relay.send_failures", "rabbitdelay.final", "false")
		m.want(t, 0, "rabbitdelay.parked")
		stop := s.run(s.store.Run)
		after(10 * time.Second)
		s.metrics().want(t, 2, "rabbitdelay.relay.backlog") // the values from the last read are still reported
		after(2 * time.Minute)
		m = s.metrics()
		m.want(t, 0, "rabbitdelay.relay.backlog")
		m.want(t, 2, pending, horizon, "overdue")
		m.want(t, 1, "rabbitdelay.relay.running")
		m.want(t, 3, "rabbitdelay.relay.sent", "rabbitdelay.resent", "false")
		m.want(t, 2, "rabbitdelay.queue.ready", destination, "tasks")
		m.want(t, 0, "rabbitdelay.queue.consumers", destination, "tasks")
		m.want(t, 0, "rabbitdelay.dead_letters", destination, "tasks")
		if _, n := m.get("rabbitdelay.queue.ready", destination, "absent"); n != 0 {
			t.Errorf("the gauge has %d points for a queue that does not exist, want 0", n)
		}
		stop()
	})
}

// A queue that does not answer has no metrics. Other queues have theirs.
func TestQueueThatDoesNotAnswer(t *testing.T) {
	onSite(t, telemetry.Config{Interval: time.Minute}, func(t *testing.T, s *site) {
		conn, err := s.srv.Connect()
		check(t, err)
		defer conn.Close()
		ch, err := conn.Channel()
		check(t, err)
		for _, queue := range []string{"gone", "fine"} {
			_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
			check(t, err)
		}
		s.srv.RefuseMethod("basic.get", "gone", 541, "Cannot get a message from queue 'queue 'gone' in vhost '/'': noproc")
		_, err = s.telemetry.ObserveQueues(s.Client, []topology.Destination{{Queue: "gone"}, {Queue: "fine"}})
		check(t, err)
		m := s.metrics()
		if _, n := m.get("rabbitdelay.queue.ready", destination, "gone"); n != 0 {
			t.Errorf("the gauge has %d points for a queue that does not answer, want 0", n)
		}
		m.want(t, 0, "rabbitdelay.queue.ready", destination, "fine")
	})
}

// If the database does not answer, a collection is delayed only briefly, and values from the database are dropped when
// they are too old.
func TestSlowDatabase(t *testing.T) {
	onSite(t, telemetry.Config{Interval: time.Second}, func(t *testing.T, s *site) {
		_, err := s.telemetry.ObserveStore(s.store)
		check(t, err)
		s.metrics().want(t, 0, "rabbitdelay.relay.backlog")
		conn, err := s.db.Conn(t.Context()) // the pool has only one connection
		check(t, err)
		defer conn.Close()
		gone := false
		for began := time.Now(); time.Since(began) < 10*time.Minute; <-time.After(10 * time.Second) {
			at := time.Now()
			m := s.metrics()
			if took := time.Since(at); took > time.Second {
				t.Fatalf("a collection took %v, want at most 1s", took)
			}
			m.want(t, 0, "rabbitdelay.relay.running")
			_, n := m.get("rabbitdelay.relay.backlog")
			gone = n == 0
		}
		if !gone {
			t.Error("rabbitdelay.relay.backlog still has a value from ten minutes ago, want none")
		}
		check(t, conn.Close())
		after(5 * time.Minute)
		s.metrics()
		after(time.Second)
		s.metrics().want(t, 0, "rabbitdelay.relay.backlog")
	})
}

// The number of queue names in metrics and span names is limited.
func TestManyDestinations(t *testing.T) {
	onSite(t, telemetry.Config{MaxDestinations: 3}, func(t *testing.T, s *site) {
		const queues, each = 10_000, 10
		hook := s.telemetry.Hook()
		var all sync.WaitGroup
		for g := range each {
			all.Go(func() {
				for i := range queues {
					name := fmt.Sprintf("user.%d", g*queues+i)
					ctx := hook.SendStart(t.Context(), amqpx.Message{Queue: name}, amqp.Table{})
					hook.SendEnd(ctx, amqpx.SendEnd{Destination: topology.Destination{Queue: name}})
				}
			})
		}
		all.Wait()
		m := s.metrics()
		if sum, n := m.get("messaging.client.operation.duration"); sum != each*queues || n != 4 {
			t.Errorf("messaging.client.operation.duration: got %v sends in %d series, want %d in 4", sum, n, each*queues)
		}
		m.want(t, each*queues-3, "messaging.client.operation.duration", destination, "_OTHER")
		names := map[string]bool{}
		for _, span := range s.spans.Ended() {
			names[span.Name()] = true
		}
		if len(names) != 4 || !names["send"] {
			t.Errorf(`ended spans: got %d names, want 4, and "send" among them`, len(names))
		}
	})
}

func TestConfig(t *testing.T) {
	for name, cfg := range map[string]telemetry.Config{
		"MaxDestinations: -1": {MaxDestinations: -1}, "MaxDestinations: 10001": {MaxDestinations: 10_001},
		"Interval: 1ms": {Interval: time.Millisecond}, "Interval: 2h0m0s": {Interval: 2 * time.Hour},
	} {
		if _, err := telemetry.New(cfg); !errors.Is(err, telemetry.ErrConfig) {
			t.Errorf("New with %s: got %v, want ErrConfig", name, err)
		}
	}
}

// Hooks also calls the caller's hooks.
func TestHooksOfTheCaller(t *testing.T) {
	tel, err := telemetry.New(telemetry.Config{})
	check(t, err)
	called := 0
	h := tel.Hooks(schedule.Hooks{
		BeforeSchedule: func(context.Context, *schedule.Task) { called++ },
		Relayed:        func(int, bool) { called++ },
		SendFailed:     func(schedule.TaskRow, error, bool) { called++ },
		ClockSkew:      func(time.Duration, time.Duration) { called++ },
		Purged:         func(int64) { called++ },
		Error:          func(string, error) { called++ },
	})
	h.BeforeSchedule(t.Context(), &schedule.Task{})
	h.Relayed(1, true)
	h.SendFailed(schedule.TaskRow{Task: schedule.Task{Queue: "q"}}, errAgain, true)
	h.ClockSkew(0, 0)
	h.Purged(1)
	h.Error("relay", errAgain)
	if called != 6 {
		t.Errorf("%d of the caller's hooks were called, want 6", called)
	}
}
