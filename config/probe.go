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

// pluginStrategy makes the plugin strategy when the broker has the plugin; the
// error wraps live.ErrNoPlugin when it has not.
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

// probeInstants asks the broker whether it delays by an instant.
func (c *Config) probeInstants(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return live.ProbeInstants(ctx, c.Delay.Prefix, c.Dial)
}
