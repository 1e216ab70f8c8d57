package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/header"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// A message with a lead is held by its consumer, and handled when it is due.
func TestLead(t *testing.T) {
	inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
		bucket, err := dlx.NewBucket(dlx.BucketConfig{Resolution: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		lead := 2 * time.Second
		c := m.open(amqpx.Config{Strategy: bucket, Lead: 400 * time.Millisecond, Destinations: []topology.Destination{
			{Queue: "far", Lead: &lead}, {Queue: "none", Lead: new(time.Duration)},
			{Exchange: "amq.fanout", RoutingKey: "led", Lead: &lead},
		}})
		var got collector
		for _, q := range []string{"q", "far", "none"} {
			c.consume(q, got.handle, amqpx.WithConcurrency(1))
		}
		if err := m.Channel().QueueBind("q", "", "amq.fanout", false, nil); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		want := map[string]time.Duration{}
		for _, delay := range []time.Duration{
			time.Millisecond, 123 * time.Millisecond, 400 * time.Millisecond, 1234 * time.Millisecond,
			time.Hour + 7*time.Millisecond,
		} {
			for _, queue := range []string{"q", "far", "none"} {
				msg := amqpx.Message{ID: fmt.Sprint(queue, delay), Queue: queue, Delay: delay}
				c.mustSend(msg)
				want[msg.ID] = delay
				msg.ID, msg.Delay, msg.DeliverAt = msg.ID+" at", 0, began.Add(delay)
				if err := c.SendBatch(t.Context(), []amqpx.Message{msg}); err != nil {
					t.Fatalf("SendBatch to queue %s: got %v, want no error", queue, err)
				}
				want[msg.ID] = delay
			}
		}
		c.mustSend(amqpx.Message{ID: "fan", Exchange: "amq.fanout", RoutingKey: "led", Delay: 3210 * time.Millisecond},
			amqpx.Message{ID: "fan, no lead", Exchange: "amq.fanout", RoutingKey: "other", Delay: 3210 * time.Millisecond})
		want["fan"], want["fan, no lead"] = 3210*time.Millisecond, 3300*time.Millisecond
		after(2 * time.Hour)
		came := got.since(began)
		for id, delay := range want {
			if strings.HasPrefix(id, "none") {
				delay = (delay + 99*time.Millisecond).Truncate(100 * time.Millisecond)
			}
			if at := came[id]; len(at) != 1 || at[0] != delay {
				t.Errorf("message %s was handled after %v, want %v", id, at, delay)
			}
		}
	})
}

// A message whose delay is not longer than its lead still passes through a delay queue, where it gets the broker's
// timestamp. The exceptions are the plugin, which adds no timestamp, and the shortest delays, whose messages would be
// late.
func TestLeadOfShortDelays(t *testing.T) {
	const lead = 10 * time.Second
	for name, c := range map[string]struct {
		opts     amqptest.Options
		strategy func() (amqpx.Strategy, error)
		shortest time.Duration // the shortest delay for which there is a delay queue; 0 if there is none
	}{
		"bucket": {amqptest.Options{}, func() (amqpx.Strategy, error) { return dlx.NewBucket(dlx.BucketConfig{}) }, 10 * time.Millisecond},
		"binary": {amqptest.Options{}, func() (amqpx.Strategy, error) { return dlx.NewBucket(dlx.BucketConfig{Layout: dlx.LayoutBinary}) }, time.Second},
		"native": {delaysNatively, func() (amqpx.Strategy, error) { return dlx.NewNative(dlx.NativeConfig{}) }, time.Millisecond},
		"plugin": {amqptest.Options{Plugin: true}, func() (amqpx.Strategy, error) { return plugin.New(plugin.Config{}) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inMemoryOf(t, c.opts, func(t *testing.T, m *memory) {
				s, err := c.strategy()
				if err != nil {
					t.Fatal(err)
				}
				client := m.open(amqpx.Config{Strategy: s, Lead: lead})
				var got collector
				client.consume("q", got.handle)
				client.mustSend(amqpx.Message{ID: "first", Queue: "q"})
				for _, delay := range []time.Duration{max(time.Millisecond, 2*c.shortest-time.Millisecond), max(3*time.Millisecond, 2*c.shortest), 5 * time.Second, lead} {
					began, id := time.Now(), delay.String()
					client.mustSend(amqpx.Message{ID: id, Queue: "q", Delay: delay})
					after(time.Minute)
					if at := got.since(began)[id]; len(at) != 1 || at[0] != delay {
						t.Errorf("a message with a delay of %v arrived after %v, want once and on time", delay, at)
					}
					want := delay
					stamped := c.shortest > 0 && delay >= 2*c.shortest
					if stamped {
						want -= c.shortest
					}
					all := got.all()
					h := all[len(all)-1].Headers
					_, died := h["x-death"]
					if h[header.Lead] != want.Milliseconds() || died != stamped {
						t.Errorf("a delay of %v: got a lead of %v ms and x-death %t, want %v and %t", delay, h[header.Lead], died, want, stamped)
					}
				}
			})
		})
	}
}

