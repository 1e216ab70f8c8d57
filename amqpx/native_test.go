package amqpx_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// delaysNatively configures a broker whose quorum queues can delay messages until a given time.
var delaysNatively = amqptest.Options{Version: "4.4.0"}

// maxHold is how long a consumer may hold a received message.
const maxHold = 20 * time.Millisecond

func newNative(t testing.TB) *dlx.Native {
	t.Helper()
	s, err := dlx.NewNative(dlx.NativeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// held counts the delayed messages in the holding queues.
func (m *memory) held() (n int) {
	m.Helper()
	for _, q := range m.Queues() {
		if strings.HasPrefix(q, "delay.native.") {
			n += m.State(q).Delayed
		}
	}
	return n
}

// tidy fails the test if a canary, whose messages test the broker, has left a message or a queue behind.
func (m *memory) tidy() {
	m.Helper()
	after(time.Hour)
	m.Holds("delay.parked", 0, 0)
	before := m.Queues()
	after(time.Minute) // a client may have been testing the broker with canaries just now
	for _, q := range m.Queues() {
		if strings.HasPrefix(q, "delay.canary") && slices.Contains(before, q) {
			m.Errorf("the canary queue %s has existed for more than a minute, want it deleted", q)
		}
	}
}

// Delays have millisecond precision. Neither a retry nor a dead letter keeps the delivery time of the previous attempt.
func TestNative(t *testing.T) {
	inMemoryOf(t, delaysNatively, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Strategy: newNative(t)})
		began := time.Now()
		c.mustSend(
			amqpx.Message{ID: "now", Queue: "q"},
			amqpx.Message{ID: "short", Queue: "q", Delay: 1500*time.Microsecond + 1},
			amqpx.Message{ID: "long", Queue: "q", Delay: 384 * 24 * time.Hour},
			amqpx.Message{ID: "at", Queue: "q", DeliverAt: began.Add(1234567 * time.Microsecond)},
			amqpx.Message{ID: "by another clock", Queue: "q", DeliverAt: began.Add(time.Hour + 2*time.Second), ClockOffset: time.Hour},
		)
		if n := m.held(); n != 4 {
			t.Errorf("%d messages are in the holding queues, want 4", n)
		}
		got := &collector{answer: func(d *amqpx.Delivery) error {
			if d.ID == "now" && d.Attempt == 1 {
				return amqpx.RetryIn(90*time.Second+7*time.Millisecond, errors.New("again"))
			}
			if d.ID == "long" {
				return amqpx.Reject(errors.New("no"))
			}
			return nil
		}}
		c.consume("q", got.handle)
		after(385 * 24 * time.Hour)
		times := got.since(began)
		for id, want := range map[string][]time.Duration{
			"now": {0, 90*time.Second + 7*time.Millisecond}, "short": {2 * time.Millisecond}, "long": {384 * 24 * time.Hour},
			"at": {1235 * time.Millisecond}, "by another clock": {2 * time.Second},
		} {
			if !slices.EqualFunc(times[id], want, func(got, want time.Duration) bool { return got >= want && got <= want+maxHold }) {
				t.Errorf("message %s arrived after %v, want %v, each with up to %v more", id, times[id], want, maxHold)
			}
		}
		dead := m.State("q.dead").Messages
		if len(dead) != 1 || dead[0].Headers[topology.HeaderInstant] != nil {
			t.Errorf("dead letters: got %+v, want one, without a delivery time in its headers", dead)
		}
		m.tidy()
	})
}

