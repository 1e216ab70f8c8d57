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

// tenth is the coarser resolution beside which the clock's own is measured.
const (
	tenth    = 100 * time.Millisecond
	atTenths = ", 100 ms"
)

// inTenths is a layout with a resolution of a tenth of a second, whatever its
// own, so that layouts are compared that round alike.
func inTenths(layout string, t topology.QueueType) dlx.BucketConfig {
	return dlx.BucketConfig{Layout: layout, QueueType: t, Resolution: tenth}
}

// pluggable is the plugin strategy; its destination's type is the client's.
func pluggable(prefix string) (amqpx.Strategy, error) {
	return plugin.New(plugin.Config{Prefix: prefix})
}
