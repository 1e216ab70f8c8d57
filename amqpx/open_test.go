package amqpx_test

import (
	"errors"
	"strings"
	"testing"
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
		inMemory(t, func(t *testing.T, m *memory) {
			if c.refused > 0 {
				time.AfterFunc(c.refused, m.RefuseLogins())
			}
			began := time.Now()
			_, err := m.tryOpen(t.Context(), amqpx.Config{})
			if (err == nil) != c.opens {
				t.Errorf("refused for %v: %v", c.refused, err)
			}
			if took := time.Since(began); took > 6*time.Second { // 2 s, and the pause that had begun
				t.Errorf("refused for %v: Open took %v", c.refused, took)
			}
			if err != nil && errors.Is(err, t.Context().Err()) {
				t.Errorf("not the broker's own refusal: %v", err)
			}
		})
	}
}

// Credentials that are wrong are final.
func TestOpenIsRefused(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		ctx := m.within(time.Hour)
		began := time.Now()
		_, err := m.tryOpen(ctx, amqpx.Config{URL: strings.Replace(m.URL(), "guest:guest", "guest:secret", 1)})
		if err == nil || strings.Contains(err.Error(), "secret") || time.Since(began) > time.Minute {
			t.Errorf("with the wrong password, after %v: %v", time.Since(began), err)
		}
		_, err = m.tryOpen(ctx, amqpx.Config{URL: strings.Replace(m.URL(), "/?", "/none?", 1)})
		if err == nil || !strings.Contains(err.Error(), "none") {
			t.Errorf("with a virtual host that is not there: %v", err)
		}
	})
}

// So is what conflicts with the broker's own, also where the connection ends with
// it: what the client library still sends on a channel that the broker closes makes
// the broker do that.
func TestOpenFindsAConflict(t *testing.T) {
	ttl, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{time.Minute}}) // few queues: one channel declares them
	if err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]amqpx.Config{"": {}, "connection ends": {Strategy: ttl}} {
		inMemory(t, func(t *testing.T, m *memory) {
			m.declareQueue("delay.parked", amqp.Table{"x-max-length": int64(1)})
			refusals := 0
			m.Control(func(f amqptest.Frame) amqptest.Action {
				if f.Method == "channel.close" && !f.FromClient {
					refusals++ // the first says that the topology is not there
				}
				return amqptest.Action{Cut: name != "" && refusals > 1 && f.Method == "channel.open"}
			})
			_, err := m.tryOpen(t.Context(), cfg)
			if ce, ok := errors.AsType[*topology.ConflictError](err); !ok || ce.Name != "delay.parked" {
				t.Errorf("%s: got %v", name, err)
			}
		})
	}
}