// The delivery time does not depend on how long a message waits to be written.
func TestNativeInABatchAndThroughAnOutage(t *testing.T) {
	inMemoryOf(t, delaysNatively, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Strategy: newNative(t), SendTimeout: time.Minute, ReconnectMax: time.Second})
		c.mustSend(amqpx.Message{Queue: "q"})
		began := time.Now()
		restore := m.RefuseConnections()
		m.CutConnections()
		one := c.sending(amqpx.Message{ID: "one", Queue: "q", Delay: 20*time.Second + 3*time.Millisecond})
		after(10 * time.Second)
		restore()
		if err := <-one; err != nil {
			t.Fatal(err)
		}
		var batch []amqpx.Message
		var ids []string
		for i := range 50 {
			id := fmt.Sprint(i)
			batch = append(batch, amqpx.Message{ID: id, Queue: "q", Delay: time.Minute})
			ids = append(ids, id)
		}
		if err := c.SendBatch(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		after(time.Until(began.Add(20*time.Second + 2*time.Millisecond)))
		m.Holds("q", 1, 0)
		after(time.Millisecond)
		m.Holds("q", 2, 0)
		after(time.Minute)
		if got := m.IDs("q"); !slices.Equal(got[2:], ids) {
			t.Errorf("messages arrived in the order %v, want %v from the third on", got, ids)
		}
	})
}

// On a broker that ignores delivery times and would deliver immediately, Open fails and says what to do.
func TestNativeWhereInstantsAreIgnored(t *testing.T) {
	inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
		began := time.Now()
		_, err := m.tryOpen(t.Context(), amqpx.Config{Strategy: newNative(t)})
		if !errors.Is(err, live.ErrInstantsIgnored) || !strings.Contains(err.Error(), "bucket") || time.Since(began) > 5*time.Second {
			t.Errorf(`Open returned %v after %v, want live.ErrInstantsIgnored with "bucket" within 5s`, err, time.Since(began))
		}
		m.tidy()
	})
}

// If a client reconnects to a broker that ignores delivery times, it sends nothing there, and Health reports the
// problem. It recovers when it reconnects to a broker that supports them.
func TestNativeReconnectsToABrokerThatIgnoresInstants(t *testing.T) {
	inMemoryOf(t, delaysNatively, func(t *testing.T, m *memory) {
		old := newMemory(t, amqptest.Options{Version: "4.3.6"})
		var at atomic.Pointer[memory]
		at.Store(m)
		cfg := amqpx.Config{
			URL: m.URL(), Strategy: newNative(t), SendTimeout: 10 * time.Second,
			Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
				return at.Load().Dial(ctx, network, addr)
			},
		}
		c, err := amqpx.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		at.Store(old)
		m.CutConnections()
		err = c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: time.Minute})
		if !errors.Is(err, amqpx.ErrNotSent) || !errors.Is(err, live.ErrInstantsIgnored) {
			t.Errorf("Send after reconnecting to an older broker: got %v, want amqpx.ErrNotSent and live.ErrInstantsIgnored", err)
		}
		if h, ok := errors.AsType[*amqpx.HealthError](c.Health()); !ok || !h.Problems[0].Final || !errors.Is(h, live.ErrInstantsIgnored) {
			t.Errorf("Health returned %v, want a final problem with ErrInstantsIgnored", c.Health())
		}
		old.tidy()
		at.Store(m)
		old.CutConnections()
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: time.Minute}); err != nil || m.held() != 1 {
			t.Errorf("Send to a broker that supports delivery times again: got %v and %d held messages, want no error and 1", err, m.held())
		}
	})
}

