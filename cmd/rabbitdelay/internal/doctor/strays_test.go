package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The doctor reports a binding that routes delayed messages to a queue to which they were not sent, with its routing
// keys and the command that removes it.
func TestStrayBindings(t *testing.T) {
	deliver := func(queue, key string) topology.Binding {
		return topology.Binding{Exchange: "delay.deliver", Queue: queue, RoutingKey: key}
	}
	bound := func(b topology.Binding, args amqp.Table) topology.Binding {
		b.Arguments = args
		return b
	}
	for name, c := range map[string]struct {
		add  []topology.Binding
		what string // empty: no finding
		fix  string
	}{
		"everything": {
			[]topology.Binding{deliver("spy", "#"), deliver("spy", "*.*.*.q")},
			`The queue spy receives copies of messages, with the routing keys "#" of delay.deliver and "*.*.*.q" of delay.deliver.`,
			"unbind it: curl -u USER -X DELETE 'http://mgmt/1'; and the same for the other 1   # or add the binding under bindings",
		},
		"an exchange": {
			[]topology.Binding{{Exchange: "delay.deliver", ToExchange: "audit", RoutingKey: "r3x3.#"}},
			"The exchange audit receives copies of messages, with", "",
		},
		"out of a level": {
			[]topology.Binding{{Exchange: "delay.bucket.r3x3.level-0", Queue: "spy", RoutingKey: "#"}},
			"The queue spy receives copies of messages, before they are due, with", "",
		},
		"out of an entry": {[]topology.Binding{{Exchange: firstQueue, Queue: "spy"}}, "before they are due", ""},
		"past the delays": {
			[]topology.Binding{{Exchange: "delay.bucket.r3x3.level-0", ToExchange: "delay.deliver", RoutingKey: "#"}},
			"The exchange delay.deliver receives copies", "",
		},
		"twice through a delay": {
			[]topology.Binding{{Exchange: "delay.bucket.r3x3.level-0", Queue: firstQueue, RoutingKey: "#"}},
			"before they are due", "",
		},
		"another's destination":    {[]topology.Binding{deliver("spy", "r3x3.*.*.q")}, "The queue spy", ""},
		"a word too many":          {[]topology.Binding{deliver("q", "r3x3.*.*.*.q")}, "The queue q", ""},
		"a word that takes more":   {[]topology.Binding{deliver("q", "r3x3.#.q")}, "The queue q", ""},
		"any layout":               {[]topology.Binding{deliver("q", "*.*.*.q")}, "The queue q", ""},
		"arguments":                {[]topology.Binding{bound(deliver("p", "r3x3.*.*.p"), amqp.Table{"x": 1})}, "The queue p", ""},
		"out of a layout that was": {[]topology.Binding{{Exchange: "delay.bucket.hex.level-0", Queue: "spy", RoutingKey: "#"}}, "before they are due", ""},
		"a program's destination": {
			[]topology.Binding{deliver("p", "r3x3.*.*.p"), deliver("a.b", "r3x3.*.*.a.b"), deliver("x#", "r3x3.*.*.x#"), deliver("*", "r3x3.*.*.%2A")},
			"", "",
		},
		"a destination of a layout that was": {
			[]topology.Binding{
				deliver("p", "hex.*.*.*.*.*.*.*.*.p"), deliver("p", "r5x4-1s.*.*.p"), deliver("p", "ttl.*.p"),
				deliver("p", "plugin.p"), deliver("p", "native.*.p"),
			},
			"", "",
		},
		"a client's second binding": {
			[]topology.Binding{bound(deliver("q", "r3x3.*.*.q"), amqp.Table{argument.Binder: "c"}), bound(deliver("p", "r3x3.*.*.p"), amqp.Table{argument.Binder: "c"})},
			"", "",
		},
		"a canary":        {[]topology.Binding{deliver("delay.canary.1", "native.*.delay.canary.1")}, "", ""},
		"a route":         {[]topology.Binding{deliver("delay.route.x:k", "r3x3.*.*.delay.route.x:k")}, "", ""},
		"parked messages": {[]topology.Binding{{Exchange: "delay.parked", Queue: "alert"}}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, s := healthy(t)
			s.Live.Bindings = append(s.Live.Bindings, c.add...)
			s.Live.Unbind = map[string]string{c.add[0].String(): "http://mgmt/1"}
			f, found := byID(Diagnose(cfg, s), "stray-binding")
			if found != (c.what != "") || !strings.Contains(f.What, c.what) || !strings.Contains(f.Fix, c.fix) {
				t.Errorf("got the finding %+v, want %q in What and %q in Fix", f, c.what, c.fix)
			}
			p := plan.Compare(cfg.Want, s.Live)
			if found != strings.Contains(p.String(), "warning: binding "+c.add[0].String()) || p.Refusal(false) != nil {
				t.Errorf("got the refusal %v and the plan\n%s\nwant no refusal, and a warning about the binding: %t", p.Refusal(false), p, found)
			}
		})
	}
}

// With a configuration for one strategy, the objects of another strategy are not reported as stray.
func TestNoStrategyStrays(t *testing.T) {
	type strategy interface {
		Topology() topology.Topology
		Bindings(d topology.Destination) []topology.Binding
	}
	var all []strategy
	keep := func(s strategy, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	for _, checked := range []bool{false, true} {
		for _, c := range []dlx.BucketConfig{
			{}, {Resolution: time.Minute}, {QueueType: topology.Classic}, {Layout: "hex"}, {Layout: "hex", Resolution: time.Second}, {Layout: "binary"},
			{Radices: []int{3, 3}}, {Radices: []int{2}, Resolution: time.Hour},
		} {
			c.TopicPermissions = checked
			b, err := dlx.NewBucket(c)
			keep(b, err)
		}
		for _, delays := range [][]time.Duration{{time.Minute}, {time.Minute, time.Hour}} {
			s, err := dlx.NewTTL(dlx.TTLConfig{Delays: delays, TopicPermissions: checked})
			keep(s, err)
		}
		for _, queues := range []int{1, 3} {
			n, err := dlx.NewNative(dlx.NativeConfig{Queues: queues, TopicPermissions: checked})
			keep(n, err)
		}
	}
	p, err := plugin.New(plugin.Config{})
	keep(p, err)

	var live plan.State
	for _, s := range all {
		live.Bindings = append(live.Bindings, s.Topology().Bindings...)
		for _, d := range []topology.Destination{{Queue: "q"}, {Queue: "a.b"}, {Exchange: "x", RoutingKey: "a.b"}} {
			live.Bindings = append(live.Bindings, s.Bindings(d)...)
		}
	}
	for _, s := range all {
		if strays := plan.Compare(s.Topology(), live).Strays; len(strays) > 0 {
			t.Errorf("%T: got the stray binding %v and %d more, want none", s, strays[0], len(strays)-1)
		}
		if got := live.Delivered(s.Topology()); !slices.Equal(got, []string{"a.b", "q"}) {
			t.Errorf(`%T: Delivered returned %q, want ["a.b" "q"]`, s, got)
		}
	}
}
