package amqpx_test

import (
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

const roundTrip = 20 * time.Millisecond

// far returns options for a broker with a high latency.
func far(version string) amqptest.Options {
	return amqptest.Options{Version: version, Latency: roundTrip / 2}
}

// roundTrips opens and closes a client, and returns how many round trips it took to open it. The test must run in a
// bubble, where only the network takes time.
func (m *memory) roundTrips(declare amqpx.Declaration) float64 {
	m.Helper()
	began := time.Now()
	c := m.open(amqpx.Config{Declare: declare})
	took := time.Since(began)
	if err := c.Close(m.Context()); err != nil {
		m.Error(err)
	}
	return float64(took) / float64(roundTrip)
}

// If all objects exist, a client is ready after a few round trips, three of which are AMQP's handshake.
func TestReadyAtOnce(t *testing.T) {
	for _, version := range []string{"4.3.0", "4.0.5"} {
		inMemoryOf(t, far(version), func(t *testing.T, m *memory) {
			cold := m.roundTrips(amqpx.DeclareMissing)
			warm := m.roundTrips(amqpx.DeclareMissing)
			nothing := m.roundTrips(amqpx.DeclareNothing)
			t.Logf("%s: %v round trips on a cold broker, %v on a warm one, %v with DeclareNothing", version, cold, warm, nothing)
			if warm > 6 || nothing > 6 || cold > 25 {
				t.Errorf("RabbitMQ %s: got %v, %v and %v round trips for a cold start, a warm start and no declarations, want at most 25, 6 and 6", version, cold, warm, nothing)
			}
		})
	}
}

// When a client starts, it detects deleted objects of its layout, and declares them again.
func TestReadyDetectsDeletedObjects(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		m.roundTrips(amqpx.DeclareMissing)
		m.Delete("delay.bucket.30m")
		m.roundTrips(amqpx.DeclareMissing)
		m.Holds("delay.bucket.30m", 0, 0)
	})
}

// A deleted binding between delay queues is not detected when a client starts. Messages that need the binding are
// parked until Apply declares it again.
func TestDeletedBindingOfALayout(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		m.roundTrips(amqpx.DeclareMissing)
		for _, e := range m.Exchanges() {
			for _, b := range m.Bindings(e.Name) {
				if e.Type == "topic" && b.Queue == "delay.bucket.30s" {
					if err := m.Channel().QueueUnbind(b.Queue, b.RoutingKey, e.Name, nil); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		c := m.open(amqpx.Config{})
		send := func() {
			c.mustSend(amqpx.Message{Queue: "q", Delay: 90 * time.Second})
			after(2 * time.Minute)
		}
		send()
		m.Holds("delay.parked", 1, 0)
		if err := c.Apply(t.Context(), c.Strategy().Topology()); err != nil {
			t.Fatal(err)
		}
		send()
		m.Holds("q", 1, 0)
	})
}

// A layout that was, for example, imported with RabbitMQ's definitions instead of declared by rabbitdelay has no marker
// exchange. A client that declares nothing can still use it.
func TestDeclareNothingOnALayoutWithoutAFingerprint(t *testing.T) {
	inMemoryOf(t, far("4.3.0"), func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		name := live.DeclaredExchange(topology.DefaultPrefix, c.Strategy().Topology())
		if err := m.Channel().ExchangeDelete(name, false, false); err != nil {
			t.Fatal(err)
		}
		if n := m.roundTrips(amqpx.DeclareNothing); n > 60 {
			t.Errorf("Open took %v round trips, want at most 60", n)
		}
	})
}

// A hundred clients can start together on an empty broker.
func TestManyClientsOnAColdBroker(t *testing.T) {
	for _, version := range []string{"4.3.0", "4.0.5"} {
		inMemoryOf(t, far(version), func(t *testing.T, m *memory) {
			began := time.Now()
			var all errgroup.Group
			for range 100 {
				all.Go(func() error {
					c, err := m.tryOpen(t.Context(), amqpx.Config{})
					if err != nil {
						return err
					}
					return c.Close(t.Context())
				})
			}
			if err := all.Wait(); err != nil {
				t.Errorf("RabbitMQ %s: opening or closing 100 clients: got %v, want no error", version, err)
			}
			t.Logf("RabbitMQ %s: opening and closing 100 clients took %v", version, time.Since(began))
		})
	}
}

// If the client that declares the layout takes longer than the other clients expect, or dies, they continue one at a
// time. All of them together would overload the broker.
func TestManyClientsWaitForOneThatDeclares(t *testing.T) {
	for name, happens := range map[string]func(m *memory){
		"slow": func(m *memory) { m.Delay("queue.bind", "delay.bucket.30m", 20*time.Second) },
		"dead": func(m *memory) {
			if _, err := m.Channel().QueueDeclare(naming.LockQueue(topology.DefaultPrefix), false, false, true, false, nil); err != nil {
				m.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inEachVersion(t, amqptest.Options{}, func(t *testing.T, m *memory) {
				happens(m)
				ctx := m.within(time.Minute)
				var all errgroup.Group
				for range 20 {
					all.Go(func() error { _, err := m.tryOpen(ctx, amqpx.Config{}); return err })
				}
				if err := all.Wait(); err != nil {
					t.Error(err)
				}
				bindings := len(m.open(amqpx.Config{}).Strategy().Topology().Bindings)
				if declared := m.Calls("queue.bind") + m.Calls("exchange.bind"); declared > 2*bindings {
					t.Errorf("%d bindings were declared for a layout of %d, want at most two declarations each", declared, bindings)
				}
			})
		})
	}
}

// Each attempt to get a lock that another client holds closes a channel. Many waiting clients therefore try rarely, so
// that they do not slow down the holder.
func TestClientsThatWaitForALayoutRarelyCheck(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		const clients = 20
		var tries atomic.Int64
		defer m.Control(func(f amqptest.Frame) amqptest.Action {
			switch {
			case f.FromClient && f.Method == "queue.declare" && f.Name == naming.LockQueue(topology.DefaultPrefix):
				tries.Add(1)
			case f.FromClient && f.Method == "queue.bind" && f.Name == "delay.bucket.352d": // one of the layout's bindings
				return amqptest.Action{Delay: 10 * time.Second}
			}
			return amqptest.Action{}
		})()
		var all errgroup.Group
		for range clients {
			all.Go(func() error { _, err := m.tryOpen(t.Context(), amqpx.Config{}); return err })
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
		if n := tries.Load(); n > 15*clients {
			t.Errorf("%d clients tried the lock %d times in 10 s, want at most 15 times each", clients, n)
		}
	})
}