// Sends wait until a canary, a test message, has shown that the broker supports delivery times. This applies to a new
// connection, and after the holding queues have been created again.
func TestNativeWaitsForItsProof(t *testing.T) {
	inMemoryOf(t, delaysNatively, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Strategy: newNative(t)})
		c.mustSend(amqpx.Message{Queue: "q"})
		canaries := func() (n int) {
			for i := range dlx.DefaultNativeQueues {
				n += m.Publishes(fmt.Sprintf("delay.native.%d", i+1))
			}
			return n
		}
		before := canaries()
		m.CutConnections()
		sent := c.sending(amqpx.Message{ID: "reconnected", Queue: "q", Delay: time.Minute})
		for len(m.connections("publish")) == 0 {
			after(10 * time.Millisecond)
		}
		after(150 * time.Millisecond) // the canary takes about 250 ms
		select {
		case err := <-sent:
			t.Fatalf("Send returned %v before the canary was finished, want it to wait", err)
		default:
		}
		if err := <-sent; err != nil || canaries()-before < 4*dlx.DefaultNativeQueues {
			t.Errorf("Send on a new connection: got %v after %d canary messages, want no error after at least %d", err, canaries()-before, 4*dlx.DefaultNativeQueues)
		}
		for i := range dlx.DefaultNativeQueues {
			m.Delete(fmt.Sprintf("delay.native.%d", i+1))
		}
		before = canaries()
		began := time.Now()
		c.mustSend(amqpx.Message{ID: "again", Queue: "q", Delay: time.Minute})
		if time.Since(began) < 200*time.Millisecond || canaries()-before < 4*dlx.DefaultNativeQueues || m.held() != 1 {
			t.Errorf("Send after the queues were deleted: got %v, %d canary messages and %d held messages, want at least 200ms, at least %d, and 1",
				time.Since(began), canaries()-before, m.held(), 4*dlx.DefaultNativeQueues)
		}
		m.tidy()
	})
}

// Messages with a delay or an absolute time arrive in time even if the broker's clock differs from the client's. If the
// difference is too large, Open refuses it.
func TestNativeWithOtherClocks(t *testing.T) {
	for _, ahead := range []time.Duration{0, 5 * time.Millisecond, 500 * time.Millisecond, 3 * time.Second, -500 * time.Millisecond, -3 * time.Second} {
		inMemoryOf(t, amqptest.Options{Version: "4.4.0", ClockAhead: ahead, Latency: time.Millisecond}, func(t *testing.T, m *memory) {
			c := m.open(amqpx.Config{Strategy: newNative(t)})
			got := &collector{}
			c.consume("q", got.handle)
			c.mustSend(amqpx.Message{ID: "first", Queue: "q"})
			began := time.Now()
			c.mustSend(amqpx.Message{ID: "delay", Queue: "q", Delay: 30 * time.Second}, amqpx.Message{ID: "at", Queue: "q", DeliverAt: began.Add(40 * time.Second)})
			after(time.Minute)
			const exact = 50 * time.Millisecond
			for id, want := range map[string]time.Duration{"delay": 30 * time.Second, "at": 40 * time.Second} {
				// If the publisher's clock is behind the broker's by less than a canary can detect, a delay may be
				// shorter by that difference. If the publisher's clock is ahead, the message may be late by the
				// difference.
				early := min(ahead, 20*time.Millisecond)
				took := got.since(began)[id]
				if len(took) != 1 || took[0] < want-max(early, 0) || took[0] > want+max(-ahead, 0)+exact {
					t.Errorf("with the broker's clock ahead by %v, %s arrived after %v, want once, after %v to %v",
						ahead, id, took, want-max(early, 0), want+max(-ahead, 0)+exact)
				}
			}
		})
	}
	for _, ahead := range []time.Duration{time.Minute, -time.Minute} {
		inMemoryOf(t, amqptest.Options{Version: "4.4.0", ClockAhead: ahead}, func(t *testing.T, m *memory) {
			_, err := m.tryOpen(t.Context(), amqpx.Config{Strategy: newNative(t)})
			if _, ok := errors.AsType[*live.ClockError](err); !ok {
				t.Errorf("Open with the broker's clock ahead by %v: got %v, want a *live.ClockError", ahead, err)
			}
		})
	}
}

