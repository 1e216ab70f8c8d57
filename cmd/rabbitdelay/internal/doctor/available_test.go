package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// leaderless returns a snapshot of a cluster that has lost two of three nodes, read from the third node's management
// API.
func leaderless(t *testing.T) (Config, Snapshot) {
	t.Helper()
	cfg, snap := healthy(t)
	earlier, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{2, 2}})
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range earlier.Topology().Queues {
		snap.add(q.Name, plan.Queue{ArgumentsKnown: true, Type: topology.Quorum, Durable: true, Arguments: q.Table()})
	}
	snap.add("billing", plan.Queue{ArgumentsKnown: true, Type: topology.Quorum})
	for name := range snap.Live.Queues {
		snap.alter(name, func(q *plan.Queue) { q.Consumers, q.Unavailable = 0, "the queue's state is minority" })
	}
	snap.add("reports", plan.Queue{ArgumentsKnown: true, Type: topology.Classic, Unavailable: "the queue's state is down"})
	return cfg, snap
}

func TestLostMajorityComesFirst(t *testing.T) {
	cfg, snap := leaderless(t)
	r := Diagnose(cfg, snap)
	if len(r.Findings) == 0 || r.Findings[0].ID != "quorum-lost" {
		t.Fatalf("got the findings %+v, want quorum-lost first", r.Findings)
	}
	if !slices.Contains(r.Findings[0].Objects, "billing") {
		t.Errorf("quorum-lost: got the objects %v, want billing among them", r.Findings[0].Objects)
	}
	down := r.Findings[slices.IndexFunc(r.Findings, func(f Finding) bool { return f.ID == "queue-down" })]
	if !slices.Equal(down.Objects, []string{"reports"}) {
		t.Errorf("queue-down: got %+v, want Objects = [reports]", down)
	}
	if !slices.ContainsFunc(r.Unchecked, func(u Unchecked) bool { return u.Area == AreaMessages }) {
		t.Errorf("got the unchecked areas %+v, want the messages among them", r.Unchecked)
	}
}

// If messages in queues cannot be counted, the doctor does not advise deleting the layout, because messages could be
// lost.
func TestLeaderlessLayoutMayNotHaveDrained(t *testing.T) {
	cfg, snap := leaderless(t)
	notes := strings.Join(Diagnose(cfg, snap).Notes, "\n")
	if strings.Contains(notes, "destroy") {
		t.Errorf(`got the notes %s, want no "destroy" in them`, notes)
	}
	if !strings.Contains(notes, "it is unknown whether delay.bucket.r2x2 has drained") {
		t.Errorf(`got the notes %s, want them to say that it is unknown whether the layout has drained`, notes)
	}
}

func TestUnlistedStuckRoutes(t *testing.T) {
	cfg, snap := healthy(t)
	stuck := topology.Destination{Exchange: "events", RoutingKey: "order.paid"}.RouteQueue("delay")
	snap.add(stuck.Name, plan.Queue{ArgumentsKnown: true, Type: topology.Quorum, Durable: true, Arguments: stuck.Table(), Messages: 61})
	snap.add("delay.route.audit:by-amqp", plan.Queue{Messages: 2})
	for queue, words := range map[string]string{
		stuck.Name:                  `the exchange events with the routing key "order.paid"`,
		"delay.route.audit:by-amqp": "the exchange audit",
	} {
		r := Diagnose(cfg, snap)
		i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.ID == "route-stuck" && slices.Equal(f.Objects, []string{queue}) })
		if i < 0 || !strings.Contains(r.Findings[i].What, words) {
			t.Errorf("%s: got findings %+v, want route-stuck for this queue with %q in What", queue, r.Findings, words)
		}
	}
}
