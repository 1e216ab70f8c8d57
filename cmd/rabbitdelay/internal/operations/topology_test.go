package operations_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// buckets returns the objects of a bucket strategy with one destination. The clock layout has 283 queues, hex has 120,
// and binary has 31.
func buckets(t *testing.T, layout string, qt topology.QueueType) topology.Topology {
	t.Helper()
	b, err := dlx.NewBucket(dlx.BucketConfig{Layout: layout, QueueType: qt})
	if err != nil {
		t.Fatal(err)
	}
	dest := topology.Destination{Queue: "orders.expire"}
	top := b.Topology()
	top.Destinations = append(top.Destinations, dest)
	top.Bindings = append(top.Bindings, b.Bindings(dest)...)
	return top.WithDestinationQueues(topology.DefaultPrefix, qt)
}

// longest returns the delay queue with the longest TTL.
func longest(top topology.Topology) topology.Queue {
	var out topology.Queue
	for _, q := range top.Queues {
		if q.IsDelay() && (out.MessageTTL == nil || *q.MessageTTL > *out.MessageTTL) {
			out = q
		}
	}
	return out
}

// bothInspectors returns the two ways to read a broker.
func bothInspectors(v *suite.Vhost) map[string]live.Inspector {
	return map[string]live.Inspector{"AMQP": live.NewAMQPInspector(v.Conn), "management API": v.Mgmt}
}

func TestTopologyPlanApplyPlan(t *testing.T) {
	t.Parallel()
	suite.OnVhosts(t, func(t *testing.T, v *suite.Vhost) {
		for qt, layout := range map[topology.QueueType]string{topology.Classic: dlx.LayoutBinary, topology.Quorum: dlx.LayoutHex} {
			want := buckets(t, layout, qt)
			objects := len(want.Exchanges) + len(want.Queues) + len(want.Bindings)
			fresh := suite.NewVhost(t, v.Broker)
			for name, insp := range bothInspectors(fresh) {
				p, err := live.Broker{Inspector: insp}.Plan(t.Context(), want)
				if err != nil {
					t.Fatal(err)
				}
				if p.Count(plan.ActionCreate) != objects || p.Empty() {
					t.Errorf("%s %s before apply: the plan creates %d objects, want all %d\n%s", name, qt, p.Count(plan.ActionCreate), objects, p)
				}
			}
			cold := suite.MustApply(t, fresh.Managed(), want)
			if cold.Count(live.StateCreated) != objects {
				t.Errorf("%s: first apply: got %s, want %d created", qt, cold, objects)
			}
			warm := suite.MustApply(t, fresh.Managed(), want)
			if warm.Count(live.StateExisted) != objects {
				t.Errorf("%s: second apply: got %s, want %d existed", qt, warm, objects)
			}
			t.Logf("%s: %d objects, applied cold in %v, warm in %v", qt, objects, cold.Took.Round(time.Millisecond), warm.Took.Round(time.Millisecond))
			if bare := suite.MustApply(t, fresh.Unmanaged(), want); bare.Count(live.StateDeclared) != objects {
				t.Errorf("%s: apply without inspector: got %s, want %d declared", qt, bare, objects)
			}
			for name, insp := range bothInspectors(fresh) {
				p, err := live.Broker{Inspector: insp}.Plan(t.Context(), want)
				if err != nil {
					t.Fatal(err)
				}
				unverified := 0
				if name == "AMQP" {
					unverified = len(want.Bindings)
				}
				if !p.Empty() || p.Count(plan.ActionUnverified) != unverified || p.Count(plan.ActionSame) != objects-unverified {
					t.Errorf("%s %s after apply: got the plan\n%s\nwant an empty plan with %d unverified and %d unchanged objects",
						name, qt, p, unverified, objects-unverified)
				}
			}
		}
	})
}

func TestTopologyApplyFromManyProcesses(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		for qt, layout := range map[topology.QueueType]string{topology.Classic: dlx.LayoutBinary, topology.Quorum: dlx.LayoutHex} {
			want := buckets(t, layout, qt)
			v := suite.NewVhost(t, v.Broker)
			errs := make([]error, 8)
			var wg sync.WaitGroup
			for i := range errs {
				conn := v.Dial(t)
				wg.Go(func() {
					_, errs[i] = live.Broker{Conn: conn}.Apply(t.Context(), want, live.ApplyOptions{})
				})
			}
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatalf("%s: applying the topology: %v", qt, err)
			}
			p, err := v.Managed().Plan(t.Context(), want)
			if err != nil {
				t.Fatalf("%s queues: %v", qt, err)
			}
			if !p.Empty() {
				t.Errorf("%s: got the plan\n%s\nwant an empty one", qt, p)
			}
		}
	})
}

