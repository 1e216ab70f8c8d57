package operations_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/cluster"
	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// TestDoctorOnCluster checks the doctor's findings about nodes and replicas.
func TestDoctorOnCluster(t *testing.T) {
	t.Parallel()
	if os.Getenv(servers.EnvSkip) == "1" || testing.Short() {
		t.Skip("skipped: it starts a cluster")
	}
	cl, err := cluster.Start(t.Context(), cluster.Options{Log: func(line string) { t.Log(line) }})
	if errors.Is(err, cluster.ErrUnavailable) {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	})
	names := strings.Fields(suite.Docker(t, "ps", "--filter", "label=rabbitdelay=cluster", "--filter",
		fmt.Sprintf("name=rabbitdelay-%d-", os.Getpid()), "--format", "{{.Names}}"))
	slices.Sort(names)
	if len(names) != cl.Nodes() {
		t.Fatalf("got the containers %v, want %d", names, cl.Nodes())
	}
	for _, n := range names {
		suite.Docker(t, "exec", n, "rabbitmq-plugins", "enable", "rabbitmq_management")
	}
	address := suite.Docker(t, "inspect", "--format", "{{(index .NetworkSettings.Networks \"bridge\").IPAddress}}", names[0])

	v := &suite.Vhost{Name: "/", URL: cl.URLs()[0]}
	v.Conn = v.Dial(t)
	if v.Mgmt, err = live.NewManagement(live.ManagementConfig{URL: "http://" + address + ":15672"}); err != nil {
		t.Fatal(err)
	}
	c := newClinic(t, v, []int{3}, topology.Destination{Queue: "orders.expire"})
	suite.MustApply(t, v.Unmanaged(), c.cfg.Want)
	classic, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2}, QueueType: topology.Classic})
	if err != nil {
		t.Fatal(err)
	}
	c.clean(t, "a cluster")

	// With one address, the doctor measures one node's clock and names the other nodes. With all addresses, it measures
	// each clock.
	if r := c.examine(t); len(r.Clocks) != 1 || !strings.Contains(fmt.Sprint(r.Unchecked), "no address in the settings leads to rabbit@n") {
		t.Errorf(`with one address: got clocks %+v and unchecked areas %+v, want one clock and an area containing "no address in the settings leads to rabbit@n"`, r.Clocks, r.Unchecked)
	}
	for _, url := range cl.URLs() {
		c.src.Nodes = append(c.src.Nodes, snapshot.Node{Address: url, Dial: func(context.Context) (*amqp.Connection, error) { return amqp.Dial(url) }})
	}
	clocks := c.examine(t).Clocks
	if len(clocks) != 3 || clocks[0].Node != "rabbit@n1" || clocks[1].Node != "rabbit@n2" || clocks[2].Node != "rabbit@n3" {
		t.Errorf(`got the clocks %+v, want those of rabbit@n1, rabbit@n2 and rabbit@n3`, clocks)
	}

	// One quorum queue has only two replicas, and classic queues have one each.
	const few = "delay.bucket.r3.100ms"
	suite.Docker(t, "exec", names[0], "rabbitmq-queues", "delete_member", "--vhost", "/", few, "rabbit@n3")
	top, err := c.cfg.Want.Merge(classic.Topology())
	if err != nil {
		t.Fatal(err)
	}
	suite.MustApply(t, v.Unmanaged(), classic.Topology())
	c.cfg.Want = top
	r := c.until(t, "the report contains the queues with too few replicas", func(r doctor.Report) bool {
		_, replicas := find(r, "quorum-members", few)
		_, one := find(r, "classic-on-cluster", "delay.bucket.r2-classic.100ms")
		return replicas && one
	})
	if len(r.Findings) != 2 {
		t.Errorf("got\n%s\nwant 2 findings", render(r))
	}

	// A node is down, and so is one replica of each other queue.
	if err := cl.Stop(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	r = c.until(t, "the report contains the node and the replica that are down", func(r doctor.Report) bool {
		_, node := find(r, "node-down", "")
		_, replica := find(r, "quorum-offline", "delay.bucket.r3.200ms")
		return node && replica
	})
	t.Logf("\n%s", render(r))
	if len(r.Clocks) != 2 || !strings.Contains(fmt.Sprint(r.Unchecked), cl.URLs()[2]) {
		t.Errorf("with a node down: got clocks %+v and unchecked areas %+v, want two clocks and the node's address as unchecked", r.Clocks, r.Unchecked)
	}
	if f, _ := find(r, "node-down", ""); !slices.Equal(f.Objects, []string{"rabbit@n3"}) {
		t.Errorf("got the finding %+v, want Objects = [rabbit@n3]", f)
	}
	if r.Count(doctor.SeverityCritical) > 0 {
		t.Errorf("with a majority up:\n%s\nwant no critical findings", render(r))
	}

	// The plugin stores its messages on one node only.
	c.cfg.Plugin = doctor.PluginRequired
	c.src.Management = nil
	c.src.ProbePlugin = func(context.Context) (bool, error) { return true, nil }
	c.src.Dial = func(context.Context) (*amqp.Connection, error) { return amqp.Dial(cl.URLs()[1]) }
	if r := c.examine(t); !strings.Contains(strings.Join(r.Notes, "\n"), "lost if it is lost") {
		t.Errorf("got\n%s\nwant a note with \"lost if it is lost\"", render(r))
	}
}
