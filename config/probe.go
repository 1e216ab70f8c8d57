package config

import (
	"context"
	"time"

	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// probeTimeout bounds a probe, including the connection.
const probeTimeout = 20 * time.Second

func (c *Config) newPlugin() (*plugin.Strategy, error) {
	return plugin.New(plugin.Config{Prefix: c.Delay.Prefix, MaxDelay: c.Delay.Plugin.Max})
}

// pluginStrategy probes for the plugin and creates the plugin strategy. If the broker does not have the plugin, the
// error wraps live.ErrNoPlugin.
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

// probeInstants returns an error that wraps live.ErrInstantsIgnored if the broker does not delay messages until a given
// time.
func (c *Config) probeInstants(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return live.ProbeInstants(ctx, c.Delay.Prefix, c.Dial)
}