// If objects exist with other properties, both inspectors and Apply report every property that a broker compares.
func TestTopologyConflictsAreNamed(t *testing.T) {
	t.Parallel()
	ttl := func(d time.Duration) *time.Duration { return &d }
	key := "k"
	have := topology.Topology{
		Exchanges: []topology.Exchange{
			{Name: "kind", Kind: "topic"},
			{Name: "internal", Kind: "topic"},
			{Name: "alternate", Kind: "topic"},
		},
		Queues: []topology.Queue{
			{Name: "type", Type: topology.Classic},
			{Name: "ttl", MessageTTL: ttl(time.Minute)},
			{Name: "ttl-absent"},
			{Name: "dead-letter", DeadLetter: &topology.DeadLetter{Exchange: "amq.topic"}},
			{Name: "it's 'odd'", Type: topology.Classic, DeadLetter: &topology.DeadLetter{Exchange: "amq.topic", RoutingKey: &key}},
			{Name: "same", Type: topology.Classic, MessageTTL: ttl(time.Second)},
		},
	}
	want := topology.Topology{
		Exchanges: []topology.Exchange{
			{Name: "kind", Kind: "direct"},
			{Name: "internal", Kind: "topic", Internal: true},
			{Name: "alternate", Kind: "topic", AlternateExchange: "amq.fanout"},
		},
		Queues: []topology.Queue{
			{Name: "type", Type: topology.Quorum},
			{Name: "ttl", MessageTTL: ttl(time.Hour)},
			{Name: "ttl-absent", MessageTTL: ttl(0)},
			{Name: "dead-letter", DeadLetter: &topology.DeadLetter{Exchange: "amq.direct"}},
			{Name: "it's 'odd'", Type: topology.Classic},
			{Name: "same", Type: topology.Classic, MessageTTL: ttl(time.Second)},
			{Name: "new"},
		},
		Bindings: []topology.Binding{{Exchange: "kind", Queue: "new"}},
	}
	expected := map[string]string{
		"kind":        `type: wanted "direct", found "topic"`,
		"internal":    "internal: wanted true, found false",
		"alternate":   `alternate-exchange: wanted "amq.fanout", found none`,
		"type":        `x-queue-type: wanted "quorum", found "classic"`,
		"ttl":         "x-message-ttl: wanted 3600000, found 60000",
		"ttl-absent":  "x-message-ttl: wanted 0, found none",
		"dead-letter": `x-dead-letter-exchange: wanted "amq.direct", found "amq.topic"`,
		"it's 'odd'":  `x-dead-letter-exchange: wanted none, found "amq.topic"`,
	}
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		suite.MustApply(t, v.Unmanaged(), have)
		for name, insp := range bothInspectors(v) {
			p, err := live.Broker{Inspector: insp}.Plan(t.Context(), want)
			if err != nil {
				t.Fatal(err)
			}
			found := map[string]string{}
			for _, s := range p.Conflicts() {
				found[s.Name] = s.Mismatches[0].String()
			}
			for object, text := range expected {
				if got := found[object]; got != text {
					t.Errorf("%s: %s: got %q, want %q", name, object, got, text)
				}
			}
			if len(found) != len(expected) {
				t.Errorf("%s: %d conflicts, want %d: %v", name, len(found), len(expected), found)
			}
		}
		report, err := v.Unmanaged().Apply(t.Context(), want, live.ApplyOptions{})
		var conflict *topology.ConflictError
		if !errors.As(err, &conflict) || !errors.Is(err, topology.ErrConflict) {
			t.Fatalf("apply: got error %v, want a *topology.ConflictError", err)
		}
		for _, name := range []string{"kind", "internal", "alternate"} {
			if !strings.Contains(err.Error(), fmt.Sprintf("exchange %q", name)) {
				t.Errorf("apply: got error %v, want it to name exchange %q", err, name)
			}
		}
		if report.Count(live.StateFailed) != 3 || report.Count(live.StateUntried) != len(want.Queues)+1 {
			t.Errorf("apply: got %s, want Count(live.StateFailed) = 3 and Count(live.StateUntried) = %v", report, len(want.Queues)+1)
		}
		queuesOnly := topology.Topology{Queues: want.Queues, Bindings: want.Bindings}
		report, err = v.Unmanaged().Apply(t.Context(), queuesOnly, live.ApplyOptions{})
		if !errors.Is(err, topology.ErrConflict) || report.Count(live.StateFailed) != 5 || report.Count(live.StateDeclared) != 2 || report.Count(live.StateUntried) != 1 {
			t.Errorf("apply of the queues: got %s, %v, want topology.ErrConflict, Count(live.StateFailed) = 5, Count(live.StateDeclared) = 2 and Count(live.StateUntried) = 1",
				report, err)
		}
		found, err := v.Mgmt.Inspect(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := found.Queues["new"]; !ok {
			t.Errorf("got the queues %v, want the queue new among them, which the report lists as declared", found.Queues)
		}
	})
}

