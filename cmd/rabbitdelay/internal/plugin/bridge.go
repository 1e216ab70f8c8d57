package plugin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/bridge"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/layout"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/probe"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

type bridgeRun struct {
	*app.App

	x           bridge.Exchange
	concurrency int
	probe       string
	dryRun      bool

	cfg      *config.Config
	strategy amqpx.Strategy
	metrics  *probe.Metrics
}

type bridged struct {
	bridge.Stats

	Seconds float64 `json:"seconds"`
}

// BridgeCommand returns the bridge command, which replaces one of the plugin's exchanges.
func BridgeCommand(a *app.App) *cobra.Command {
	r := &bridgeRun{App: a}
	c := &cobra.Command{
		Use:   "bridge",
		Short: "Replace an exchange of the plugin without changing producers",
		Long: `Replace an x-delayed-message exchange on a broker without the plugin, for
producers that cannot be changed yet. It runs until stopped.`,
		Example: `  rabbitdelay bridge --exchange orders.delayed --type direct --dry-run
  rabbitdelay bridge --exchange orders.delayed --type direct --probe :8087`,
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c.Context()) },
	}
	f := c.Flags()
	f.StringVar(&r.x.Name, "exchange", "", "the name of the plugin's exchange")
	f.StringVar(&r.x.Type, "type", "", "the exchange's x-delayed-type, one of "+strings.Join(bridge.Types(), ", "))
	f.IntVar(&r.concurrency, "concurrency", bridge.DefaultConcurrency, "messages from each queue that are handled at the same time, 1 to 16383")
	f.StringVar(&r.probe, "probe", "", "serve /healthz, /readyz and /metrics on this `HOST:PORT`")
	f.BoolVar(&r.dryRun, "dry-run", false, "show what would be declared, and declare nothing")
	return c
}

// maxConcurrency is a quarter of AMQP's maximum prefetch, because the client's default prefetch is four times the
// concurrency.
const maxConcurrency = math.MaxUint16 / 4

func (r *bridgeRun) run(ctx context.Context) (err error) {
	if !r.dryRun {
		r.LogBeginning()
	}
	if r.cfg, err = r.Load(map[string]string{"broker.connection_name": "rabbitdelay bridge"}); err != nil {
		return err
	}
	if err := r.x.Validate(r.cfg.Delay.Prefix); err != nil {
		return fmt.Errorf("--exchange, --type: %w", err)
	}
	if r.concurrency < 1 || r.concurrency > maxConcurrency {
		return fmt.Errorf("--concurrency: %d; expected 1 to %d", r.concurrency, maxConcurrency)
	}
	if r.strategy, err = r.cfg.Strategy(ctx, r.Logger()); err != nil {
		return err
	}
	b := &app.Broker{Config: r.cfg, Strategy: r.strategy, Want: r.x.Topology()}
	if err := r.Connect(ctx, b); err != nil {
		return err
	}
	err = r.look(ctx, b)
	b.Close()
	if err != nil || r.dryRun {
		return err
	}
	return r.bridge(ctx)
}

// look returns an error if conflicting objects exist, or if bindings bypass the bridge. In a dry run it prints the
// missing objects.
func (r *bridgeRun) look(ctx context.Context, b *app.Broker) error {
	p, err := b.Plan(ctx, b.Want)
	if err != nil {
		return err
	}
	refusal := r.x.Explain(p.Refusal(false))
	if refusal == nil { // otherwise the bindings belong to another exchange, which needs them
		found, err := b.Inspector.Inspect(ctx, r.x.Topology())
		if err != nil {
			return err
		}
		if all := r.x.Bypasses(found.Bindings); found.BindingsKnown && len(all) > 0 {
			var names []string
			for _, x := range all[:min(len(all), 3)] {
				names = append(names, x.String())
			}
			return fmt.Errorf("%s of exchange %q would bypass the bridge and deliver all messages without a delay: %s; create them for %q instead, then remove them",
				shown.Count(len(all), "binding", "bindings"), r.x.Name, strings.Join(names, "; "), r.x.Due())
		}
	}
	if r.dryRun {
		return layout.Planned(r.App, p, true)
	}
	return refusal
}

// bridge runs the bridge until ctx is done, and prints its counts.
func (r *bridgeRun) bridge(ctx context.Context) (err error) {
	if r.metrics, err = probe.NewMetrics(); err != nil {
		return err
	}
	defer func() { _ = r.metrics.Close(context.WithoutCancel(ctx)) }() // metrics are pulled, so closing has nothing to send and an error does not matter
	p := probe.New(r.metrics)
	if r.probe != "" {
		at, err := p.Listen(ctx, r.probe)
		if err != nil {
			return err
		}
		defer p.Close()
		r.Logger().Info("serving probes", zap.Stringer("address", at))
	}
	client, err := r.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close(context.WithoutCancel(ctx))) }()
	b, err := bridge.New(client, bridge.Config{Exchange: r.x, Concurrency: r.concurrency})
	if err != nil {
		return err
	}
	p.Set(b.Health)
	defer context.AfterFunc(ctx, func() {
		r.Logger().Info("stopping after the work in progress is finished")
		p.Set(func() error { return probe.ErrStopping })
	})()
	r.Logger().Info("bridging", zap.String("exchange", r.x.Name), zap.String("due", r.x.Due()), zap.String("broker", client.BrokerVersion()), zap.String("strategy", r.strategy.Name()))
	start := time.Now()
	if r.cfg.Broker.Declare != amqpx.DeclareNothing {
		if err := b.Declare(ctx); err != nil {
			return err
		}
	}
	if err := b.Run(ctx); err != nil {
		return err
	}
	out := bridged{b.Stats(), app.Seconds(time.Since(start))}
	return r.Show(out, "%d messages delayed, %d delivered, %d dead, %d failed attempts, in %.1f s\n", out.Delayed, out.Delivered, out.Dead, out.Failed, out.Seconds)
}

// open connects a client that has the bridge's queues among its destinations.
func (r *bridgeRun) open(ctx context.Context) (*amqpx.Client, error) {
	cfg, err := r.cfg.Client(r.strategy, r.Logger())
	if err != nil {
		return nil, err
	}
	own := []topology.Destination{{Queue: r.x.Queue(), DeadLetter: r.x.DueQueue()}, {Queue: r.x.DueQueue(), DeadLetter: r.x.DeadQueue()}}
	cfg.Destinations = append(cfg.Destinations, own...)
	cfg.Hooks = append(cfg.Hooks, r.metrics.Hook(), troubled(r.Logger()))
	client, err := amqpx.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := r.metrics.Observe(client, nil, own); err != nil {
		return nil, errors.Join(err, client.Close(ctx))
	}
	return client, nil
}

// troubled returns a hook that logs messages that keep failing, because the client retries them for years without
// logging. It logs at most one line with the same text every ten seconds.
func troubled(log *zap.Logger) amqpx.Hook {
	log = log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, 10*time.Second, 1, 0)
	}))
	return amqpx.Hook{HandleEnd: func(_ context.Context, e amqpx.HandleEnd) {
		if e.Outcome == amqpx.OutcomeRetried {
			log.Warn("could not forward a message; trying again", zap.String("id", e.Delivery.ID), zap.Int("attempt", e.Delivery.Attempt), zap.Error(e.Err))
		}
	}}
}