// Messages that a consumer holds until they are due occupy none of its concurrent slots, and do not use up the prefetch
// for other messages. The prefetch grows with the number of held messages.
func TestHeldMessagesRaiseThePrefetch(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Lead: time.Minute})
		var got collector
		k := c.consume("q", got.handle, amqpx.WithConcurrency(2), amqpx.WithPrefetch(4))
		began := time.Now()
		var msgs []amqpx.Message
		for i := range 800 {
			msgs = append(msgs, amqpx.Message{ID: fmt.Sprint(i), Queue: "q", Delay: 30*time.Second + time.Duration(i)*time.Millisecond})
		}
		if err := c.SendBatch(t.Context(), msgs); err != nil {
			t.Fatal(err)
		}
		after(10 * time.Second)
		c.mustSend(amqpx.Message{ID: "now", Queue: "q"})
		after(0)
		if s := c.Stats().Consumers[0]; s.Held != 800 || s.Waiting != 0 || s.Prefetch < 800 || s.Prefetch > 2500 || !s.Oldest.IsZero() {
			t.Errorf("with 800 messages held: got %+v, want Held = 800, Waiting = 0, Prefetch >= 800, Prefetch <= 2500 and Oldest zero", s)
		}
		if at := got.since(began)["now"]; len(at) != 1 || at[0] > 11*time.Second {
			t.Errorf("a message without a delay was handled after %v, want once within 11s in spite of the held messages", at)
		}
		after(50 * time.Second)
		for i, msg := range msgs {
			if at := got.since(began)[msg.ID]; len(at) != 1 || at[0] < msg.Delay || at[0] > msg.Delay+10*time.Millisecond {
				t.Fatalf("message %d was handled after %v, want %v", i, at, msg.Delay)
			}
		}
		for range 20 { // a consumer reduces its prefetch only when a message arrives
			after(11 * time.Second)
			c.mustSend(amqpx.Message{Queue: "q"})
		}
		after(0)
		m.hasConsumers("q", 1)
		if s := c.Stats().Consumers[0]; s.Prefetch != 4 {
			t.Errorf("after the held messages were handled: got the prefetch %d, want 4", s.Prefetch)
		}
		k.stop()
	})
}

// A consumer that stops returns its held messages to the queue.
func TestHeldMessagesGoBack(t *testing.T) {
	inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Lead: time.Minute})
		var got collector
		k := c.consume("q", got.handle, amqpx.WithConcurrency(1))
		began := time.Now()
		for i := range 100 {
			c.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: "q", Delay: 30 * time.Second})
		}
		after(time.Second)
		m.Holds("q", 0, 100)
		k.stop()
		m.Holds("q", 100, 0)
		k = c.consume("q", got.handle)
		after(time.Second)
		m.CutConnections()
		after(time.Minute)
		k.stop()
		if n := len(got.all()); n != 100 {
			t.Errorf("%d messages were handled, want 100", n)
		}
		for id, at := range got.since(began) {
			if len(at) != 1 || at[0] < 30*time.Second {
				t.Errorf("message %s was handled after %v, want once, after at least 30s", id, at)
			}
		}
	})
}

// Retries and snoozes are also handled exactly when they are due.
func TestLeadOfRetries(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Lead: 5 * time.Second})
		got := collector{answer: func(d *amqpx.Delivery) error {
			if d.Attempt == 1 {
				return amqpx.RetryIn(1234*time.Millisecond, errors.New("not yet"))
			}
			if d.Snoozes == 0 {
				return amqpx.Snooze(time.Minute + 5*time.Millisecond)
			}
			return nil
		}}
		k := c.consume("q", got.handle)
		began := time.Now()
		c.mustSend(amqpx.Message{ID: "x", Queue: "q", Delay: 7 * time.Second})
		after(time.Hour)
		k.stop()
		at := got.since(began)["x"]
		if fmt.Sprint(at) != "[7s 8.234s 1m8.239s]" {
			t.Errorf("the message was handled after %v, want [7s 8.234s 1m8.239s]", at)
		}
	})
}

