// Package auto chooses among strategies by a message's delay.
package auto

import (
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Config configures New.
type Config struct {
	// Bucket takes every delay that no other strategy takes. Required.
	Bucket *dlx.Bucket
	// TTL takes the delays that it declares exactly; nil for none.
	TTL *dlx.TTL
	// Plugin takes delays from PluginMin to PluginMax, both inclusive; nil for none. Give it only when the probe
	// has found the plugin.
	Plugin               amqpx.Strategy
	PluginMin, PluginMax time.Duration
	// Native takes every delay that is left, instead of Bucket, whose queues stay; nil for none. Give it only
	// when live.ProbeInstants has found that the broker delays by an instant.
	Native *dlx.Native
}

// Strategy chooses a strategy by the delay: ttl where the delay is declared exactly, else plugin in its range,
// else native if it is given, else bucket. The choice depends on the configuration and the delay alone, so two
// producers never disagree.
type Strategy struct {
	cfg  Config
	all  []amqpx.Strategy // that may be chosen, Bucket first
	topo topology.Topology
}

// New combines strategies. The error wraps amqpx.ErrConfig.
func New(c Config) (*Strategy, error) {
	if c.Bucket == nil {
		return nil, fmt.Errorf("%w: Bucket is nil; the auto strategy needs it for the delays of no other strategy", amqpx.ErrConfig)
	}
	all := []amqpx.Strategy{c.Bucket}
	if c.TTL != nil {
		all = append(all, c.TTL)
	}
	if c.Plugin != nil {
		all = append(all, c.Plugin)
	}
	if c.Native != nil {
		all = append(all, c.Native)
	}
	var more []topology.Topology
	for _, s := range all[1:] {
		if s.Prefix() != c.Bucket.Prefix() {
			return nil, fmt.Errorf("%w: the %s strategy has the prefix %q and the %s strategy %q; give both the same", amqpx.ErrConfig, c.Bucket.Name(), c.Bucket.Prefix(), s.Name(), s.Prefix())
		}
		more = append(more, s.Topology())
	}
	if c.Plugin != nil && (c.PluginMin < 0 || c.PluginMax < c.PluginMin || c.PluginMax > c.Plugin.MaxDelay()) {
		return nil, fmt.Errorf("%w: plugin range %s to %s; expected 0 or more, in order, and at most %s", amqpx.ErrConfig,
			topology.FormatDuration(c.PluginMin), topology.FormatDuration(c.PluginMax), topology.FormatDuration(c.Plugin.MaxDelay()))
	}
	topo, err := c.Bucket.Topology().Merge(more...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", amqpx.ErrConfig, err)
	}
	return &Strategy{cfg: c, all: all, topo: topo}, nil
}

// Name is auto.
func (a *Strategy) Name() string { return "auto" }

// Topology is that of all strategies that may be chosen.
func (a *Strategy) Topology() topology.Topology { return a.topo }

// Prefix begins the names of all broker objects.
func (a *Strategy) Prefix() string { return a.cfg.Bucket.Prefix() }

// MaxDelay is the longest delay of any of them.
func (a *Strategy) MaxDelay() time.Duration {
	d := a.cfg.Bucket.MaxDelay()
	if a.cfg.TTL != nil {
		d = max(d, a.cfg.TTL.MaxDelay())
	}
	if a.cfg.Plugin != nil {
		d = max(d, a.cfg.PluginMax)
	}
	if a.cfg.Native != nil {
		d = max(d, a.cfg.Native.MaxDelay())
	}
	return d
}

// Bindings are those of all strategies.
func (a *Strategy) Bindings(dest topology.Destination) []topology.Binding {
	var all []topology.Binding
	for _, s := range a.all {
		all = append(all, s.Bindings(dest)...)
	}
	return all
}

// Canary is that of the native strategy; without it there is nothing to prove.
func (a *Strategy) Canary(queue string) ([]topology.Binding, []topology.Route) {
	if a.cfg.Native == nil {
		return nil, nil
	}
	return a.cfg.Native.Canary(queue)
}

// Choose returns the strategy for a delay, and why.
func (a *Strategy) Choose(delay time.Duration) (s amqpx.Strategy, reason string) {
	switch {
	case a.cfg.TTL != nil && a.cfg.TTL.Declares(delay):
		return a.cfg.TTL, fmt.Sprintf("%s is declared as a ttl", topology.FormatDuration(delay))
	case a.cfg.Plugin != nil && delay >= a.cfg.PluginMin && delay <= a.cfg.PluginMax:
		return a.cfg.Plugin, fmt.Sprintf("%s is within the plugin's range %s to %s", topology.FormatDuration(delay), topology.FormatDuration(a.cfg.PluginMin), topology.FormatDuration(a.cfg.PluginMax))
	case a.cfg.Native != nil:
		return a.cfg.Native, fmt.Sprintf("%s is neither declared as a ttl nor in the plugin's range, and the broker delays by an instant", topology.FormatDuration(delay))
	}
	return a.cfg.Bucket, fmt.Sprintf("%s is neither declared as a ttl nor in the plugin's range", topology.FormatDuration(delay))
}

// Route asks the chosen strategy.
func (a *Strategy) Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error) {
	s, _ := a.Choose(delay)
	r, err := s.Route(dest, delay, tolerance)
	if de, ok := errors.AsType[*topology.DelayError](err); ok {
		out := *de
		out.Max = a.MaxDelay()
		return r, &out
	}
	return r, err
}
