package amqpx

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// AutoConfig configures NewAuto.
type AutoConfig struct {
	// Bucket is used for every delay for which no other strategy is chosen. It is required.
	Bucket *dlx.Bucket
	// TTL is used for exactly the delays that it declares. It may be nil.
	TTL *dlx.TTL
	// Plugin is used for delays from PluginMin to PluginMax, both inclusive. It may be nil. Set it only if
	// live.ProbePlugin has found the plugin on the broker.
	Plugin               Strategy
	PluginMin, PluginMax time.Duration
	// Native is used instead of Bucket for every remaining delay. It may be nil. Bucket's queues are declared even if
	// Native is set. Set it only if live.ProbeInstants has found that the broker delays messages until a given time.
	Native *dlx.Native
}

// auto is the strategy that NewAuto returns.
type auto struct {
	cfg  AutoConfig
	all  []Strategy // the strategies that may be selected, beginning with Bucket
	topo topology.Topology
}

// NewAuto returns a strategy that selects another one by the delay: TTL if the delay is declared exactly, otherwise
// Plugin if the delay is in its range, otherwise Native if it is set, and otherwise Bucket. The choice depends only on
// the configuration and the delay, so all producers with the same configuration make the same choice. Errors wrap
// ErrConfig.
func NewAuto(c AutoConfig) (Strategy, error) {
	if c.Bucket == nil {
		return nil, fmt.Errorf("%w: Bucket is nil; the auto strategy needs it for delays that no other strategy handles", ErrConfig)
	}
	if v := reflect.ValueOf(c.Plugin); v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, fmt.Errorf("%w: Plugin is a nil %T; use the result of its constructor, whose error says why it is nil", ErrConfig, c.Plugin)
	}
	all := []Strategy{c.Bucket}
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
			return nil, fmt.Errorf("%w: the %s strategy has the prefix %q, but the %s strategy has %q; set the same prefix for both", ErrConfig, c.Bucket.Name(), c.Bucket.Prefix(), s.Name(), s.Prefix())
		}
		more = append(more, s.Topology())
	}
	if c.Plugin != nil && (c.PluginMin < 0 || c.PluginMax < c.PluginMin || c.PluginMax > c.Plugin.MaxDelay()) {
		return nil, fmt.Errorf("%w: plugin range %s to %s; expected 0 or more, in order, and at most %s", ErrConfig,
			topology.FormatDuration(c.PluginMin), topology.FormatDuration(c.PluginMax), topology.FormatDuration(c.Plugin.MaxDelay()))
	}
	topo, err := c.Bucket.Topology().Merge(more...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return &auto{cfg: c, all: all, topo: topo}, nil
}

// Name returns "auto".
func (a *auto) Name() string { return "auto" }

// Topology returns the merged topology of all strategies that may be selected.
func (a *auto) Topology() topology.Topology { return a.topo }

// Prefix returns the prefix of the names of all broker objects.
func (a *auto) Prefix() string { return a.cfg.Bucket.Prefix() }

// MaxDelay returns the longest delay that any of the strategies is used for, which for Plugin is PluginMax.
func (a *auto) MaxDelay() time.Duration {
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

// Bindings returns the bindings of all strategies, because messages for one destination may have delays of any length.
func (a *auto) Bindings(dest topology.Destination) []topology.Binding {
	var all []topology.Binding
	for _, s := range a.all {
		all = append(all, s.Bindings(dest)...)
	}
	return all
}

// Canary returns the test bindings and routes of the native strategy (see InstantProber). It returns nothing if there
// is no native strategy, because the other strategies do not need to be tested.
func (a *auto) Canary(queue string) ([]topology.Binding, []topology.Route) {
	if a.cfg.Native == nil {
		return nil, nil
	}
	return a.cfg.Native.Canary(queue)
}

// choose selects the strategy for a delay by the rules that NewAuto describes.
func (a *auto) choose(delay time.Duration) Strategy {
	switch {
	case a.cfg.TTL != nil && a.cfg.TTL.Declares(delay):
		return a.cfg.TTL
	case a.cfg.Plugin != nil && delay >= a.cfg.PluginMin && delay <= a.cfg.PluginMax:
		return a.cfg.Plugin
	case a.cfg.Native != nil:
		return a.cfg.Native
	}
	return a.cfg.Bucket
}

// Route returns the route of the strategy that choose selects. If that strategy does not support the delay, the error
// names MaxDelay in place of its own longest delay.
func (a *auto) Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error) {
	r, err := a.choose(delay).Route(dest, delay, tolerance)
	if de, ok := errors.AsType[*topology.DelayError](err); ok {
		out := *de
		out.Max = a.MaxDelay()
		return r, &out
	}
	return r, err
}
