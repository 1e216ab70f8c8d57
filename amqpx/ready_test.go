package amqpx_test

import (
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

const roundTrip = 20 * time.Millisecond

// far is a broker at a distance.
func far(version string) amqptest.Options {
	return amqptest.Options{Version: version, Latency: roundTrip / 2}
}

// roundTrips opens and closes a client in a bubble, in which only the line takes
// time, and counts.
func (m *memory) roundTrips(declare amqpx.Declaration) float64 {
	m.Helper()
	began := time.Now()
	c := m.open(amqpx.Config{Declare: declare})
	took := time.Since(began)
	if err := c.Close(); err != nil {
		m.Error(err)
	}
	return float64(took) / float64(roundTrip)
}

// On a broker that has everything a client is ready after a handful of round
// trips: three are the handshake of AMQP itself.
func TestReadyAtOnce(t *testing.T) {
	for _, version := range []string{"4.3.0", "4.0.5"} {
		inMemoryOf(t, far(version), func(t *testing.T, m *memory) {
			cold := m.roundTrips(amqpx.DeclareMissing)
			warm := m.roundTrips(amqpx.DeclareMissing)
			nothing := m.roundTrips(amqpx.DeclareNothing)
			t.Logf("%s: %v round trips on a cold broker, %v on a warm one, %v with DeclareNothing", version, cold, warm, nothing)
			if warm > 6 || nothing > 6 || cold > 25 {
				t.Errorf("%v, %v and %v round trips, want at most 25, 6 and 6", cold, warm, nothing)
			}
		})
	}
}

// What was deleted since is missed, and declared again.
func TestReadyMissesWhatWasDeleted(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		m.roundTrips(amqpx.DeclareMissing)
		m.deleteQueue("delay.bucket.30m")
		m.roundTrips(amqpx.DeclareMissing)
		m.holds("delay.bucket.30m", 0, 0)
	})
}

// A layout that was declared by something else than rabbitdelay, from RabbitMQ's
// definitions say, has no exchange that says so.
func TestDeclareNothingOnALayoutWithoutAFingerprint(t *testing.T) {
	inMemoryOf(t, far("4.3.0"), func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		name := topology.DeclaredExchange(topology.DefaultPrefix, c.Strategy().Topology())
		if err := m.foreign().ExchangeDelete(name, false, false); err != nil {
			t.Fatal(err)
		}
		if n := m.roundTrips(amqpx.DeclareNothing); n > 60 {
			t.Errorf("%v round trips", n)
		}
	})
}

// A hundred clients start together on a broker that has nothing.
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
					return c.Close()
				})
			}
			if err := all.Wait(); err != nil {
				t.Error(err)
			}
			t.Logf("%s: after %v", version, time.Since(began))
		})
	}
}
