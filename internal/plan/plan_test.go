package plan_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/report"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// live returns the state of a broker on which every object exists and matches the topology. As in answers from the
// management API, numbers are floats.
func live(top topology.Topology) plan.State {
	l := plan.State{
		Source: "test", BindingsKnown: true, PoliciesKnown: true, Bindings: top.Bindings,
		Exchanges: map[string]plan.Exchange{}, Queues: map[string]plan.Queue{},
	}
	for _, e := range top.Exchanges {
		l.Exchanges[e.Name] = plan.Exchange{
			ArgumentsKnown: true, Kind: e.Kind, Durable: true, AutoDelete: e.AutoDelete, Internal: e.Internal, Arguments: asJSON(e.Table()),
		}
	}
	for _, q := range top.Queues {
		l.Queues[q.Name] = plan.Queue{
			ArgumentsKnown: true, Type: topology.QueueType(q.Table()[argument.QueueType].(string)), Durable: true, Arguments: asJSON(q.Table()),
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
		Name: "delay.bucket.30m", Type: topology.Quorum, MessageTTL: new(30 * time.Minute), Overflow: argument.RejectPublish,
		DeadLetter: &topology.DeadLetter{Exchange: "delay.deliver", AtLeastOnce: true},
		Arguments:  map[string]any{"x-quorum-initial-group-size": 3, "note": "mine"},
	})
	top.Exchanges = append(top.Exchanges, topology.Exchange{Name: "delay.bucket", Kind: "topic"})
	top.Bindings = append(top.Bindings,
		topology.Binding{Exchange: "delay.bucket", Queue: "delay.bucket.30m", RoutingKey: "#", Arguments: map[string]any{"weight": int32(3)}},
		topology.Binding{Exchange: "delay.bucket", ToExchange: "delay.deliver", RoutingKey: "k"})
	return top
}

func TestCompareFindsNoDifference(t *testing.T) {
	top := sample()
	l := live(top)
	for i, b := range l.Bindings {
		l.Bindings[i].Arguments = asJSON(b.Arguments)
	}
	q := l.Queues["delay.bucket.30m"]
	delete(q.Arguments, argument.QueueType) // the queue still has its type
	q.Arguments["note"] = "another"         // brokers do not compare this one
	q.Messages = 7
	l.Queues["delay.bucket.30m"] = q
	p := plan.Compare(sample(), l)
	if !p.Empty() || p.Count(plan.ActionSame) != 8 || len(p.Warnings) != 0 {
		t.Errorf("Compare: got this plan, want an empty one with 8 unchanged objects and no warnings:\n%s", p)
	}
	if p.Steps[4].Messages != 7 {
		t.Errorf("step 4: got %+v, want Messages = 7", p.Steps[4])
	}
}

func TestCompareNamesEveryDifference(t *testing.T) {
	top := sample()
	for name, change := range map[string]func(*plan.State){
		`type: wanted "topic", found "direct"`: func(l *plan.State) {
			e := l.Exchanges["delay.deliver"]
			e.Kind = "direct"
			l.Exchanges["delay.deliver"] = e
		},
		"auto_delete: wanted false, found true": func(l *plan.State) {
			e := l.Exchanges["delay.bucket"]
			e.AutoDelete = true
			l.Exchanges["delay.bucket"] = e
		},
		"internal: wanted false, found true": func(l *plan.State) {
			e := l.Exchanges["delay.bucket"]
			e.Internal = true
			l.Exchanges["delay.bucket"] = e
		},
		"durable: wanted true, found false": func(l *plan.State) {
			q := l.Queues["delay.parked"]
			q.Durable = false
			l.Queues["delay.parked"] = q
		},
		"exclusive: wanted false, found true": func(l *plan.State) {
			q := l.Queues["delay.parked"]
			q.Exclusive = true
			l.Queues["delay.parked"] = q
		},
		`alternate-exchange: wanted "delay.parked", found none`: func(l *plan.State) {
			delete(l.Exchanges["delay.deliver"].Arguments, "alternate-exchange")
		},
		"x-message-ttl: wanted 1800000, found 60000": func(l *plan.State) {
			l.Queues["delay.bucket.30m"].Arguments["x-message-ttl"] = 60000.0
		},
		"x-expires: wanted none, found 5": func(l *plan.State) {
			l.Queues["delay.bucket.30m"].Arguments["x-expires"] = 5.0
		},
		`x-queue-type: wanted "quorum", found "classic"`: func(l *plan.State) {
			q := l.Queues["delay.bucket.30m"]
			q.Type = topology.Classic
			l.Queues["delay.bucket.30m"] = q
		},
	} {
		l := live(top)
		change(&l)
		p := plan.Compare(top, l)
		c := p.Conflicts()
		if len(c) != 1 || len(c[0].Mismatches) != 1 || c[0].Mismatches[0].String() != name || p.Empty() {
			t.Errorf("Compare: got this plan, want one conflict with the text %s:\n%s", name, p)
		}
	}
}

