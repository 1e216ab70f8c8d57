package faults

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Strategy describes how a run delays its messages.
type Strategy struct {
	Name      string             `json:"name"`       // bucket, ttl, plugin or native
	QueueType topology.QueueType `json:"queue_type"` // type of the delay queues and of the destination
	Layout    string             `json:"layout"`     // layout of the bucket strategy: clock, hex or binary; default clock
}

// ttls lists the delays of the ttl strategy.
var ttls = []time.Duration{
	200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, MaxDelay,
}

func (s Strategy) build() (amqpx.Strategy, error) {
	switch s.Name {
	case "bucket":
		return dlx.NewBucket(dlx.BucketConfig{QueueType: s.QueueType, Layout: s.Layout})
	case "ttl":
		return dlx.NewTTL(dlx.TTLConfig{QueueType: s.QueueType, Delays: ttls})
	case "plugin":
		return plugin.New(plugin.Config{})
	case "native":
		return dlx.NewNative(dlx.NativeConfig{})
	default:
		return nil, fmt.Errorf("strategy %q; want bucket, ttl, plugin or native", s.Name)
	}
}

// delay returns a random delay that the strategy supports.
func (s Strategy) delay() time.Duration {
	if s.Name == "ttl" {
		return ttls[rand.IntN(len(ttls))]
	}
	return 200*time.Millisecond + rand.N(MaxDelay-200*time.Millisecond).Truncate(time.Millisecond)
}

// clientConfig returns the configuration that producers and consumers share. It makes clients detect dead connections
// quickly, so that a run has time for many faults.
func clientConfig(urls []string, s Strategy) (amqpx.Config, error) {
	strategy, err := s.build()
	if err != nil {
		return amqpx.Config{}, err
	}
	return amqpx.Config{
		URL: urls[0], URLs: urls[1:], Strategy: strategy, QueueType: s.QueueType,
		Heartbeat: 2 * time.Second, DialTimeout: 4 * time.Second,
		ReconnectMin: 50 * time.Millisecond, ReconnectMax: time.Second,
	}, nil
}

// The names of the workload on the broker. Messages also reach the queue through an exchange, in order to test route
// queues.
const (
	destination = "faults.orders"
	events      = "faults.events"
	eventKey    = "order.expired"
)

func workloadTopology(t topology.QueueType) topology.Topology {
	return topology.Topology{
		Exchanges: []topology.Exchange{{Name: events, Kind: "topic"}},
		Queues: slices.Concat( // the same arguments as in the client's declaration
			topology.Destination{Queue: destination}.Queues(t), topology.Destination{Queue: taskQueue}.Queues(t)),
		Bindings: []topology.Binding{{Exchange: events, Queue: destination, RoutingKey: "order.*"}},
	}
}
