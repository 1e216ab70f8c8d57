package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

func (d Delay) bucketConfig(l Layout) dlx.BucketConfig {
	return dlx.BucketConfig{
		Prefix: d.Prefix, Layout: l.Layout, Radices: l.Radices, Resolution: l.Resolution,
		QueueType: d.QueueType, TopicPermissions: d.TopicPermissions,
	}
}

func (d Delay) levels(l Layout) dlx.LevelsConfig {
	return dlx.LevelsConfig{Prefix: d.Prefix, Layout: l.Layout, QueueType: d.QueueType}
}

// foreign reports whether the delay queues belong to another system. In that case the other system's programs declare
// the queues from which they consume.
func (d Delay) foreign() bool {
	return d.Strategy == StrategyBucket && foreign.IsLayout(d.Bucket.Layout)
}

// bucket creates the strategy of a bucket layout or of another system's layout.
func (d Delay) bucket() (amqpx.Strategy, error) {
	if foreign.IsLayout(d.Bucket.Layout) {
		return dlx.NewLevels(d.levels(d.Bucket))
	}
	return dlx.NewBucket(d.bucketConfig(d.Bucket))
}

func (d Delay) ttl() (*dlx.TTL, error) {
	return dlx.NewTTL(dlx.TTLConfig{
		Prefix: d.Prefix, Delays: d.TTL.Delays, RoundUp: d.TTL.RoundUp,
		QueueType: d.QueueType, TopicPermissions: d.TopicPermissions,
	})
}

func (d Delay) nativeStrategy() (*dlx.Native, error) {
	return dlx.NewNative(dlx.NativeConfig{Prefix: d.Prefix, Queues: d.Native.Queues, TopicPermissions: d.TopicPermissions})
}

