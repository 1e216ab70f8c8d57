package amqpx_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// A broker that is just starting refuses everybody: Open waits for it, and
// believes a refusal that lasts.
func TestOpenWaitsForABrokerThatIsStarting(t *testing.T) {
	for _, c := range []struct {
		refused time.Duration
		opens   bool
	}{{0, true}, {time.Second, true}, {time.Minute, false}} {
		synctest.Test(t, func(t *testing.T) {
			srv := amqptest.NewServer(amqptest.Options{})
			defer srv.Close()
			if c.refused > 0 {
				time.AfterFunc(c.refused, srv.RefuseLogins())
			}
			start := time.Now()
			client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
			if (err == nil) != c.opens {
				t.Errorf("refused for %v: %v", c.refused, err)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("refused for %v: Open took %v", c.refused, took)
			}
			if err != nil && errors.Is(err, t.Context().Err()) {
				t.Errorf("not the broker's own refusal: %v", err)
			}
			if client != nil {
				if err := client.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A conflict is one, too, where the connection ends with it: what the client
// library still sends on a channel that the broker closes makes the broker do that.
func TestConflictThatEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDeclare("delay.parked", true, false, false, false, amqp.Table{"x-max-length": int64(1)}); err != nil {
			t.Fatal(err)
		}
		ttl, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{time.Minute}}) // few queues: one channel declares them
		if err != nil {
			t.Fatal(err)
		}
		refusals := 0
		srv.Control(func(f amqptest.Frame) amqptest.Action {
			if f.Method == "channel.close" && !f.FromClient {
				refusals++ // the first says that the topology is not there
			}
			return amqptest.Action{Cut: refusals > 1 && f.Method == "channel.open"}
		})
		_, err = amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial, Strategy: ttl})
		if ce, ok := errors.AsType[*topology.ConflictError](err); !ok || ce.Name != "delay.parked" {
			t.Errorf("got %v", err)
		}
	})
}
