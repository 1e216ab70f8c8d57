package topology_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestMergeIsTheUnionInOrder(t *testing.T) {
	a := topology.Topology{
		Exchanges:    []topology.Exchange{{Name: "x", Kind: "topic"}},
		Queues:       []topology.Queue{{Name: "b", Type: topology.Quorum}, {Name: "a"}},
		Bindings:     []topology.Binding{{Exchange: "x", Queue: "a", RoutingKey: "k"}},
		Destinations: []topology.Destination{{Queue: "a"}},
	}
	b := topology.Topology{
		Exchanges: []topology.Exchange{{Name: "y", Kind: "fanout"}, {Name: "x", Kind: "topic", Arguments: map[string]any{}}},
		Queues:    []topology.Queue{{Name: "c"}, {Name: "b"}}, // the type's default is Quorum
		Bindings: []topology.Binding{
			{Exchange: "x", Queue: "a", RoutingKey: "k", Arguments: map[string]any{}},
			{Exchange: "x", Queue: "a", RoutingKey: "other"},
			{Exchange: "x", ToExchange: "a", RoutingKey: "k"},
			{Exchange: "x", Queue: "a", RoutingKey: "k", Arguments: map[string]any{"n": 1}},
		},
		Destinations: []topology.Destination{{Queue: "b"}, {Name: "a", Queue: "a"}},
	}
	got, err := a.Merge(b, a)
	if err != nil {
		t.Fatal(err)
	}
	want := topology.Topology{
		Exchanges:    []topology.Exchange{a.Exchanges[0], b.Exchanges[0]},
		Queues:       []topology.Queue{a.Queues[0], a.Queues[1], b.Queues[0]},
		Bindings:     []topology.Binding{a.Bindings[0], b.Bindings[1], b.Bindings[2], b.Bindings[3]},
		Destinations: []topology.Destination{a.Destinations[0], b.Destinations[0]},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if len(a.Queues) != 2 || len(b.Queues) != 2 {
		t.Error("Merge changed its operands")
	}
}

func TestMergeRefusesContradictions(t *testing.T) {
	a := topology.Topology{
		Exchanges:    []topology.Exchange{{Name: "x", Kind: "topic"}},
		Queues:       []topology.Queue{{Name: "q", MessageTTL: new(time.Second)}},
		Destinations: []topology.Destination{{Queue: "d", Retry: &topology.Retry{MaxAttempts: 2}}},
	}
	b := topology.Topology{
		Exchanges:    []topology.Exchange{{Name: "x", Kind: "direct", Internal: true}},
		Queues:       []topology.Queue{{Name: "q", Type: topology.Classic, MessageTTL: new(time.Minute)}},
		Destinations: []topology.Destination{{Queue: "d", Retry: &topology.Retry{MaxAttempts: 3}}},
	}
	got, err := a.Merge(b)
	var merge *topology.MergeError
	if !errors.As(err, &merge) || !errors.Is(err, topology.ErrMerge) || !got.Empty() {
		t.Fatalf("got %+v, %v", got, err)
	}
	if merge.Kind != topology.KindExchange || merge.Name != "x" || len(merge.Mismatches) != 2 {
		t.Errorf("first error is %+v", merge)
	}
	for _, text := range []string{
		`exchange "x" is described twice with different values: type is "topic" in one and "direct" in the other, internal is false in one and true in the other`,
		`queue "q"`, `x-message-ttl is 1000 in one and 60000 in the other, x-queue-type is "quorum" in one and "classic" in the other`,
		`destination "d"`,
	} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error does not say %s:\n%v", text, err)
		}
	}
}

func TestLookups(t *testing.T) {
	top := topology.DeliveryTopology("p")
	if e, ok := top.Exchange("p.deliver"); !ok || e.AlternateExchange != "p.parked" {
		t.Errorf("exchange: %+v, %v", e, ok)
	}
	if _, ok := top.Queue("p.deliver"); ok {
		t.Error("found a queue with the name of an exchange")
	}
}