// offline creates the strategies that need no broker.
func (c *Config) offline() ([]amqpx.Strategy, error) {
	var list []amqpx.Strategy
	if s := c.Delay.Strategy; s == StrategyBucket || s == StrategyAuto {
		b, err := c.Delay.bucket()
		if err != nil {
			return nil, err
		}
		list = append(list, b)
	}
	if s := c.Delay.Strategy; s == StrategyTTL || s == StrategyAuto && len(c.Delay.TTL.Delays) > 0 {
		t, err := c.Delay.ttl()
		if err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	if s := c.Delay.Strategy; s == StrategyNative || s == StrategyAuto && c.Delay.Native.Auto {
		n, err := c.Delay.nativeStrategy()
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}

// Strategy creates the configured strategy, and logs it with the reason for its choice. It connects to the broker only
// to find out which features the broker has: the plugin (strategy plugin, or auto with a range for the plugin), and
// delays until a given time (auto with delay.native.auto).
//
// The strategy auto does not use features that the broker does not have. With the strategy plugin, a broker without the
// plugin is an error. For the strategy native, nothing is tested here, because each client tests the broker itself.
func (c *Config) Strategy(ctx context.Context, log *zap.Logger) (amqpx.Strategy, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s, reason, err := c.choose(probes{
		plugin:   func() (*plugin.Strategy, error) { return c.pluginStrategy(ctx) },
		instants: func() error { return c.probeInstants(ctx) },
	})
	if err != nil {
		return nil, err
	}
	if log != nil {
		log.Info("strategy", zap.String("strategy", s.Name()), zap.String("reason", reason), zap.String("max_delay", topology.FormatDuration(s.MaxDelay())))
	}
	return c.withPrevious(s)
}

// Offline works like Strategy but does not connect to the broker. It assumes that the broker has all features that
// the settings need.
func (c *Config) Offline() (amqpx.Strategy, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s, _, err := c.choose(probes{plugin: c.newPlugin, instants: func() error { return nil }})
	if err != nil {
		return nil, err
	}
	return c.withPrevious(s)
}

// probes contains the functions that test a broker's features.
type probes struct {
	plugin   func() (*plugin.Strategy, error) // returns live.ErrNoPlugin if the broker does not have the plugin
	instants func() error                     // returns live.ErrInstantsIgnored if the broker does not delay until a given time
}

func (c *Config) choose(p probes) (s amqpx.Strategy, reason string, err error) {
	reason = "delay.strategy is " + c.Delay.Strategy
	switch c.Delay.Strategy {
	case StrategyBucket:
		s, err = c.Delay.bucket()
	case StrategyTTL:
		s, err = c.Delay.ttl()
	case StrategyPlugin:
		s, err = p.plugin()
	case StrategyNative:
		s, err = c.Delay.nativeStrategy()
	default:
		return c.auto(p)
	}
	return s, reason, err
}

func (c *Config) auto(has probes) (amqpx.Strategy, string, error) {
	var cfg amqpx.AutoConfig
	var err error
	if cfg.Bucket, err = dlx.NewBucket(c.Delay.bucketConfig(c.Delay.Bucket)); err != nil {
		return nil, "", err
	}
	reason := "bucket for every delay"
	if len(c.Delay.TTL.Delays) > 0 {
		if cfg.TTL, err = c.Delay.ttl(); err != nil {
			return nil, "", err
		}
		reason = fmt.Sprintf("ttl for the %d delays of delay.ttl.delays, bucket for all others", len(c.Delay.TTL.Delays))
	}
	if p := c.Delay.Plugin; p.Min > 0 || p.Max > 0 {
		cfg.PluginMin, cfg.PluginMax = p.Min, cmp.Or(p.Max, plugin.MaxDelay)
		s, err := has.plugin()
		switch {
		case errors.Is(err, live.ErrNoPlugin):
			cfg.PluginMin, cfg.PluginMax = 0, 0
			reason += "; no plugin, because the broker does not have it"
		case err != nil:
			return nil, "", err
		default:
			cfg.Plugin = s
			reason += fmt.Sprintf("; plugin from %v to %v", cfg.PluginMin, cfg.PluginMax)
		}
	}
	if c.Delay.Native.Auto {
		switch err := has.instants(); {
		case errors.Is(err, live.ErrInstantsIgnored):
			reason += "; not native, because the broker does not delay messages until a given time"
		case err != nil:
			return nil, "", err
		default:
			if cfg.Native, err = c.Delay.nativeStrategy(); err != nil {
				return nil, "", err
			}
			reason += "; native instead of bucket, because the broker delays messages until a given time"
		}
	}
	a, err := amqpx.NewAuto(cfg)
	return a, reason, err
}

// drained is a strategy that also keeps destinations bound to the previous layouts, until those are drained.
type drained struct {
	amqpx.Strategy
	previous []amqpx.Strategy
}

func (c *Config) withPrevious(s amqpx.Strategy) (amqpx.Strategy, error) {
	if len(c.Delay.Previous) == 0 {
		return s, nil
	}
	d := &drained{Strategy: s}
	for i, p := range c.Delay.Previous {
		s, err := c.Delay.before(p)
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", previousPath, i, err)
		}
		d.previous = append(d.previous, s)
	}
	return d, nil
}

// before creates the strategy of a previous layout.
func (d Delay) before(p Previous) (amqpx.Strategy, error) {
	d.QueueType = cmp.Or(p.QueueType, d.QueueType)
	switch p.Strategy {
	case StrategyTTL:
		d.TTL = TTL{Delays: p.Delays}
		return d.ttl()
	case StrategyPlugin:
		return plugin.New(plugin.Config{Prefix: d.Prefix})
	case StrategyNative:
		d.Native.Queues = p.Queues
		return d.nativeStrategy()
	}
	d.Bucket = Layout{Layout: p.Layout, Radices: p.Radices, Resolution: p.Resolution}
	return d.bucket()
}

// Canary returns the bindings and routes with which a client tests the current strategy; see amqpx.InstantProber. The
// previous layouts need no test, because no messages are sent through them.
func (d *drained) Canary(queue string) ([]topology.Binding, []topology.Route) {
	if s, ok := d.Strategy.(amqpx.InstantProber); ok {
		return s.Canary(queue)
	}
	return nil, nil
}

// Bindings returns the strategy's bindings and those of the previous layouts.
func (d *drained) Bindings(dest topology.Destination) []topology.Binding {
	bindings := d.Strategy.Bindings(dest)
	for _, p := range d.previous {
		for _, b := range p.Bindings(dest) {
			if !slices.ContainsFunc(bindings, func(a topology.Binding) bool { return a.Exchange == b.Exchange && a.RoutingKey == b.RoutingKey }) {
				bindings = append(bindings, b)
			}
		}
	}
	return bindings
}

// Client returns the configuration of an amqpx.Client with the strategy. It reads the TLS files and the password
// file, so that mistakes are reported immediately. Without a broker's address it returns ErrNoBroker.
func (c *Config) Client(s amqpx.Strategy, log *zap.Logger) (amqpx.Config, error) {
	b := &c.Broker
	if b.first() == "" {
		return amqpx.Config{}, ErrNoBroker
	}
	getTLS, problem := b.TLS.reloading(log)
	if problem == nil && b.PasswordFile != "" {
		if _, err := readSecret(b.PasswordFile); err != nil {
			problem = &topology.Problem{Path: "broker.password_file", Message: err.Error()}
		}
	}
	if problem != nil {
		return amqpx.Config{}, &Error{File: c.file, Problems: []topology.Problem{*problem}}
	}
	cfg := b.Config
	cfg.GetTLS, cfg.Login, cfg.URL, cfg.URLs = getTLS, b.source(), "", nil
	cfg.Strategy, cfg.QueueType, cfg.Destinations = s, c.Delay.QueueType, c.Topology.Destinations
	cfg.Lead = c.Delay.Lead
	cfg.Logger = log
	for _, u := range b.nodes() {
		cfg.URLs = append(cfg.URLs, string(u))
	}
	return cfg, nil
}

// Listed returns the error with which a client with this configuration would reject dest, or nil if the client would
// accept it. A client rejects the delay strategies' own objects and, if broker.declare is listed, destinations that the
// file does not list.
func (c *Config) Listed(dest topology.Destination) error {
	if err := dest.Validate(c.Delay.Prefix); err != nil {
		return err
	}
	return amqpx.Config{Declare: c.Broker.Declare, Destinations: c.Topology.Destinations}.Listed(dest)
}

// Describe returns all objects that must exist on the broker: the strategy's objects, the file's own objects, the
// destinations' queues, and the bindings to them. It returns a topology.ErrMerge if the file and the strategy describe
// the same object differently.
func (c *Config) Describe(s amqpx.Strategy) (topology.Topology, error) {
	own := c.ownQueues()
	var bound topology.Topology
	for _, d := range c.Topology.Destinations {
		if _, err := s.Route(d, 0, 0); err != nil {
			return topology.Topology{}, err
		}
		bound.Bindings = append(bound.Bindings, s.Bindings(d)...)
	}
	return s.Topology().Merge(own, bound)
}

// ownQueues returns the file's own objects, with the queues of its destinations. If the delay queues belong to another
// system, it leaves out the queues of queue destinations, because that system declares them.
func (c *Config) ownQueues() topology.Topology {
	own := c.Topology
	if c.Delay.foreign() {
		own.Destinations = slices.DeleteFunc(slices.Clone(own.Destinations), func(d topology.Destination) bool { return !d.ToExchange() })
	}
	own = own.WithDestinationQueues(c.Delay.Prefix, c.Delay.QueueType)
	own.Destinations = c.Topology.Destinations
	return own
}

// DescribePrevious returns the objects that the retire command deletes: the queues, exchanges and bindings of the
// previous layouts that the current layout does not use, and the bindings of the file's destinations to these layouts.
func (c *Config) DescribePrevious(s amqpx.Strategy) (topology.Topology, error) {
	d, ok := s.(*drained)
	if !ok {
		return topology.Topology{}, nil
	}
	present := d.Strategy.Topology()
	var before topology.Topology
	for _, p := range d.previous {
		t := p.Topology()
		for _, dest := range c.Topology.Destinations {
			t.Bindings = append(t.Bindings, p.Bindings(dest)...)
		}
		var err error
		if before, err = before.Merge(t); err != nil {
			return topology.Topology{}, err
		}
	}
	for _, dest := range c.Topology.Destinations {
		present.Bindings = append(present.Bindings, d.Strategy.Bindings(dest)...)
	}
	shared, err := topology.DeliveryTopology(c.Delay.Prefix).Merge(present)
	if err != nil {
		return topology.Topology{}, err
	}
	return without(before, shared), nil
}

// without returns t without the exchanges, queues and bindings that other contains.
func without(t, other topology.Topology) topology.Topology {
	t.Exchanges = unlike(t.Exchanges, other.Exchanges, func(e topology.Exchange) string { return e.Name })
	t.Queues = unlike(t.Queues, other.Queues, func(q topology.Queue) string { return q.Name })
	t.Bindings = unlike(t.Bindings, other.Bindings, topology.Binding.String)
	return t
}

// unlike returns the items of list whose names do not occur in others.
func unlike[T any](list, others []T, name func(T) string) []T {
	names := map[string]bool{}
	for _, x := range others {
		names[name(x)] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(x T) bool { return names[name(x)] })
}

// DescribeAll returns the same as Describe plus the objects of the previous layouts. The command destroy chooses from
// these objects when it deletes the current and the previous layouts.
func (c *Config) DescribeAll(s amqpx.Strategy) (topology.Topology, error) {
	all, err := c.Describe(s)
	if err != nil {
		return topology.Topology{}, err
	}
	if d, ok := s.(*drained); ok {
		for _, p := range d.previous {
			if all, err = all.Merge(p.Topology()); err != nil {
				return topology.Topology{}, err
			}
		}
	}
	return all, nil
}

// RateLimits returns the rate limits of the file's destinations, for schedule.Config. A destination without a rate
// limit is included with PerSecond 0, which removes a rate limit that an earlier version of the file set.
func (c *Config) RateLimits() []schedule.RateLimit {
	var list []schedule.RateLimit
	at := map[[2]string]int{}
	for _, d := range c.Topology.Destinations {
		lane := [2]string{d.Queue, d.Exchange}
		i, listed := at[lane]
		if !listed {
			i = len(list)
			at[lane] = i
			list = append(list, schedule.RateLimit{Queue: d.Queue, Exchange: d.Exchange})
		}
		if d.RateLimit != nil { // all rate limits of an exchange's destinations are equal
			list[i].PerSecond, list[i].Burst = d.RateLimit.PerSecond, d.RateLimit.Burst
		}
	}
	return list
}
