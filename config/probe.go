package config

import (
	"context"
	"time"

	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// probeTimeout bounds a probe, dialing included.
const probeTimeout = 20 * time.Second

func (c *Config) newPlugin() (*plugin.Strategy, error) {
	return plugin.New(plugin.Config{Prefix: c.Delay.Prefix, MaxDelay: c.Delay.Plugin.Max})
}

// pluginStrategy makes the plugin strategy. Without the plugin on the broker, the error wraps
// live.ErrNoPlugin.
func (c *Config) pluginStrategy(ctx context.Context) (*plugin.Strategy, error) {
	s, err := c.newPlugin()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if err := live.ProbePlugin(ctx, c.Dial); err != nil {
		return nil, err
	}
	return s, nil
}

// probeInstants returns live.ErrInstantsIgnored unless the broker delays by an instant.
func (c *Config) probeInstants(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return live.ProbeInstants(ctx, c.Delay.Prefix, c.Dial)
}
