package amqpx

import (
	"errors"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func newAuto(t *testing.T) *Auto {
	t.Helper()
	b, err := dlx.NewBucket(dlx.BucketConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ttl, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{time.Minute, 48 * time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewAuto(AutoConfig{Bucket: b, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAutoChoosesByTheDelayAlone(t *testing.T) {
	a := newAuto(t)
	for delay, want := range map[time.Duration]string{
		time.Minute:                    "ttl",
		48 * time.Hour:                 "ttl",
		time.Minute + time.Millisecond: "bucket",
		0:                              "bucket",
		time.Hour:                      "bucket",
	} {
		s, reason := a.Choose(delay)
		if s.Name() != want || reason == "" {
			t.Errorf("%v: %s (%s), want %s", delay, s.Name(), reason, want)
		}
		r, err := a.Route(topology.Destination{Queue: "q"}, delay, 0)
		if err != nil || r.Delay < delay {
			t.Errorf("%v: route %+v, %v", delay, r, err)
		}
	}
}

func TestAutoHasEverythingOfItsParts(t *testing.T) {
	a := newAuto(t)
	for _, part := range []Strategy{a.cfg.Bucket, a.cfg.TTL} {
		for _, q := range part.Topology().Queues {
			if _, ok := a.Topology().Queue(q.Name); !ok {
				t.Errorf("queue %s of %s is missing", q.Name, part.Name())
			}
		}
	}
	if got := len(a.Bindings(topology.Destination{Queue: "q"})); got != 2 {
		t.Errorf("%d bindings per destination, want one of each strategy", got)
	}
	if _, err := a.Route(topology.Destination{Queue: "q"}, a.MaxDelay()+time.Second, 0); !errors.Is(err, topology.ErrDelay) {
		t.Errorf("beyond the maximum: %v", err)
	}
}

func TestAutoNeedsABucket(t *testing.T) {
	if _, err := NewAuto(AutoConfig{}); !errors.Is(err, ErrConfig) {
		t.Fatal(err)
	}
}
