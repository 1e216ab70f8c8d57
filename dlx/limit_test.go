package dlx_test

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// A message cannot be lost because it is delivered too often, for example to an operator who peeks at it: the delivery
// limit of every quorum queue is too high to be reached, and a classic queue has none.
func TestQuorumQueuesHaveAnUnreachableDeliveryLimit(t *testing.T) {
	var all []topology.Queue
	for _, qt := range []topology.QueueType{topology.Quorum, topology.Classic} {
		bucket, err := dlx.NewBucket(dlx.BucketConfig{QueueType: qt})
		if err != nil {
			t.Fatalf("a strategy with %s queues: got %v, want no error", qt, err)
		}
		ttl, err := dlx.NewTTL(dlx.TTLConfig{QueueType: qt, Delays: []time.Duration{time.Minute}})
		if err != nil {
			t.Fatalf("a strategy with %s queues: got %v, want no error", qt, err)
		}
		all = append(all, newNative(t, dlx.NativeConfig{}).Topology().Queues...)
		described := topology.Topology{Destinations: []topology.Destination{{Queue: "q"}, {Exchange: "e", RoutingKey: "k", DeadLetter: "d"}}}
		all = append(all, bucket.Topology().Queues...)
		all = append(all, ttl.Topology().Queues...)
		all = append(all, described.WithDestinationQueues("delay", qt).Queues...)
	}
	for _, q := range all {
		want := any(topology.NoDeliveryLimit)
		if q.Type == topology.Classic {
			want = nil
		}
		if got := q.Table()[argument.DeliveryLimit]; got != want {
			t.Errorf("%s queue %s: got the delivery limit %v, want %v", q.Type, q.Name, got, want)
		}
	}
}