// live is a broker on which everything described exists as described, as the
// management API shows it: numbers are floats.
func live(top topology.Topology) topology.Live {
	l := topology.Live{
		Source: "test", BindingsKnown: true, PoliciesKnown: true, Bindings: top.Bindings,
		Exchanges: map[string]topology.LiveExchange{}, Queues: map[string]topology.LiveQueue{},
	}
	for _, e := range top.Exchanges {
		l.Exchanges[e.Name] = topology.LiveExchange{
			ArgumentsKnown: true, Kind: e.Kind, Durable: true, AutoDelete: e.AutoDelete, Internal: e.Internal, Arguments: asJSON(e.Table()),
		}
	}
	for _, q := range top.Queues {
		l.Queues[q.Name] = topology.LiveQueue{
			ArgumentsKnown: true, Type: topology.QueueType(q.Table()[topology.ArgQueueType].(string)), Durable: true, Arguments: asJSON(q.Table()),
		}
	}
	return l
}

func asJSON(t map[string]any) map[string]any {
	data, err := json.Marshal(t)
	if err != nil {
		panic(err)
	}
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		panic(err)
	}
	return out
}

func sample() topology.Topology {
	top := topology.DeliveryTopology("delay")
	top.Queues = append(top.Queues, topology.Queue{
		Name: "delay.bucket.30m", Type: topology.Quorum, MessageTTL: new(30 * time.Minute), Overflow: topology.OverflowRejectPublish,
		DeadLetter: &topology.DeadLetter{Exchange: "delay.deliver", AtLeastOnce: true},
		Arguments:  map[string]any{"x-quorum-initial-group-size": 3, "note": "mine"},
	})
	top.Exchanges = append(top.Exchanges, topology.Exchange{Name: "delay.bucket", Kind: "topic"})
	top.Bindings = append(top.Bindings,
		topology.Binding{Exchange: "delay.bucket", Queue: "delay.bucket.30m", RoutingKey: "#", Arguments: map[string]any{"weight": int32(3)}},
		topology.Binding{Exchange: "delay.bucket", ToExchange: "delay.deliver", RoutingKey: "k"})
	return top
}

func TestCompareFindsEverythingTheSame(t *testing.T) {
	top := sample()
	l := live(top)
	for i, b := range l.Bindings {
		l.Bindings[i].Arguments = asJSON(b.Arguments)
	}
	q := l.Queues["delay.bucket.30m"]
	delete(q.Arguments, topology.ArgQueueType) // the queue has its type all the same
	q.Arguments["note"] = "another"            // brokers do not compare this one
	q.Messages = 7
	l.Queues["delay.bucket.30m"] = q
	plan := topology.Compare(sample(), l)
	if !plan.Empty() || plan.Count(topology.ActionSame) != 8 || len(plan.Warnings) != 0 {
		t.Errorf("got\n%s", plan)
	}
	if plan.Steps[4].Messages != 7 {
		t.Errorf("messages: %+v", plan.Steps[4])
	}
}