// In a bucket queue, RabbitMQ 4.4 would delay a message until the later of its TTL and its delivery time. A message
// that was sent with the native strategy is therefore retried through the buckets without its delivery time.
func TestNativeAndBucketsPassMessagesOn(t *testing.T) {
	inMemoryOf(t, delaysNatively, func(t *testing.T, m *memory) {
		natively, buckets := m.open(amqpx.Config{Strategy: newNative(t)}), m.open(amqpx.Config{})
		began := time.Now()
		ahead := amqp.Table{topology.HeaderInstant: began.Add(time.Hour).UnixMilli()}
		natively.mustSend(amqpx.Message{ID: "native", Queue: "q", Delay: time.Second, Headers: ahead})
		buckets.mustSend(amqpx.Message{ID: "bucket", Queue: "q", Delay: time.Second, Headers: ahead})
		got := &collector{answer: func(d *amqpx.Delivery) error {
			switch d.Attempt {
			case 1:
				return amqpx.RetryIn(5*time.Second, errors.New("again"))
			case 2:
				return amqpx.Reject(errors.New("no"))
			}
			return nil
		}}
		k := buckets.consume("q", got.handle)
		after(3 * time.Second)
		held := m.State("delay.bucket.5s").Messages
		for _, msg := range held {
			if at := msg.Headers[topology.HeaderInstant]; at != nil {
				t.Errorf("message %s in a bucket has the delivery time %v, want none", msg.MessageId, at)
			}
		}
		if len(held) != 2 {
			t.Errorf("%d messages are in the bucket for 5s, want 2", len(held))
		}
		after(10 * time.Second)
		k.stop()
		m.Holds("q.dead", 2, 0)
		for _, msg := range m.State("q.dead").Messages {
			if at := msg.Headers[topology.HeaderInstant]; at != nil {
				t.Errorf("dead letter %s has the delivery time %v, want none", msg.MessageId, at)
			}
		}
		for id, times := range got.since(began) {
			if len(times) != 2 || times[0] > time.Second+maxHold || times[1] > 6*time.Second+2*maxHold {
				t.Errorf("message %s was handled after %v, want twice, after at most %v and %v", id, times, time.Second+maxHold, 6*time.Second+2*maxHold)
			}
		}
	})
}

// A delivery time more than 292 years ahead makes a broker's queue fail permanently. Whatever delivery time and clock
// offset are requested, no message waits for longer than ten years.
func TestNativeInstantsAreBounded(t *testing.T) {
	inMemoryOf(t, amqptest.Options{Version: "4.4.0", ClockAhead: live.MaxClockDifference - time.Second}, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Strategy: newNative(t)})
		now := time.Now()
		waits := 0
		for _, at := range []time.Time{
			now.Add(topology.MaxTTL), now.Add(topology.MaxTTL + time.Millisecond), now.AddDate(250, 0, 0), now.AddDate(300, 0, 0),
			time.Unix(now.UnixMilli(), 0), time.Unix(now.UnixMicro(), 0), time.UnixMilli(math.MaxInt64), time.Unix(1<<62, 0), time.Unix(math.MinInt64, 0),
		} {
			for _, offset := range []time.Duration{0, time.Hour, -time.Hour, math.MaxInt64, math.MinInt64} {
				err := c.Send(t.Context(), amqpx.Message{Queue: "q", DeliverAt: at, ClockOffset: offset})
				if _, far := errors.AsType[*topology.DelayError](err); err != nil && !far && !errors.Is(err, amqpx.ErrMessage) {
					t.Errorf("DeliverAt %v by a clock %v ahead: got %v, want a *topology.DelayError, ErrMessage or no error", at, offset, err)
				}
				if n := m.held(); n > waits {
					waits = n
					t.Logf("DeliverAt %v by a clock %v ahead: the message is held", at, offset)
				}
			}
		}
		if waits == 0 {
			t.Error("0 messages are held, want at least 1")
		}
		after(topology.MaxTTL - time.Minute)
		if n := m.held(); n == 0 {
			t.Error("0 messages are held for almost ten years, want at least 1")
		}
		after(2 * time.Minute)
		if n := m.held(); n > 0 {
			t.Errorf("%d messages are held for longer than ten years, want 0", n)
		}
	})
}