func TestCompareSeesATransientExchange(t *testing.T) {
	l := live(sample())
	e := l.Exchanges["delay.bucket"]
	e.Durable = false
	l.Exchanges["delay.bucket"] = e
	if c := plan.Compare(sample(), l).Conflicts(); len(c) != 1 || c[0].Mismatches[0].Argument != "durable" {
		t.Errorf(`Compare: got the conflicts %+v, want one, in the argument "durable"`, c)
	}
}

func TestCompareWithoutBindings(t *testing.T) {
	top := sample()
	l := live(top)
	l.BindingsKnown, l.Bindings = false, nil
	delete(l.Queues, "delay.bucket.30m")
	p := plan.Compare(top, l)
	var actions []plan.Action
	for _, s := range p.Steps[5:] {
		actions = append(actions, s.Action)
	}
	want := []plan.Action{plan.ActionUnverified, plan.ActionCreate, plan.ActionUnverified}
	if !reflect.DeepEqual(actions, want) {
		t.Errorf("Compare: got the binding actions %v, want %v, because only the binding to the missing queue is known to be missing", actions, want)
	}
}

func TestPolicyWarnings(t *testing.T) {
	policy := func(name string, priority int, operator bool, def map[string]any) plan.Policy {
		return plan.Policy{Name: name, Pattern: `^delay\.bucket`, ApplyTo: "queues", Priority: priority, Operator: operator, Definition: def}
	}
	for name, c := range map[string]struct {
		policies []plan.Policy
		want     []string // the policy and the key of each warning
	}{
		"lower TTL":      {[]plan.Policy{policy("p", 0, false, map[string]any{"message-ttl": 1000.0})}, []string{"p message-ttl"}},
		"higher TTL":     {[]plan.Policy{policy("p", 0, false, map[string]any{"message-ttl": 1.8e6})}, nil},
		"expires":        {[]plan.Policy{policy("p", 0, false, map[string]any{"expires": 1e12})}, []string{"p expires"}},
		"overflow":       {[]plan.Policy{policy("p", 0, false, map[string]any{"overflow": "drop-head"})}, []string{"p overflow"}},
		"overflow as is": {[]plan.Policy{policy("p", 0, false, map[string]any{"overflow": "reject-publish"})}, nil},
		"routing key":    {[]plan.Policy{policy("p", 0, false, map[string]any{"dead-letter-routing-key": "k"})}, []string{"p dead-letter-routing-key"}},
		"exchange":       {[]plan.Policy{policy("p", 0, false, map[string]any{"dead-letter-exchange": "e"})}, nil}, // the queue's argument takes precedence
		"length": {
			[]plan.Policy{policy("p", 0, false, map[string]any{"max-length": 10.0, "max-length-bytes": 10.0})},
			[]string{"p max-length", "p max-length-bytes"},
		},
		"looks":            {[]plan.Policy{policy("p", 0, false, map[string]any{"delivery-limit": 20.0})}, []string{"p delivery-limit"}},
		"any looks":        {[]plan.Policy{policy("p", 0, false, map[string]any{"delivery-limit": -1.0})}, nil},
		"highest priority": {[]plan.Policy{policy("p", 1, false, map[string]any{"message-ttl": 1000.0}), policy("safe", 2, false, nil)}, nil},
		"operator on top": {
			[]plan.Policy{policy("o", 0, true, map[string]any{"message-ttl": 1000.0}), policy("p", 9, false, map[string]any{"message-ttl": 2000.0})},
			[]string{"o message-ttl"},
		},
		"lower of both": {
			[]plan.Policy{policy("o", 0, true, map[string]any{"message-ttl": 2000.0}), policy("p", 9, false, map[string]any{"message-ttl": 1000.0})},
			[]string{"p message-ttl"},
		},
		"other queues":   {[]plan.Policy{{Name: "p", Pattern: "^orders", ApplyTo: "queues", Definition: map[string]any{"expires": 1.0}}}, nil},
		"classic queues": {[]plan.Policy{{Name: "p", Pattern: ".*", ApplyTo: "classic_queues", Definition: map[string]any{"expires": 1.0}}}, nil},
		"quorum queues": {
			[]plan.Policy{{Name: "p", Pattern: ".*", ApplyTo: "quorum_queues", Definition: map[string]any{"expires": 1.0}}},
			[]string{"p expires", "p expires"},
		}, // the delay queue and the parked queue
		"unreadable": {[]plan.Policy{{Name: "p", Pattern: "(?!x)", ApplyTo: "all", Definition: map[string]any{"expires": 1.0}}}, []string{"p "}},
		"entry's alternate": {
			[]plan.Policy{{Name: "p", Pattern: "bucket$", ApplyTo: "exchanges", Definition: map[string]any{"alternate-exchange": "e"}}},
			[]string{"p alternate-exchange"},
		},
	} {
		for _, exists := range []bool{false, true} {
			l := plan.State{}
			if exists {
				l = live(sample())
			}
			l.PoliciesKnown, l.Policies = true, c.policies
			if exists && name == "unreadable" {
				continue // the values that the queue reports are used instead
			}
			var got []string
			for _, w := range plan.Compare(sample(), l).Warnings {
				got = append(got, w.Policy+" "+w.Key)
				if w.Effect == "" || w.Advice == "" {
					t.Errorf("%s: got warning %+v, want one with an effect and advice", name, w)
				}
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s (queue exists: %v): got the warnings %q, want %q", name, exists, got, c.want)
			}
		}
	}
}