func TestCompareNamesEveryDifference(t *testing.T) {
	top := sample()
	for name, change := range map[string]func(*topology.Live){
		`type: wanted "topic", found "direct"`: func(l *topology.Live) {
			e := l.Exchanges["delay.deliver"]
			e.Kind = "direct"
			l.Exchanges["delay.deliver"] = e
		},
		"auto_delete: wanted false, found true": func(l *topology.Live) {
			e := l.Exchanges["delay.bucket"]
			e.AutoDelete = true
			l.Exchanges["delay.bucket"] = e
		},
		"internal: wanted false, found true": func(l *topology.Live) {
			e := l.Exchanges["delay.bucket"]
			e.Internal = true
			l.Exchanges["delay.bucket"] = e
		},
		"durable: wanted true, found false": func(l *topology.Live) {
			q := l.Queues["delay.parked"]
			q.Durable = false
			l.Queues["delay.parked"] = q
		},
		"exclusive: wanted false, found true": func(l *topology.Live) {
			q := l.Queues["delay.parked"]
			q.Exclusive = true
			l.Queues["delay.parked"] = q
		},
		`alternate-exchange: wanted "delay.parked", found none`: func(l *topology.Live) {
			delete(l.Exchanges["delay.deliver"].Arguments, "alternate-exchange")
		},
		"x-message-ttl: wanted 1800000, found 60000": func(l *topology.Live) {
			l.Queues["delay.bucket.30m"].Arguments["x-message-ttl"] = 60000.0
		},
		"x-expires: wanted none, found 5": func(l *topology.Live) {
			l.Queues["delay.bucket.30m"].Arguments["x-expires"] = 5.0
		},
		`x-queue-type: wanted "quorum", found "classic"`: func(l *topology.Live) {
			q := l.Queues["delay.bucket.30m"]
			q.Type = topology.Classic
			l.Queues["delay.bucket.30m"] = q
		},
	} {
		l := live(top)
		change(&l)
		plan := topology.Compare(top, l)
		c := plan.Conflicts()
		if len(c) != 1 || len(c[0].Mismatches) != 1 || c[0].Mismatches[0].String() != name || plan.Empty() {
			t.Errorf("want one conflict %s, got\n%s", name, plan)
		}
	}
}

func TestCompareSeesATransientExchange(t *testing.T) {
	l := live(sample())
	e := l.Exchanges["delay.bucket"]
	e.Durable = false
	l.Exchanges["delay.bucket"] = e
	if c := topology.Compare(sample(), l).Conflicts(); len(c) != 1 || c[0].Mismatches[0].Argument != "durable" {
		t.Errorf("got %+v", c)
	}
}

func TestCompareWithoutBindings(t *testing.T) {
	top := sample()
	l := live(top)
	l.BindingsKnown, l.Bindings = false, nil
	delete(l.Queues, "delay.bucket.30m")
	plan := topology.Compare(top, l)
	var actions []topology.Action
	for _, s := range plan.Steps[5:] {
		actions = append(actions, s.Action)
	}
	want := []topology.Action{topology.ActionUnverified, topology.ActionCreate, topology.ActionUnverified}
	if !reflect.DeepEqual(actions, want) {
		t.Errorf("got %v, want %v: a binding of a missing queue is missing, the others are not known", actions, want)
	}
}