// While an alarm blocks publishers, a client that connects returns an error with the alarm as the reason, whether its
// own timeout or the canary's expires first. When the alarm is cleared, the client connects.
func TestNativeConnectsInAnAlarm(t *testing.T) {
	inMemoryOf(t, delaysNatively, func(t *testing.T, m *memory) {
		const reason = "low on memory"
		told := func(err error) bool {
			return errors.Is(err, amqpx.ErrBlocked) && strings.Contains(err.Error(), reason)
		}
		m.Block(reason)
		for _, patience := range []time.Duration{5 * time.Second, 25 * time.Second} {
			if _, err := m.tryOpen(m.within(patience), amqpx.Config{Strategy: newNative(t)}); !told(err) {
				t.Errorf("Open during an alarm, with a timeout of %v: got %v, want ErrBlocked with the reason", patience, err)
			}
		}
		time.AfterFunc(15*time.Second, m.Unblock)
		c, o := m.watched(amqpx.Config{Strategy: newNative(t)})
		c.mustSend(amqpx.Message{Queue: "q", Delay: time.Minute})

		m.CutConnections()
		m.Block(reason)
		for _, patience := range []time.Duration{5 * time.Second, 25 * time.Second} {
			if err := c.Send(m.within(patience), amqpx.Message{Queue: "q", Delay: time.Minute}); !told(err) || !errors.Is(err, amqpx.ErrNotSent) {
				t.Errorf("Send after a reconnection during an alarm, with a timeout of %v: got %v, want ErrBlocked and ErrNotSent", patience, err)
			}
		}
		if h, ok := errors.AsType[*amqpx.HealthError](c.Health()); !ok || !told(h) || h.Problems[0].Final {
			t.Errorf("Health returned %v, want a problem about the alarm that is not final", c.Health())
		}
		m.Unblock()
		c.mustSend(amqpx.Message{Queue: "q", Delay: time.Minute})
		if err := c.Health(); err != nil || m.held() != 2 {
			t.Errorf("after the alarm: got the health %v and %d held messages, want no error and 2", err, m.held())
		}
		if states := o.saw().states; slices.Contains(states, "publish blocked") {
			t.Errorf(`the hook got the events %q, want no "publish blocked", because the connection was not ready when the alarm started`, states)
		}
		m.tidy()
	})
}

// unproven hides the canary of a strategy.
type unproven struct{ amqpx.Strategy }

// With a strategy that uses delivery times but has no canary, nothing is sent.
func TestInstantsWithoutACanary(t *testing.T) {
	inMemoryOf(t, delaysNatively, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Strategy: unproven{newNative(t)}, SendTimeout: time.Second})
		err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: time.Minute})
		if !errors.Is(err, amqpx.ErrNotSent) || m.held() > 0 {
			t.Errorf("Send without a canary: got %v and %d held messages, want amqpx.ErrNotSent and 0", err, m.held())
		}
	})
}

// The auto strategy uses native for delays that are not declared, and Open tests whether the broker supports it.
func TestAutoUsesNative(t *testing.T) {
	bucket, err := dlx.NewBucket(dlx.BucketConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ttl, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := amqpx.NewAuto(amqpx.AutoConfig{Bucket: bucket, TTL: ttl, Native: newNative(t)})
	if err != nil {
		t.Fatal(err)
	}
	for delay, want := range map[time.Duration]string{time.Minute: "ttl", time.Minute + 1: "native", 9 * 365 * 24 * time.Hour: "native"} {
		r, err := a.Route(topology.Destination{Queue: "q"}, delay, 0)
		if err != nil || !strings.HasPrefix(r.Queue, "delay."+want+".") {
			t.Errorf("delay %v: got the queue %q and the error %v, want a queue of %s and no error", delay, r.Queue, err, want)
		}
	}
	inMemoryOf(t, delaysNatively, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{Strategy: a})
		c.mustSend(amqpx.Message{Queue: "q", Delay: time.Hour}, amqpx.Message{Queue: "q", Delay: time.Minute})
		if m.held() != 1 {
			t.Errorf("%d messages are in the holding queues, want 1", m.held())
		}
		after(time.Hour)
		m.Holds("q", 2, 0)
	})
	inMemory(t, func(t *testing.T, m *memory) {
		if _, err := m.tryOpen(t.Context(), amqpx.Config{Strategy: a}); !errors.Is(err, live.ErrInstantsIgnored) {
			t.Errorf("Open on a broker without native delays: got %v, want live.ErrInstantsIgnored", err)
		}
	})
}