// Parked messages and dead letters must be kept until an operator handles them. Apply refuses a policy that deletes
// them after some time. It only warns about limits on length, which are not reached in practice.
func TestPolicyWarningsOfDeadLetters(t *testing.T) {
	top := sample()
	top.Destinations = []topology.Destination{{Queue: "q"}, {Queue: "p", DeadLetter: "graveyard"}}
	top = top.WithDestinationQueues("delay", topology.Quorum)
	l := live(top)
	for key, refused := range map[string]bool{
		"message-ttl":      true,
		"expires":          true,
		"max-length":       false,
		"max-length-bytes": false,
		"delivery-limit":   false,
	} {
		l.Policies = []plan.Policy{{
			Name: "o", Operator: true, Pattern: `dead$|^graveyard$|^delay\.parked$`, Definition: map[string]any{key: 10.0},
		}}
		p := plan.Compare(top, l)
		var names []string
		for _, w := range p.Warnings {
			names = append(names, w.Name)
		}
		if want := []string{"delay.parked", "graveyard", "q.dead"}; !reflect.DeepEqual(names, want) {
			t.Errorf("%s: got warnings about %q, want %q", key, names, want)
		}
		if err := p.Refusal(false); errors.Is(err, topology.ErrPolicy) != refused {
			t.Errorf("%s: Refusal(false): got %v, want topology.ErrPolicy: %t", key, err, refused)
		}
		if err := p.Refusal(true); err != nil {
			t.Errorf("%s: Refusal(true): got %v, want nil, because policies may be ignored", key, err)
		}
		if !strings.Contains(p.String(), `(and "graveyard", "q.dead")`) {
			t.Errorf("String: got this plan, want it to name graveyard and q.dead:\n%s", p)
		}
	}
}

// A user without the policymaker tag cannot read policies, so the warnings come from the effective policy that each
// existing queue reports.
func TestPolicyWarningsFromTheQueueItself(t *testing.T) {
	l := live(sample())
	l.PoliciesKnown = false
	q := l.Queues["delay.bucket.30m"]
	q.Policy, q.OperatorPolicy, q.EffectivePolicy = "p", "o", map[string]any{"expires": 1000.0}
	l.Queues["delay.bucket.30m"] = q
	w := plan.Compare(sample(), l).Warnings
	if len(w) != 1 || w[0].Policy != "p+o" || w[0].Key != "expires" {
		t.Errorf(`Compare: got the warnings %+v, want one with Policy = "p+o" and Key = "expires"`, w)
	}
}

func TestPlanAsTextAndAsJSON(t *testing.T) {
	top := sample()
	l := live(top)
	delete(l.Queues, "delay.parked")
	l.Queues["delay.bucket.30m"].Arguments["x-message-ttl"] = 60000.0
	l.PoliciesKnown = false
	l.Bindings = l.Bindings[1:]
	p := plan.Compare(top, l)
	want := `! conflict   queue delay.bucket.30m
      x-message-ttl: wanted 1800000, found 60000
+ create     queue delay.parked
+ create     binding "delay.parked" -> queue "delay.parked", routing key ""
= same       3 exchanges
= same       2 bindings
note: policies were not checked, because reading them requires the management API and a user with the policymaker tag
2 to create, 5 the same, 1 in conflict (read by test)
RabbitMQ cannot change an object in place: give the new one another name, or empty and delete the old one.
`
	if got := p.String(); got != want {
		t.Errorf("String:\ngot\n%s\nwant\n%s", got, want)
	}
	var all strings.Builder
	if err := p.Render(&all, report.Style{}, true); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(all.String(), "= same       exchange delay.deliver\n") {
		t.Errorf("Render with all objects: got this plan, want it to contain %q:\n%s", "= same       exchange delay.deliver\n", all.String())
	}
	data, err := json.Marshal(p)
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
		t.Errorf("the plan as JSON: got %s, want Create = 2, Same = 5, Conflict = 1 and 8 steps, the fifth with a mismatch that wants 1800000",
			data)
	}
}

