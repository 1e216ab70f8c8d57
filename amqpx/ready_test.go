package amqpx_test

import (
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

const roundTrip = 20 * time.Millisecond

// roundTrips opens and closes a client in a bubble, in which only the line takes
// time, and counts.
func roundTrips(t *testing.T, srv *amqptest.Server, declare amqpx.Declaration) float64 {
	t.Helper()
	began := time.Now()
	c, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial, Declare: declare})
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	return float64(took) / float64(roundTrip)
}

// On a broker that has everything a client is ready after a handful of round
// trips: three are the handshake of AMQP itself.
func TestReadyAtOnce(t *testing.T) {
	for _, version := range []string{"4.3.0", "4.0.5"} {
		synctest.Test(t, func(t *testing.T) {
			srv := amqptest.NewServer(amqptest.Options{Version: version, Latency: roundTrip / 2})
			defer srv.Close()
			cold := roundTrips(t, srv, amqpx.DeclareMissing)
			warm := roundTrips(t, srv, amqpx.DeclareMissing)
			nothing := roundTrips(t, srv, amqpx.DeclareNothing)
			t.Logf("%s: %v round trips on a cold broker, %v on a warm one, %v with DeclareNothing", version, cold, warm, nothing)
			if warm > 6 || nothing > 6 || cold > 25 {
				t.Errorf("%v, %v and %v round trips, want at most 25, 6 and 6", cold, warm, nothing)
			}
		})
	}
}

// What was deleted since is missed, and declared again.
func TestReadyMissesWhatWasDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		roundTrips(t, srv, amqpx.DeclareMissing)
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		const queue = "delay.bucket.30m"
		if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
			t.Fatal(err)
		}
		roundTrips(t, srv, amqpx.DeclareMissing)
		if _, ok := srv.Queue(queue); !ok {
			t.Error("the queue is still missing")
		}
	})
}

// A layout that was declared by something else than rabbitdelay, from RabbitMQ's
// definitions say, has no exchange that says so.
func TestDeclareNothingOnALayoutWithoutAFingerprint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{Latency: roundTrip / 2})
		defer srv.Close()
		roundTrips(t, srv, amqpx.DeclareMissing)
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		c, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
		if err != nil {
			t.Fatal(err)
		}
		name := topology.DeclaredExchange(topology.DefaultPrefix, c.Strategy().Topology())
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := ch.ExchangeDelete(name, false, false); err != nil {
			t.Fatal(err)
		}
		if n := roundTrips(t, srv, amqpx.DeclareNothing); n > 60 {
			t.Errorf("%v round trips", n)
		}
	})
}

// A hundred clients start together on a broker that has nothing.
func TestManyClientsOnAColdBroker(t *testing.T) {
	for _, version := range []string{"4.3.0", "4.0.5"} {
		synctest.Test(t, func(t *testing.T) {
			srv := amqptest.NewServer(amqptest.Options{Version: version, Latency: roundTrip / 2})
			defer srv.Close()
			began := time.Now()
			var all errgroup.Group
			for range 100 {
				all.Go(func() error {
					c, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
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
