package faults_test

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/cluster"
	"github.com/rabbitdelay/rabbitdelay/integration/faults"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// oneWay is a cluster. In every second partition, the isolated node still receives data from the others.
type oneWay struct {
	*cluster.Cluster
	turn int // counts partitions
}

func (o *oneWay) Leave(ctx context.Context, i int) error {
	if o.turn%2 == 0 {
		return o.Cluster.Leave(ctx, i)
	}
	return o.Mute(ctx, i)
}

func (o *oneWay) Join(ctx context.Context, i int) error {
	o.turn++
	if o.turn%2 == 1 {
		return o.Cluster.Join(ctx, i)
	}
	return o.Unmute(ctx, i)
}

// A node is isolated from the other two in both directions or in one. With pause_minority, which RabbitMQ 4.0 still
// supports, this node pauses, or all nodes do.
func TestPartitions(t *testing.T) {
	t.Parallel()
	skipIfAsked(t)
	for _, program := range []string{"nsenter", "iptables"} {
		if _, err := exec.LookPath(program); err != nil || os.Getuid() != 0 {
			t.Skipf("skipped: isolating a node requires root and %s (%v)", program, err)
		}
	}
	nodes := threeNodes(t, cluster.Options{
		Version: "4.0", TickTime: 4 * time.Second, Advanced: advanced("{cluster_partition_handling, pause_minority}"),
	})
	const twice10s = 80 // a seed that begins with two partitions of 10 s, of different nodes
	promised(t, run(t, faults.Config{
		Name: "pause_minority", Brokers: &oneWay{Cluster: nodes}, Strategy: faults.Strategy{Name: "bucket", QueueType: topology.Quorum},
		Seed: twice10s, Duration: *duration, Rate: *rate, Kinds: []faults.Kind{faults.Partition},
	}))
}