func TestTopologyApplyNamesWhatTheBrokerRefuses(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		_, err := live.Broker{Conn: v.Dial(t)}.Apply(t.Context(), topology.Topology{
			Exchanges: []topology.Exchange{{Name: "good", Kind: "topic"}, {Name: "odd", Kind: "x-no-such-type"}},
		}, live.ApplyOptions{})
		var object *live.ObjectError
		if !errors.As(err, &object) || object.Name != "odd" || !strings.Contains(err.Error(), "enable the plugin") {
			t.Errorf("unknown exchange type: got error %v, want an ObjectError for exchange odd containing \"enable the plugin\"", err)
		}
		report, err := v.Unmanaged().Apply(t.Context(), topology.Topology{
			Queues:   []topology.Queue{{Name: "q"}},
			Bindings: []topology.Binding{{Exchange: "amq.topic", Queue: "q"}, {Exchange: "nowhere", Queue: "q"}},
		}, live.ApplyOptions{})
		var amqpErr *amqp.Error
		if !errors.As(err, &object) || object.Kind != topology.KindBinding || !errors.As(err, &amqpErr) || amqpErr.Code != amqp.NotFound {
			t.Errorf("binding from a missing exchange: got error %v, want an ObjectError for the binding with code 404", err)
		}
		if report.Count(live.StateDeclared) != 2 || report.Count(live.StateFailed) != 1 {
			t.Errorf("binding from a missing exchange: got %s, want Count(live.StateDeclared) = 2 and Count(live.StateFailed) = 1", report)
		}
	})
}

func TestTopologyApplyRespectsTheContext(t *testing.T) {
	t.Parallel()
	suite.OnNewest(t, func(t *testing.T, v *suite.Vhost) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		report, err := v.Unmanaged().Apply(ctx, buckets(t, dlx.LayoutBinary, topology.Classic), live.ApplyOptions{})
		if !errors.Is(err, context.Canceled) || report.Count(live.StateDeclared) != 0 {
			t.Errorf("got %s, %v, want context.Canceled and Count(live.StateDeclared) = 0", report, err)
		}
	})
}

func TestTopologyPoliciesThatBreakDelayQueues(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		want := buckets(t, dlx.LayoutBinary, topology.Quorum)
		queue := longest(want)
		put := func(name string, def map[string]any) {
			t.Helper()
			v.Manage(t, http.MethodPut, v.Mgmt.InVhost("policies", name),
				map[string]any{"pattern": "^" + regexp.QuoteMeta(queue.Name) + "$", "apply-to": "queues", "priority": 1, "definition": def})
		}
		put("short", map[string]any{"message-ttl": 5000, "overflow": "drop-head"})
		report, err := v.Managed().Apply(t.Context(), want, live.ApplyOptions{})
		var refused *plan.PolicyError
		if !errors.As(err, &refused) || len(refused.Warnings) != 2 || report.Count(live.StateUntried) != len(report.Results) {
			t.Fatalf("apply: got %s, %v, want a *plan.PolicyError with two warnings and every object untried", report, err)
		}
		for _, text := range []string{
			`policy "short" sets message-ttl to 5000`,
			fmt.Sprintf("delays of %s would fire after 5s", topology.FormatDuration(*queue.MessageTTL)), queue.Name,
			"at most once",
		} {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("apply: got error %v, want it to contain %q", err, text)
			}
		}
		if report, err = v.Managed().Apply(t.Context(), want, live.ApplyOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
		if len(report.Plan.Warnings) != 2 {
			t.Errorf("forced apply: got the warnings %v, want 2", report.Plan.Warnings)
		}
		// The queue exists, so the broker reports its effective settings.
		p, err := v.Managed().Plan(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Warnings) != 2 || p.Warnings[0].Policy != "short" || !p.Empty() {
			t.Errorf("the plan afterwards: got\n%s\nwant an empty plan with 2 warnings, the first about the policy \"short\"", p)
		}
		put("short", map[string]any{"message-ttl": queue.MessageTTL.Milliseconds(), "overflow": "reject-publish"})
		suite.MustApply(t, v.Managed(), want)
	})
}