func TestPolicyWarnings(t *testing.T) {
	policy := func(name string, priority int, operator bool, def map[string]any) topology.Policy {
		return topology.Policy{Name: name, Pattern: `^delay\.bucket`, ApplyTo: "queues", Priority: priority, Operator: operator, Definition: def}
	}
	for name, c := range map[string]struct {
		policies []topology.Policy
		want     []string // policy, key
	}{
		"lower TTL":         {[]topology.Policy{policy("p", 0, false, map[string]any{"message-ttl": 1000.0})}, []string{"p message-ttl"}},
		"higher TTL":        {[]topology.Policy{policy("p", 0, false, map[string]any{"message-ttl": 1.8e6})}, nil},
		"expires":           {[]topology.Policy{policy("p", 0, false, map[string]any{"expires": 1e12})}, []string{"p expires"}},
		"overflow":          {[]topology.Policy{policy("p", 0, false, map[string]any{"overflow": "drop-head"})}, []string{"p overflow"}},
		"overflow as is":    {[]topology.Policy{policy("p", 0, false, map[string]any{"overflow": "reject-publish"})}, nil},
		"routing key":       {[]topology.Policy{policy("p", 0, false, map[string]any{"dead-letter-routing-key": "k"})}, []string{"p dead-letter-routing-key"}},
		"exchange":          {[]topology.Policy{policy("p", 0, false, map[string]any{"dead-letter-exchange": "e"})}, nil}, // the argument counts
		"length":            {[]topology.Policy{policy("p", 0, false, map[string]any{"max-length": 10.0, "max-length-bytes": 10.0})}, []string{"p max-length", "p max-length-bytes"}},
		"looks":             {[]topology.Policy{policy("p", 0, false, map[string]any{"delivery-limit": 20.0})}, []string{"p delivery-limit"}},
		"any looks":         {[]topology.Policy{policy("p", 0, false, map[string]any{"delivery-limit": -1.0})}, nil},
		"highest priority":  {[]topology.Policy{policy("p", 1, false, map[string]any{"message-ttl": 1000.0}), policy("safe", 2, false, nil)}, nil},
		"operator on top":   {[]topology.Policy{policy("o", 0, true, map[string]any{"message-ttl": 1000.0}), policy("p", 9, false, map[string]any{"message-ttl": 2000.0})}, []string{"o message-ttl"}},
		"lower of both":     {[]topology.Policy{policy("o", 0, true, map[string]any{"message-ttl": 2000.0}), policy("p", 9, false, map[string]any{"message-ttl": 1000.0})}, []string{"p message-ttl"}},
		"other queues":      {[]topology.Policy{{Name: "p", Pattern: "^orders", ApplyTo: "queues", Definition: map[string]any{"expires": 1.0}}}, nil},
		"classic queues":    {[]topology.Policy{{Name: "p", Pattern: ".*", ApplyTo: "classic_queues", Definition: map[string]any{"expires": 1.0}}}, nil},
		"quorum queues":     {[]topology.Policy{{Name: "p", Pattern: ".*", ApplyTo: "quorum_queues", Definition: map[string]any{"expires": 1.0}}}, []string{"p expires", "p expires"}}, // of the parked queue too
		"unreadable":        {[]topology.Policy{{Name: "p", Pattern: "(?!x)", ApplyTo: "all", Definition: map[string]any{"expires": 1.0}}}, []string{"p "}},
		"entry's alternate": {[]topology.Policy{{Name: "p", Pattern: "bucket$", ApplyTo: "exchanges", Definition: map[string]any{"alternate-exchange": "e"}}}, []string{"p alternate-exchange"}},
	} {
		for _, exists := range []bool{false, true} {
			l := topology.Live{}
			if exists {
				l = live(sample())
			}
			l.PoliciesKnown, l.Policies = true, c.policies
			if exists && name == "unreadable" {
				continue // then what the queue itself reports counts
			}
			var got []string
			for _, w := range topology.Compare(sample(), l).Warnings {
				got = append(got, w.Policy+" "+w.Key)
				if w.Effect == "" || w.Advice == "" {
					t.Errorf("%s: a warning without effect or advice: %+v", name, w)
				}
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s (queue exists: %v): got %q, want %q", name, exists, got, c.want)
			}
		}
	}
}

// Messages that lie somewhere until somebody handles them are not to be dropped. Apply
// refuses where they would be, unless that takes a bound that nobody need reach.
func TestPolicyWarningsOfDeadLetters(t *testing.T) {
	top := sample()
	top.Destinations = []topology.Destination{{Queue: "q"}, {Queue: "p", DeadLetter: "graveyard"}}
	top = top.WithDestinationQueues("delay", topology.Quorum)
	l := live(top)
	for key, refused := range map[string]bool{"message-ttl": true, "expires": true, "max-length": false, "max-length-bytes": false, "delivery-limit": false} {
		l.Policies = []topology.Policy{{Name: "o", Operator: true, Pattern: `dead$|^graveyard$|^delay\.parked$`, Definition: map[string]any{key: 10.0}}}
		plan := topology.Compare(top, l)
		var names []string
		for _, w := range plan.Warnings {
			names = append(names, w.Name)
		}
		if !reflect.DeepEqual(names, []string{"delay.parked", "graveyard", "q.dead"}) || errors.Is(plan.Refusal(false), topology.ErrPolicy) != refused || plan.Refusal(true) != nil {
			t.Errorf("%s: %q, %v", key, names, plan.Refusal(false))
		}
		if !strings.Contains(plan.String(), `(and "graveyard", "q.dead")`) {
			t.Errorf("not all are named:\n%s", plan)
		}
	}
}

