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
	"github.com/rabbitdelay/rabbitdelay/amqpx/bridge"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/probe"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/layout"
	"github.com/rabbitdelay/rabbitdelay/config"
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

// BridgeCommand returns the command bridge.
func BridgeCommand(a *app.App) *cobra.Command {
	r := &bridgeRun{App: a}
	c := &cobra.Command{
		Use:   "bridge",
		Short: "Delay what producers publish as they did for the plugin, until stopped",
		Long: `bridge stands in for an exchange of the plugin (x-delayed-message) on a broker
without it, for producers that cannot change today. It declares, for --exchange E:

  E              topic exchange under the old name, for the producers
  E.bridge       queue that takes everything they publish
  E.bridge.due   queue for what is due
  E.bridge.dead  queue for what could not be delivered, with the reason
  E.due          exchange of --type, to which consumers bind their queues instead of E

A message waits in the strategy's delay queues for as long as its header x-delay says,
counted from when bridge takes it, and then goes to E.due as it was: routing key,
properties, CC, headers; x-delay is negated, as by the plugin. Without the header, or
with one that is not positive or over 4294967295, it goes there at once.

It refuses to begin where E is another exchange, the plugin's above all, and, if the
management API answers, where queues are bound to E itself: they would get everything
undelayed. docs/off-the-plugin.md has the steps.

Several may run for one exchange. It runs until SIGINT or SIGTERM, finishes what it has
begun, prints a line with what it did, with --json {"delayed":N,"delivered":N,"dead":N,
"failed":N,"seconds":S}, and exits with 0. --probe answers /healthz, /readyz and
/metrics. --dry-run shows what would be declared, with the exit codes of plan.`,
		Example: `  rabbitdelay bridge --exchange orders.delayed --type direct --dry-run
  rabbitdelay bridge --exchange orders.delayed --type direct --probe :8087`,
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c.Context()) },
	}
	f := c.Flags()
	f.StringVar(&r.x.Name, "exchange", "", "the exchange under the plugin's name for it")
	f.StringVar(&r.x.Type, "type", "", "its x-delayed-type: "+strings.Join(bridge.Types(), ", "))
	f.IntVar(&r.concurrency, "concurrency", bridge.DefaultConcurrency, "messages of each queue under way at once, 1 to 16383")
	f.StringVar(&r.probe, "probe", "", "answer /healthz, /readyz and /metrics at this `HOST:PORT`")
	f.BoolVar(&r.dryRun, "dry-run", false, "show what would be declared, and declare nothing")
	return c
}

// maxConcurrency is a quarter of AMQP's maximum prefetch.
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

// look returns an error if conflicting objects exist, or if queues are bound in a way that bypasses the bridge. A dry
// run prints the missing objects.
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
			return fmt.Errorf("%s of exchange %q past the bridge would deliver everything undelayed: %s; bind to %q instead, then remove them",
				shown.Count(len(all), "binding", "bindings"), r.x.Name, strings.Join(names, "; "), r.x.Due())
		}
	}
	if r.dryRun {
		return layout.Planned(r.App, p, true)
	}
	return refusal
}

// bridge runs until ctx ends.
func (r *bridgeRun) bridge(ctx context.Context) (err error) {
	if r.metrics, err = probe.NewMetrics(); err != nil {
		return err
	}
	defer func() { _ = r.metrics.Close(context.WithoutCancel(ctx)) }() // there is nothing to export
	p := probe.New(r.metrics)
	if r.probe != "" {
		at, err := p.Listen(ctx, r.probe)
		if err != nil {
			return err
		}
		defer p.Close()
		r.Logger().Info("answering probes", zap.Stringer("address", at))
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
		r.Logger().Info("stopping; what is under way will be finished")
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
	return r.Show(out, "%d messages delayed, %d delivered, %d dead, %d tries failed, in %.1f s\n", out.Delayed, out.Delivered, out.Dead, out.Failed, out.Seconds)
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
			log.Warn("a message does not get on; it is tried again", zap.String("id", e.Delivery.ID), zap.Int("attempt", e.Delivery.Attempt), zap.Error(e.Err))
		}
	}}
}