// A message that arrives far too early is sent again, unchanged and with its remaining delay.
func TestTooEarly(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		var got collector
		k := c.consume("q", got.handle)
		began := time.Now()
		due := began.Add(time.Hour).Truncate(time.Millisecond)
		m.Publish("", "q", amqp.Publishing{MessageId: "x", Timestamp: began, Body: []byte("body"), Type: "order", Headers: amqp.Table{
			amqpx.HeaderDue: due.UnixMilli(), amqpx.HeaderAttempt: int64(3), amqpx.HeaderVersion: int64(7), "mine": "kept",
			"x-death": []any{amqp.Table{"queue": "delay.bucket", "reason": "expired", "time": began, "count": int64(1)}},
		}})
		after(time.Minute)
		if s := c.Stats().Consumers[0]; s.Returned != 1 || s.Handled != 0 {
			t.Errorf("after a message that arrived too early: got %+v, want Returned = 1 and Handled = 0", s)
		}
		after(2 * time.Hour)
		k.stop()
		all := got.all()
		if len(all) != 1 {
			t.Fatalf("the message was handled %d times, want 1", len(all))
		}
		d := all[0]
		if d.at.Before(due) || d.at.Sub(due) > time.Second || !d.DueAt.Equal(due) {
			t.Errorf("the message was handled at %v with the due time %v, want within 1s after %v, the unchanged due time", d.at, d.DueAt, due)
		}
		if d.ID != "x" || d.Attempt != 3 || d.Version != 7 || string(d.Body) != "body" || d.Type != "order" || d.Headers["mine"] != "kept" {
			t.Errorf(`the handled delivery: got %+v, want ID = "x", Attempt = 3, Version = 7, Body = "body", Type = "order" and Headers["mine"] = "kept"`, d.Delivery)
		}
	})
}

// With the ttl strategy, a message that arrives too early is sent again with the next longer declared delay.
func TestTooEarlyForTTL(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		strategy, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{time.Minute, 30 * time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		c := m.open(amqpx.Config{Strategy: strategy})
		var got collector
		k := c.consume("q", got.handle)
		began := time.Now()
		due := began.Add(20 * time.Minute)
		m.Publish("", "q", amqp.Publishing{MessageId: "x", Timestamp: began, Headers: amqp.Table{amqpx.HeaderDue: due.UnixMilli(), header.Absolute: true}})
		after(2 * time.Hour)
		k.stop()
		all := got.all()
		if len(all) != 1 {
			t.Fatalf("the consumer got the deliveries %v, want one", got.since(began))
		}
		if at := all[0].at.Sub(began); at < 20*time.Minute || at > 31*time.Minute {
			t.Errorf("the message arrived after %v, want 20m to 31m", at)
		}
		if at := all[0].DueAt; at.UnixMilli() != due.UnixMilli() {
			t.Errorf("the message arrived with the due time %v, want %v", at, due)
		}
	})
}

func TestLeadIsChecked(t *testing.T) {
	ttl, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	second := time.Second
	inMemory(t, func(t *testing.T, m *memory) {
		conn, err := m.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		for _, cfg := range []amqpx.Config{
			{Lead: -1}, {Lead: topology.MaxLead + 1}, {Strategy: ttl, Lead: second},
			{Strategy: ttl, Destinations: []topology.Destination{{Queue: "q", Lead: &second}}},
		} {
			if _, err := m.tryOpen(context.Background(), cfg); !errors.Is(err, amqpx.ErrConfig) {
				t.Errorf("Open with %+v: got %v, want amqpx.ErrConfig", cfg, err)
			}
			cfg.URL = m.URL()
			if _, err := inspect.Rehearse(conn, cfg); !errors.Is(err, amqpx.ErrConfig) {
				t.Errorf("Rehearse with %+v: got %v, want amqpx.ErrConfig", cfg, err)
			}
		}
	})
}

// A constant error in the broker's clock has no effect.
func TestLeadByABrokersWrongClock(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, -5 * time.Second, 5 * time.Second, time.Hour} {
		inMemoryOf(t, amqptest.Options{ClockAhead: ahead}, func(t *testing.T, m *memory) {
			c := m.open(amqpx.Config{Lead: 400 * time.Millisecond})
			var got collector
			k := c.consume("q", got.handle)
			began := time.Now()
			c.mustSend(amqpx.Message{ID: "delay", Queue: "q", Delay: 1234 * time.Millisecond},
				amqpx.Message{ID: "instant", Queue: "q", DeliverAt: began.Add(3 * time.Hour)})
			after(4 * time.Hour)
			k.stop()
			if at := fmt.Sprint(got.since(began)); at != "map[delay:[1.234s] instant:[3h0m0s]]" {
				t.Errorf("with the broker's clock %v ahead, messages were handled after %s, want 1.234s and 3h", ahead, at)
			}
			if s := c.Health(); s != nil {
				t.Errorf("with the broker's clock %v ahead: Health returned %v, want nil", ahead, s)
			}
		})
	}
}

