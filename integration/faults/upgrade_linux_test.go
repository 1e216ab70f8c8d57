package faults_test

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/faults"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// upgraded is a broker that is replaced by the next version when it starts after its first stop.
type upgraded struct {
	faults.Brokers
	next func(context.Context) (faults.Brokers, error) // nil after the upgrade
}

func (u *upgraded) Stop(ctx context.Context, i int) error {
	if u.next != nil {
		if _, err := u.Ctl(ctx, i, "enable_feature_flag", "--opt-in", "khepri_db"); err != nil { // 4.3 requires it
			return err
		}
	}
	return u.Brokers.Stop(ctx, i)
}

func (u *upgraded) Start(ctx context.Context, i int) error {
	if u.next == nil {
		return u.Brokers.Start(ctx, i)
	}
	next, err := u.next(ctx)
	if err == nil {
		u.Brokers, u.next = next, nil
	}
	return err
}

// RabbitMQ is upgraded while messages are being sent and while others wait.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	d := newDisk(t, "-t", "tmpfs", "none") // the data must outlive the container, but not the test
	const from = "4.0"
	if lines, err := broker.Versions(t.Context()); err != nil || !slices.Contains(lines, from) || !slices.Contains(lines, *version) {
		t.Skipf("skipped: it needs RabbitMQ %s and %s; available: %q (%v)", from, *version, lines, err)
	}
	old := node(t, broker.Options{Version: from, Data: d.dir})
	where, err := url.Parse(old.URLs()[0])
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(where.Port())
	if err != nil {
		t.Fatal(err)
	}
	next := func(ctx context.Context) (faults.Brokers, error) {
		if err := old.Close(); err != nil {
			return nil, err
		}
		b, err := broker.Start(ctx, broker.Options{Version: *version, Advanced: advanced(), Data: d.dir, Port: port})
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		return faults.OneNode(b), nil
	}
	promised(t, run(t, faults.Config{
		Name: "upgrade from " + from, Brokers: &upgraded{old, next}, Strategy: faults.Strategy{Name: "bucket", QueueType: topology.Quorum},
		Seed: *seed, Duration: *duration / 2, Rate: *rate, Kinds: []faults.Kind{faults.Restart},
	}))
}
