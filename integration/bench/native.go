package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// natively is the native strategy, with so many holding queues.
func natively(queues int) strategyFor {
	return func(prefix string) (amqpx.Strategy, error) {
		return dlx.NewNative(dlx.NativeConfig{Prefix: prefix, Queues: queues})
	}
}

// nativeRates are those at which native is measured beside the buckets, per second,
// each with the p99 in ms that is aimed at.
var nativeRates = []struct{ rate, p99 float64 }{{1_000, 15}, {4_000, 15}, {8_000, 25}, {12_000, 110}}

// rivals are what native is measured against, itself first.
var rivals = []struct {
	name     string
	strategy strategyFor
}{
	{fmt.Sprintf("native, %d queues", dlx.DefaultNativeQueues), natively(dlx.DefaultNativeQueues)},
	{"native, 1 queue", natively(1)},
	{"bucket", clock(topology.Quorum)},
	{"bucket" + atTenths, bucket(inTenths(dlx.LayoutClock, topology.Quorum))},
}

// native measures how late messages are at rising rates by the native strategy and
// by the buckets, and the highest rate of each, on one broker, all quorum queues.
func (r *run) native(ctx context.Context, s *Scenario) (err error) {
	b, own, err := r.delayingBroker(ctx)
	if err != nil {
		return err
	}
	if own {
		s.Servers = []string{"RabbitMQ " + b.Version() + ", which delays by an instant"}
		defer func() { err = joined(err, b.Close()) }()
	}
	rates := nativeRates
	if r.o.Quick {
		rates = slices.Clone(rates[:1])
		rates[0].rate = float64(r.o.Rate)
	}
	for _, at := range rates {
		if err := r.nativeAt(ctx, s, b, at.rate, at.p99); err != nil {
			return err
		}
	}
	return r.nativeSustained(ctx, s, b)
}

// nativeAt is native at one rate.
func (r *run) nativeAt(ctx context.Context, s *Scenario, b *broker.Broker, rate, p99 float64) error {
	f := flow{rate: rate, delays: span{2 * time.Second, 6 * time.Second}, warm: 8 * time.Second, measure: 15 * time.Second}
	if r.o.Quick {
		f.delays, f.warm, f.measure = span{time.Second, 3 * time.Second}, time.Second, 2*time.Second
	}
	p := &passes{r: r, f: f, s: s, group: fmt.Sprintf("%.0f/s, delays %.0f-%.0f s", rate, f.delays.lo.Seconds(), f.delays.hi.Seconds())}
	defer p.close()
	var cases []*Case
	for i, one := range rivals {
		c, err := r.open(ctx, b, fmt.Sprintf("native-%.0f-%d", rate, i), topology.Quorum, one.strategy)
		if err != nil {
			return err
		}
		cases = append(cases, p.add(one.name, i > 0, rabbit{c, steadyPrefetch}, c.close))
	}
	if err := p.run(ctx, min(r.o.Repeats, 2)); err != nil {
		return err
	}
	s.atMost(fmt.Sprintf("p99 at %.0f/s, %s", rate, cases[0].Name), cases[0], metricP99, p99)
	s.ratio(fmt.Sprintf("p99 at %.0f/s, %s / %s", rate, cases[0].Name, cases[2].Name), cases[0], cases[2], metricP99, 1, true)
	return nil
}

// nativeSustained finds the highest rate of each.
func (r *run) nativeSustained(ctx context.Context, s *Scenario, b *broker.Broker) error {
	n := r.newContest(s, "highest rate, quorum queues")
	for i, one := range rivals {
		c, err := r.open(ctx, b, fmt.Sprintf("native-most-%d", i), topology.Quorum, one.strategy)
		if err != nil {
			return joined(err, n.close(ctx))
		}
		n.enter(one.name, c)
	}
	for base := 1; base < len(rivals); base++ {
		n.compare(0, base, 1)
	}
	return n.decide(ctx)
}

// delayingBroker is the run's broker if that delays by an instant, else one of its
// own from the image that broker.EnvNextImage names.
func (r *run) delayingBroker(ctx context.Context) (b *broker.Broker, own bool, err error) {
	err = delays(ctx, r.main)
	if err == nil || !errors.Is(err, live.ErrInstantsIgnored) {
		return r.main, false, err
	}
	_, version, _ := strings.Cut(os.Getenv(broker.EnvNextImage), ":")
	if version == "" || r.main.Source() == broker.Environment {
		return nil, false, fmt.Errorf("%w: RabbitMQ %s does not delay by an instant; %s names an image of one that does", errLeftOut, r.main.Version(), broker.EnvNextImage)
	}
	if b, err = broker.Start(ctx, broker.Options{Version: version, Log: r.o.Log}); err != nil {
		return nil, false, err
	}
	if err := delays(ctx, b); err != nil {
		return nil, false, joined(err, b.Close())
	}
	return b, true, nil
}

func delays(ctx context.Context, b *broker.Broker) error {
	return live.ProbeInstants(ctx, "rabbitdelay-bench", func(context.Context) (*amqp.Connection, error) { return dialRaw(b.URL()) })
}