// If the publishers and the broker show that a consumer's clock is behind, the consumer relies on the broker's clock,
// and Health reports the problem.
func TestConsumersClockIsBehind(t *testing.T) {
	inMemoryOf(t, amqptest.Options{ClockAhead: time.Hour}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		var got collector
		k := c.consume("q", got.handle)
		began := time.Now()
		theirs := began.Add(time.Hour)
		headers := amqp.Table{amqpx.HeaderDue: theirs.Add(10 * time.Second).UnixMilli(), header.Lead: int64(400)}
		s := c.Strategy()
		route, err := s.Route(topology.Destination{Queue: "q"}, 9600*time.Millisecond, 0)
		if err != nil {
			t.Fatal(err)
		}
		m.Publish(route.Exchange, route.RoutingKey, amqp.Publishing{MessageId: "x", Timestamp: theirs, DeliveryMode: amqp.Persistent, Headers: headers})
		after(time.Minute)
		if at := fmt.Sprint(got.since(began)); at != "map[x:[10s]]" {
			t.Errorf("the messages were handled after %s, want map[x:[10s]]", at)
		}
		if err := c.Health(); err == nil || !strings.Contains(err.Error(), "clock: behind since") || c.Stats().ClockBehind.IsZero() {
			t.Errorf(`Health returned %v, want an error with "clock: behind since"`, err)
		}
		k.stop()
	})
}

// If the connection is lost while a consumer increases its prefetch, no goroutine leaks.
func TestCutWhilePrefetchGrows(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Lead: time.Minute})
		c.consume("q", nothing, amqpx.WithConcurrency(1), amqpx.WithPrefetch(2))
		for i := range 20 {
			cut := m.CutAt("basic.consume", 2)
			c.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: "q", Delay: 30 * time.Second}, amqpx.Message{Queue: "q", Delay: 30 * time.Second})
			after(time.Second)
			cut()
		}
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		after(time.Minute)
		buf := make([]byte, 1<<20)
		if n := strings.Count(string(buf[:runtime.Stack(buf, true)]), "(*subscription).grow"); n > 0 {
			t.Errorf("%d goroutines that increase the prefetch are left after Close, want 0", n)
		}
	})
}

// A handler never starts before the full delay has passed since the call of Send, whatever fraction of a millisecond
// the time of the call has.
func TestFractionsOfAMillisecond(t *testing.T) {
	for _, lead := range []time.Duration{0, time.Second} {
		inMemory(t, func(t *testing.T, m *memory) {
			c := m.open(amqpx.Config{Lead: lead})
			var got collector
			c.consume("q", got.handle)
			began, want := time.Now(), map[string]time.Duration{}
			for i := range 50 {
				after(777 * time.Microsecond)
				id := fmt.Sprint(i)
				want[id] = time.Since(began) + 1500*time.Millisecond
				c.mustSend(amqpx.Message{ID: id, Queue: "q", Delay: 1500 * time.Millisecond})
			}
			after(time.Minute)
			for id, at := range got.since(began) {
				if at[0] < want[id] {
					t.Fatalf("message %s was handled after %v, want at least %v", id, at, want[id])
				}
			}
		})
	}
}

// A client and a consumer can each limit the bytes that a consumer buffers. All messages are still handled.
func TestPrefetchIsBoundedInBytes(t *testing.T) {
	const kib = 1 << 10
	for name, bound := range map[string]struct {
		all int
		own []amqpx.ConsumeOption
	}{
		"client's limit":   {100 * kib, nil},
		"consumer's limit": {1 << 30, []amqpx.ConsumeOption{amqpx.WithHeldBytes(100 * kib)}},
	} {
		t.Run(name, func(t *testing.T) { roomIsBounded(t, bound.all, bound.own...) })
	}
}

func roomIsBounded(t *testing.T, heldBytes int, opts ...amqpx.ConsumeOption) {
	const kib = 1 << 10
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Lead: 10 * time.Second, HeldBytes: heldBytes})
		var got collector
		c.consume("q", got.handle, append(opts, amqpx.WithConcurrency(1), amqpx.WithPrefetch(4))...)
		for i := range 1000 {
			size := 100
			if i >= 20 { // large messages follow when the prefetch has grown for small ones
				size = 9 * kib
			}
			c.mustSend(amqpx.Message{ID: fmt.Sprint(i), Queue: "q", Delay: 9 * time.Second, Body: make([]byte, size)})
		}
		for range 9 {
			after(time.Second)
			if s := c.Stats().Consumers[0]; s.Held > 100 { // the 20 small messages, and far fewer of the large ones than without a limit in bytes
				t.Fatalf("%d messages are held with a prefetch of %d, want at most 100", s.Held, s.Prefetch)
			}
		}
		after(time.Hour)
		if n := len(got.all()); n != 1000 {
			t.Errorf("%d messages were handled, want 1000", n)
		}
	})
}