// A user without the tag policymaker sees what each existing queue reports.
func TestPolicyWarningsFromTheQueueItself(t *testing.T) {
	l := live(sample())
	l.PoliciesKnown = false
	q := l.Queues["delay.bucket.30m"]
	q.Policy, q.OperatorPolicy, q.EffectivePolicy = "p", "o", map[string]any{"expires": 1000.0}
	l.Queues["delay.bucket.30m"] = q
	w := topology.Compare(sample(), l).Warnings
	if len(w) != 1 || w[0].Policy != "p+o" || w[0].Key != "expires" {
		t.Errorf("got %+v", w)
	}
}

func TestPlanForPeopleAndForMachines(t *testing.T) {
	top := sample()
	l := live(top)
	delete(l.Queues, "delay.parked")
	l.Queues["delay.bucket.30m"].Arguments["x-message-ttl"] = 60000.0
	l.PoliciesKnown = false
	l.Bindings = l.Bindings[1:]
	plan := topology.Compare(top, l)
	want := `! conflict   queue delay.bucket.30m
      x-message-ttl: wanted 1800000, found 60000
+ create     queue delay.parked
+ create     binding "delay.parked" -> queue "delay.parked", routing key ""
= same       3 exchanges
= same       2 bindings
note: policies were not checked; reading them needs the management API and a user with the tag policymaker
2 to create, 5 the same, 1 in conflict (read by test)
RabbitMQ cannot change an object in place: give the new one another name, or empty and delete the old one.
`
	if got := plan.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	var all strings.Builder
	if err := plan.Render(&all, true); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(all.String(), "= same       exchange delay.deliver\n") {
		t.Errorf("everything:\n%s", all.String())
	}
	data, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Create   int `json:"create"`
		Same     int `json:"same"`
		Conflict int `json:"conflict"`
		Steps    []struct {
			Mismatches []struct {
				Want any `json:"want"`
			} `json:"mismatches"`
		} `json:"steps"`
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if got.Create != 2 || got.Same != 5 || got.Conflict != 1 || len(got.Steps) != 8 || got.Steps[4].Mismatches[0].Want != 1800000.0 {
		t.Errorf("got %s", data)
	}
}

func TestPlanGroupsWarnings(t *testing.T) {
	plan := topology.Plan{PoliciesChecked: true, Source: "test"}
	for _, name := range []string{"a", "b", "c"} {
		plan.Warnings = append(plan.Warnings, topology.Warning{
			Kind: topology.KindQueue, Name: name, Policy: "p", Key: "expires", Value: 5, Effect: "it goes", Advice: "stop it",
		})
	}
	want := "warning: queue \"a\": policy \"p\" sets expires to 5: it goes; stop it (and 2 more queues)\n0 to create, 0 the same, 0 in conflict (read by test)\n"
	if got := plan.String(); got != want {
		t.Errorf("got %q", got)
	}
}

// A producer that left the plugin may declare its exchange with the plugin's argument;
// the broker takes no notice of it, and neither does the plan.
func TestPlanOfAnExchangeOffThePlugin(t *testing.T) {
	for kind, want := range map[string]topology.Action{"topic": topology.ActionSame, "x-delayed-message": topology.ActionConflict} {
		top := topology.Topology{Exchanges: []topology.Exchange{{Name: "orders", Kind: kind}}}
		found := live(top)
		e := found.Exchanges["orders"]
		e.Arguments = map[string]any{topology.ArgDelayedType: "direct"}
		found.Exchanges["orders"] = e
		if p := topology.Compare(top, found); p.Steps[0].Action != want {
			t.Errorf("%s: %+v", kind, p.Steps)
		}
	}
}
