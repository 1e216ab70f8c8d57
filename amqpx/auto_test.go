package amqpx_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// autoParts returns the strategies from which a test can build an auto strategy with declared delays.
func autoParts(t *testing.T, delays ...time.Duration) amqpx.AutoConfig {
	t.Helper()
	bucket, err := dlx.NewBucket(dlx.BucketConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ttl, err := dlx.NewTTL(dlx.TTLConfig{Delays: delays})
	if err != nil {
		t.Fatal(err)
	}
	return amqpx.AutoConfig{Bucket: bucket, TTL: ttl}
}

func newAuto(t *testing.T, cfg amqpx.AutoConfig) amqpx.Strategy {
	t.Helper()
	a, err := amqpx.NewAuto(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAutoChoosesByTheDelayAlone(t *testing.T) {
	a := newAuto(t, autoParts(t, time.Minute, 48*time.Hour))
	for delay, want := range map[time.Duration]string{
		time.Minute:                    "delay.ttl.1m",
		48 * time.Hour:                 "delay.ttl.2d",
		time.Minute + time.Millisecond: "delay.bucket.1m",
		time.Hour:                      "delay.bucket.1h",
	} {
		r, err := a.Route(topology.Destination{Queue: "q"}, delay, 0)
		if err != nil || r.Delay < delay {
			t.Errorf("delay %v: got the route %+v and the error %v, want a Delay of at least %v and no error", delay, r, err, delay)
		}
		if r.Queue != want {
			t.Errorf("delay %v: got the queue %s, want %s", delay, r.Queue, want)
		}
	}
}

func TestAutoContainsItsParts(t *testing.T) {
	cfg := autoParts(t, time.Minute, 48*time.Hour)
	a := newAuto(t, cfg)
	for _, part := range []amqpx.Strategy{cfg.Bucket, cfg.TTL} {
		for _, q := range part.Topology().Queues {
			if _, ok := a.Topology().Queue(q.Name); !ok {
				t.Errorf("the topology has no queue %s, want it, because %s needs it", q.Name, part.Name())
			}
		}
	}
	if got := len(a.Bindings(topology.Destination{Queue: "q"})); got != 2 {
		t.Errorf("Bindings returned %d bindings, want 2, one for each strategy", got)
	}
	if _, err := a.Route(topology.Destination{Queue: "q"}, a.MaxDelay()+time.Second, 0); !errors.Is(err, topology.ErrDelay) {
		t.Errorf("Route with a delay above MaxDelay: got %v, want topology.ErrDelay", err)
	}
}

func TestAutoNeedsABucket(t *testing.T) {
	if _, err := amqpx.NewAuto(amqpx.AutoConfig{}); !errors.Is(err, amqpx.ErrConfig) {
		t.Fatalf("NewAuto without a bucket: got %v, want amqpx.ErrConfig", err)
	}
}

// The auto strategy uses the queue of a declared delay, the plugin for delays in its range, and the buckets otherwise.
// Each message arrives when it is due.
func TestAuto(t *testing.T) {
	plugged, err := plugin.New(plugin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := autoParts(t, 30*time.Minute)
	cfg.Plugin, cfg.PluginMin, cfg.PluginMax = plugged, time.Second, time.Minute
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{Version: "4.0.5", Plugin: true})
		defer srv.Close()
		c, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial, Strategy: newAuto(t, cfg)})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		if c.Strategy().Name() != "auto" {
			t.Errorf(`the strategy is %s, want "auto"`, c.Strategy().Name())
		}
		delays := map[string]time.Duration{"declared": 30 * time.Minute, "any": 7 * time.Minute, "short": 10 * time.Second}
		for id, delay := range delays {
			if err := c.Send(t.Context(), amqpx.Message{ID: id, Queue: "q", Delay: delay}); err != nil {
				t.Fatal(err)
			}
		}
		if q, _ := srv.Queue("delay.ttl.30m"); q.Ready != 1 {
			t.Errorf("%d messages are in the queue of the declared delay, want 1", q.Ready)
		}
		if n := srv.Publishes("delay.plugin"); n != 1 {
			t.Errorf("%d messages were published to the plugin's exchange, want 1", n)
		}
		began := time.Now()
		came := map[string]time.Duration{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err = c.Consume(ctx, "q", func(_ context.Context, d *amqpx.Delivery) error {
			came[d.ID] = time.Since(began).Truncate(time.Second)
			return nil
		}, amqpx.WithConcurrency(1))
		if err != nil || !maps.Equal(came, delays) {
			t.Errorf("messages arrived after %v, want %v (error %v)", came, delays, err)
		}
		if err := c.Send(t.Context(), amqpx.Message{Queue: "q", Delay: c.MaxDelay() + time.Second}); !errors.Is(err, topology.ErrDelay) {
			t.Errorf("Send with a delay above MaxDelay: got %v, want topology.ErrDelay", err)
		}
	})
}
