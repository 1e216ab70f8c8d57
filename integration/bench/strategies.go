package bench

import (
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// strategyFor makes a strategy whose names begin with a prefix.
type strategyFor func(prefix string) (amqpx.Strategy, error)

func bucket(c dlx.BucketConfig) strategyFor {
	return func(prefix string) (amqpx.Strategy, error) {
		c.Prefix = prefix
		return dlx.NewBucket(c)
	}
}

// clock is the default.
func clock(t topology.QueueType) strategyFor { return bucket(dlx.BucketConfig{QueueType: t}) }

// hundredth is the finer resolution that is measured beside the default.
const (
	hundredth    = 10 * time.Millisecond
	atHundredths = ", 10 ms"
)

// alike is a layout with the default layout's resolution, whatever its own, so
// that both round alike.
func alike(layout string, t topology.QueueType) dlx.BucketConfig {
	return dlx.BucketConfig{Layout: layout, QueueType: t, Resolution: dlx.BucketConfig{}.WithDefaults().Resolution}
}

// pluggable is the plugin strategy; its destination's type is the client's.
func pluggable(prefix string) (amqpx.Strategy, error) {
	return plugin.New(plugin.Config{Prefix: prefix})
}
