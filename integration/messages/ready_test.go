package messages_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/integration/proxy"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// Many clients start at the same time on an empty virtual host. One of them declares the layout, and all become ready.
// A client that starts later creates no bindings, which would take long on a broker with the network latency of another
// data centre. Neither does a client that is not allowed to declare. The test starts only 25 clients because it also
// runs with the race detector.
func TestReadyAtOnce(t *testing.T) {
	t.Parallel()
	const clients = 25
	suite.OnVhosts(t, func(t *testing.T, v *suite.Vhost) {
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
		defer cancel()
		began := time.Now()
		var all errgroup.Group
		for range clients {
			all.Go(func() error {
				c, err := amqpx.Open(ctx, amqpx.Config{URL: v.URL})
				if err != nil {
					return err
				}
				return c.Close(ctx)
			})
		}
		if err := all.Wait(); err != nil {
			t.Fatalf("opening %d clients: %v", clients, err)
		}
		t.Logf("%d clients on a cold broker: %v", clients, time.Since(began))

		p, url, err := proxy.ForURL(v.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		p.Slow(10 * time.Millisecond) // in each direction
		var binds, exchanges atomic.Int64
		p.CutAt(func(f proxy.Frame) bool {
			switch {
			case f.Is(proxy.ToBroker, [2]uint16{50, 20}), f.Is(proxy.ToBroker, [2]uint16{40, 30}):
				binds.Add(1)
			case f.Is(proxy.ToBroker, [2]uint16{40, 10}):
				exchanges.Add(1)
			}
			return false
		})
		for declare, most := range map[amqpx.Declaration]int64{amqpx.DeclareMissing: 1000, amqpx.DeclareNothing: 1} {
			binds.Store(0)
			exchanges.Store(0)
			began := time.Now()
			suite.OpenClient(t, amqpx.Config{URL: url, Declare: declare})
			t.Logf("declare %s, round-trip time 20 ms: ready after %v", declare, time.Since(began))
			if binds.Load() > 0 || exchanges.Load() > most {
				t.Errorf("declare %s: the client sent %d binds and %d exchange declarations, want 0 and at most %d", declare, binds.Load(), exchanges.Load(), most)
			}
		}
	})
}
