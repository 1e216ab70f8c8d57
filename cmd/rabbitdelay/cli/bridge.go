package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/bridge"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// bridgeRun is one run of bridge.
type bridgeRun struct {
	a           *app
	x           bridge.Exchange
	concurrency int
	probe       string
	dryRun      bool

	cfg      *config.Config
	strategy amqpx.Strategy
	metrics  *metrics
}

// bridged is the result of bridge.
type bridged struct {
	bridge.Stats

	Seconds float64 `json:"seconds"`
}

func (a *app) bridgeCommand() *cobra.Command {
	r := &bridgeRun{a: a}
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
		Args: program.NoArgs,
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

// maxConcurrency is a quarter of AMQP's prefetch.
const maxConcurrency = maxPrefetch / 4

func (r *bridgeRun) load(ctx context.Context) error {
	a := r.a
	if !a.Given("log-level") && !r.dryRun {
		a.LogLevel = "info" // a process that runs for weeks says when it began
	}
	var err error
	if r.cfg, err = a.Load(nil, map[string]string{"broker.connection_name": "rabbitdelay bridge"}); err != nil {
		return err
	}
	if err := r.x.Validate(r.cfg.Delay.Prefix); err != nil {
		return fmt.Errorf("--exchange, --type: %w", err)
	}
	if r.concurrency < 1 || r.concurrency > maxConcurrency {
		return fmt.Errorf("--concurrency: %d; expected 1 to %d", r.concurrency, maxConcurrency)
	}
	r.strategy, err = r.cfg.Strategy(ctx, a.Logger())
	return err
}

func (r *bridgeRun) run(ctx context.Context) error {
	if err := r.load(ctx); err != nil {
		return err
	}
	s := &setup{cfg: r.cfg, strategy: r.strategy, want: r.x.Topology()}
	if err := s.connect(ctx, r.a); err != nil {
		return err
	}
	err := r.look(ctx, s)
	s.close()
	if err != nil || r.dryRun {
		return err
	}
	return r.bridge(ctx)
}

// look refuses what is there and must not be; a dry run shows what is missing.
func (r *bridgeRun) look(ctx context.Context, s *setup) error {
	p, err := s.broker.Plan(ctx, s.want)
	if err != nil {
		return err
	}
	refusal := r.x.Explain(p.Refusal(false))
	if refusal == nil { // else the bindings are those of another exchange, which needs them
		if err := r.bypassed(ctx, s.broker); err != nil {
			return err
		}
	}
	if r.dryRun {
		return r.a.planned(p, true)
	}
	return refusal
}

// bypassed refuses queues that are bound past the bridge.
func (r *bridgeRun) bypassed(ctx context.Context, b live.Broker) error {
	found, err := b.Inspector.Inspect(ctx, r.x.Topology())
	if err != nil || !found.BindingsKnown {
		return err
	}
	all := r.x.Bypasses(found.Bindings)
	if len(all) == 0 {
		return nil
	}
	var names []string
	for _, x := range all[:min(len(all), 3)] {
		names = append(names, x.String())
	}
	return fmt.Errorf("%s of exchange %q past the bridge would deliver everything undelayed: %s; bind to %q instead, then remove them",
		counted(int64(len(all)), "binding"), r.x.Name, strings.Join(names, "; "), r.x.Due())
}

// bridge runs until ctx ends.
func (r *bridgeRun) bridge(ctx context.Context) (err error) {
	if r.metrics, err = newMetrics(); err != nil {
		return err
	}
	defer func() { _ = r.metrics.close(context.WithoutCancel(ctx)) }() // nothing is exported
	p := newProbe(r.metrics)
	if r.probe != "" {
		if err := p.listen(ctx, r.probe); err != nil {
			return err
		}
		defer p.close()
		r.a.Logger().Info("answering probes", zap.Stringer("address", p.at))
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
	p.set(b.Health)
	defer context.AfterFunc(ctx, func() {
		r.a.Logger().Info("stopping; what is under way is finished")
		p.set(func() error { return errStopping })
	})()
	r.a.Logger().Info("bridging", zap.String("exchange", r.x.Name), zap.String("due", r.x.Due()), zap.String("broker", client.BrokerVersion()), zap.String("strategy", r.strategy.Name()))
	start := time.Now()
	if err := b.Run(ctx, r.cfg.Broker.Declare != amqpx.DeclareNothing); err != nil {
		return err
	}
	return r.summary(bridged{b.Stats(), seconds(time.Since(start))})
}

// open connects, with the bridge's queues among the destinations.
func (r *bridgeRun) open(ctx context.Context) (*amqpx.Client, error) {
	cfg, err := r.cfg.Client(r.strategy, r.a.Logger())
	if err != nil {
		return nil, err
	}
	own := []topology.Destination{{Queue: r.x.Queue(), DeadLetter: r.x.DueQueue()}, {Queue: r.x.DueQueue(), DeadLetter: r.x.DeadQueue()}}
	cfg.Destinations = append(cfg.Destinations, own...)
	cfg.Hooks = append(cfg.Hooks, r.metrics.Telemetry, troubled{seldom(r.a.Logger())})
	client, err := amqpx.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := r.metrics.observe(client, nil, own); err != nil {
		return nil, errors.Join(err, client.Close(ctx))
	}
	return client, nil
}

// troubled says that messages do not get on: they are tried for years, without a word of
// the client's.
type troubled struct{ log *zap.Logger }

// seldom lets one line of a kind through every ten seconds.
func seldom(log *zap.Logger) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, 10*time.Second, 1, 0)
	}))
}

func (troubled) HandleStart(ctx context.Context, _ *amqpx.Delivery) context.Context { return ctx }

func (t troubled) HandleEnd(_ context.Context, e amqpx.HandleEnd) {
	if e.Outcome == amqpx.OutcomeRetried {
		t.log.Warn("a message does not get on; it is tried again", zap.String("id", e.Delivery.ID), zap.Int("attempt", e.Delivery.Attempt), zap.Error(e.Err))
	}
}

func (r *bridgeRun) summary(out bridged) error {
	if r.a.JSON {
		return r.a.PrintJSON(out)
	}
	r.a.Printf("%d messages delayed, %d delivered, %d dead, %d tries failed, in %.1f s\n", out.Delayed, out.Delivered, out.Dead, out.Failed, out.Seconds)
	return nil
}