// A queue that exists but does not answer is reported as such, not only as matching the topology.
func TestPlanNamesQueuesThatDoNotAnswer(t *testing.T) {
	want := topology.Topology{Queues: []topology.Queue{{Name: "q", Type: topology.Quorum}, {Name: "r", Type: topology.Quorum}}}
	p := plan.Compare(want, plan.State{Source: "AMQP", PoliciesKnown: true, Queues: map[string]plan.Queue{"q": {Unavailable: "noproc"}, "r": {}}})
	if got := p.Unavailable(); len(got) != 1 || got[0].Name != "q" || got[0].Action != plan.ActionSame {
		t.Errorf(`Unavailable: got %+v, want only "q", with the action same`, got)
	}
	for _, line := range []string{"UNKNOWN: queues that exist but do not answer: 1", "? unknown    queue q: noproc", "0 in conflict, queues that do not answer: 1 ("} {
		if !strings.Contains(p.String(), line) {
			t.Errorf("String: got this plan, want it to contain %q:\n%s", line, p)
		}
	}
	if text, err := json.Marshal(p); err != nil || !strings.Contains(string(text), `"unavailable":1,`) || !strings.Contains(string(text), `"unavailable":"noproc"`) {
		t.Errorf(`Marshal: got %s, %v, want "unavailable":1 and "unavailable":"noproc" in it and no error`, text, err)
	}
}

func TestPlanGroupsWarnings(t *testing.T) {
	p := plan.Plan{PoliciesChecked: true, Source: "test"}
	for _, name := range []string{"a", "b", "c"} {
		p.Warnings = append(p.Warnings, plan.Warning{
			Kind: topology.KindQueue, Name: name, Policy: "p", Key: "expires", Value: 5, Effect: "it goes", Advice: "stop it",
		})
	}
	want := "warning: queue \"a\": policy \"p\" sets expires to 5: it goes; stop it (and 2 more queues)\n0 to create, 0 the same, 0 in conflict (read by test)\n"
	if got := p.String(); got != want {
		t.Errorf("the plan with grouped warnings: got %q, want %q", got, want)
	}
}

// A producer that stopped using the plugin may still declare its exchange with the plugin's argument. The broker
// ignores that argument, and so does the plan.
func TestPlanOfAnExchangeOffThePlugin(t *testing.T) {
	for kind, want := range map[string]plan.Action{"topic": plan.ActionSame, "x-delayed-message": plan.ActionConflict} {
		top := topology.Topology{Exchanges: []topology.Exchange{{Name: "orders", Kind: kind}}}
		found := live(top)
		e := found.Exchanges["orders"]
		e.Arguments = map[string]any{argument.DelayedType: "direct"}
		found.Exchanges["orders"] = e
		if p := plan.Compare(top, found); p.Steps[0].Action != want {
			t.Errorf("%s: got steps %+v, want action %v in the first one", kind, p.Steps, want)
		}
	}
}

// On a terminal, long lines are wrapped, but a command stays on one line, so that it can be copied.
func TestPlanPrintsCommandsOnOneLine(t *testing.T) {
	p := plan.Plan{PoliciesChecked: true, Source: "test", Strays: []plan.Stray{{
		Binding: topology.Binding{Exchange: "delay.deliver", Queue: "copies", RoutingKey: "#"},
		Unbind:  "http://127.0.0.1:15672/api/bindings/%2F/e/delay.deliver/q/copies/%23",
	}}}
	var out strings.Builder
	if err := p.Render(&out, report.Style{Width: 60}, false); err != nil {
		t.Fatal(err)
	}
	const want = "\n      curl -u USER -X DELETE 'http://127.0.0.1:15672/api/bindings/%2F/e/delay.deliver/q/copies/%23'\n"
	if !strings.Contains(out.String(), want) {
		t.Errorf("got\n%s\nwant the line %q in it", out.String(), want)
	}
	for line := range strings.Lines(out.String()) {
		if n := len(strings.TrimSuffix(line, "\n")); n > 60 && !strings.Contains(line, "curl") {
			t.Errorf("got a line of %d characters, want at most 60: %s", n, line)
		}
	}
}
