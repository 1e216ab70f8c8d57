package removal

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/report"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// twoDigits returns a layout with two digits, as the bucket strategy creates it, and with bindings for the
// destinations.
func twoDigits(name, tag string, dests ...topology.Destination) topology.Topology {
	t := topology.DeliveryTopology("delay")
	level := topology.Exchange{Name: name + ".level-0", Kind: "topic", AlternateExchange: "delay.parked"}
	for _, q := range []struct {
		name string
		next string
		ttl  time.Duration
	}{{name + ".2s", level.Name, 2 * time.Second}, {name + ".1s", "delay.deliver", time.Second}} {
		t.Queues = append(t.Queues, topology.Queue{
			Name: q.name, Type: topology.Quorum, MessageTTL: &q.ttl,
			DeadLetter: &topology.DeadLetter{Exchange: q.next, AtLeastOnce: true}, Overflow: argument.RejectPublish,
		})
		t.Exchanges = append(t.Exchanges, topology.Exchange{Name: q.name, Kind: "fanout"})
		t.Bindings = append(t.Bindings, topology.Binding{Exchange: q.name, Queue: q.name})
	}
	t.Exchanges = append(t.Exchanges, level)
	t.Bindings = append(t.Bindings,
		topology.Binding{Exchange: level.Name, Queue: name + ".1s", RoutingKey: tag + ".*.1.#"},
		topology.Binding{Exchange: level.Name, ToExchange: "delay.deliver", RoutingKey: tag + ".*.0.#"})
	for _, d := range dests {
		t.Destinations = append(t.Destinations, d)
		t.Bindings = append(t.Bindings, topology.Binding{Exchange: "delay.deliver", Queue: d.TargetQueue("delay"), RoutingKey: tag + ".*.*." + d.Key("delay")})
	}
	return t.WithDestinationQueues("delay", topology.Quorum)
}

// applied returns the state of a broker on which the topologies were applied.
func applied(t *testing.T, all ...topology.Topology) plan.State {
	t.Helper()
	merged, err := topology.Topology{}.Merge(all...)
	if err != nil {
		t.Fatal(err)
	}
	l := plan.State{
		Source: "management API", BindingsKnown: true, Exchanges: map[string]plan.Exchange{},
		Queues: map[string]plan.Queue{}, Bindings: merged.Bindings,
	}
	for _, e := range merged.Exchanges {
		l.Exchanges[e.Name] = plan.Exchange{ArgumentsKnown: true, Kind: e.Kind, Durable: true, Arguments: e.Table()}
	}
	for _, q := range merged.Queues {
		l.Queues[q.Name] = plan.Queue{ArgumentsKnown: true, Type: q.Type, Durable: true, Arguments: q.Table()}
	}
	return l
}

func holding(l plan.State, queue string, messages, consumers int64) plan.State {
	l.Queues = maps.Clone(l.Queues)
	q := l.Queues[queue]
	q.Messages, q.Consumers = messages, consumers
	l.Queues[queue] = q
	return l
}

func bound(l plan.State, b ...topology.Binding) plan.State {
	l.Bindings = append(slices.Clip(l.Bindings), b...)
	return l
}

// overAMQP returns the part of the state that can be read over AMQP.
func overAMQP(l plan.State) plan.State {
	l.Bindings, l.BindingsKnown = nil, false
	for name, e := range l.Exchanges {
		l.Exchanges[name] = plan.Exchange{Kind: e.Kind}
	}
	for name, q := range l.Queues {
		l.Queues[name] = plan.Queue{Messages: q.Messages, Consumers: q.Consumers}
	}
	return l
}

func kept(r Plan) map[string]string {
	out := map[string]string{}
	for _, s := range r.Steps {
		if s.Action == ActionKeep {
			out[s.Name] = s.Reason
		}
	}
	return out
}

var (
	orders = topology.Destination{Queue: "orders"}
	events = topology.Destination{Exchange: "events", RoutingKey: "k"}
)

// A layout's own objects are always deleted. Shared objects are deleted if nothing else uses them, and destinations
// only on request.
func TestRemovalKeepsObjectsInUse(t *testing.T) {
	old := twoDigits("delay.bucket.r2x2", "r2x2", orders, events)
	own := []string{"delay.bucket.r2x2.2s", "delay.bucket.r2x2.1s", "delay.bucket.r2x2.level-0"}
	const route = "delay.route.events:k"
	for _, c := range []struct {
		name string
		live func(plan.State) plan.State
		opts Options
		kept map[string]string // object name -> part of the reason; never contains the layout's own objects
		gone []string          // deleted in addition to the layout's own objects
	}{
		{
			name: "alone", gone: []string{"delay.deliver", "delay.parked", route},
			kept: map[string]string{"orders": "a destination", "orders.dead": "a destination"},
		},
		{
			name: "with its destinations", opts: Options{Destinations: true},
			gone: []string{"delay.deliver", "delay.parked", route, "orders", "orders.dead"},
		},
		{
			name: "next to an existing layout", opts: Options{Destinations: true},
			live: func(plan.State) plan.State {
				return applied(t, old, twoDigits("delay.bucket.hex", "hex", orders, events))
			},
			kept: map[string]string{
				"delay.deliver": "the layout delay.bucket.hex also exists", "delay.parked": "the layout delay.bucket.hex",
				route: "the layout delay.bucket.hex", "orders": "the exchange delay.deliver leads to it", "orders.dead": "the queue orders dead-letters to it",
			},
		},
		{
			name: "next to the same layout of classic queues",
			live: func(plan.State) plan.State {
				return applied(t, old, twoDigits("delay.bucket.r2x2-classic", "r2x2", orders))
			},
			kept: map[string]string{
				`"delay.deliver" -> queue "orders", routing key "r2x2.*.*.orders"`: "the layout delay.bucket.r2x2-classic also uses it",
				"delay.deliver": "delay.bucket.r2x2-classic",
			},
		},
		{
			name: "another's destination", live: func(l plan.State) plan.State {
				return bound(l, topology.Binding{Exchange: "delay.deliver", Queue: "payments", RoutingKey: "r2x2.*.*.payments"})
			},
			kept: map[string]string{"delay.deliver": "it leads to the queue payments", "delay.parked": "it is the alternate exchange of delay.deliver"},
			gone: []string{route},
		},
		{
			name: "parked messages", live: func(l plan.State) plan.State { return holding(l, "delay.parked", 3, 0) },
			kept: map[string]string{"delay.parked": "it contains 3 messages"}, gone: []string{"delay.deliver", route},
		},
		{
			name: "a reader of the parked", live: func(l plan.State) plan.State { return holding(l, "delay.parked", 0, 1) },
			kept: map[string]string{"delay.parked": "it has 1 consumer"}, gone: []string{"delay.deliver", route},
		},
		{
			name: "a message in a route queue", live: func(l plan.State) plan.State { return holding(l, route, 1, 0) },
			kept: map[string]string{route: "it contains 1 message"}, gone: []string{"delay.deliver"},
		},
		{
			name: "a destination that others feed", opts: Options{Destinations: true},
			live: func(l plan.State) plan.State {
				return bound(l, topology.Binding{Exchange: "shop", Queue: "orders", RoutingKey: "x"})
			},
			kept: map[string]string{"orders": "the exchange shop leads to it", "orders.dead": "the queue orders dead-letters"}, gone: []string{"delay.deliver"},
		},
		{
			name: "a level that others feed", live: func(l plan.State) plan.State {
				return bound(l, topology.Binding{Exchange: "shop", ToExchange: "delay.deliver", RoutingKey: "#"})
			},
			kept: map[string]string{"delay.deliver": "the exchange shop leads to it"},
		},
		{
			name: "AMQP alone, forced", opts: Options{Force: true}, live: overAMQP,
			kept: map[string]string{
				"delay.deliver": "AMQP does not show", "delay.parked": "AMQP does not show", route: "AMQP does not show",
				`"delay.deliver" -> queue "orders", routing key "r2x2.*.*.orders"`: "AMQP does not show",
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			live := applied(t, old)
			if c.live != nil {
				live = c.live(live)
			}
			r := Decide(old, live, c.opts)
			if err := r.Refusal(); err != nil {
				t.Errorf("Refusal returned %v, want nil", err)
			}
			kept := kept(r)
			for name, reason := range c.kept {
				if got, ok := kept[name]; !ok || !strings.Contains(got, reason) {
					t.Errorf("%s: kept = %t with the reason %q, want true and %q in the reason", name, ok, got, reason)
				}
			}
			for _, name := range append(c.gone, own...) {
				if reason, ok := kept[name]; ok {
					t.Errorf("%s is kept with the reason %q, want it deleted", name, reason)
				}
			}
			if !c.opts.Destinations && !r.Empty() {
				if _, ok := kept["orders"]; !ok {
					t.Errorf("got the kept objects %v, want the destination orders among them", kept)
				}
			}
		})
	}
}

// If the name of a layout does not contain its configuration, another configuration on the same broker may use the
// layout too. Objects are then kept.
func TestRemovalKeepsObjectsOfOtherConfigurations(t *testing.T) {
	// auto returns the objects that the auto strategy creates with two declared delays.
	minute := time.Minute
	auto := func(bucket, tag string) topology.Topology {
		top := twoDigits(bucket, tag, orders)
		for _, name := range []string{"delay.ttl.1m", "delay.ttl.2m"} {
			top.Queues = append(top.Queues, topology.Queue{
				Name: name, Type: topology.Quorum, MessageTTL: &minute,
				DeadLetter: &topology.DeadLetter{Exchange: "delay.deliver", AtLeastOnce: true},
			})
			top.Exchanges = append(top.Exchanges, topology.Exchange{Name: name, Kind: "fanout"})
			top.Bindings = append(top.Bindings, topology.Binding{Exchange: name, Queue: name})
		}
		top.Exchanges = append(top.Exchanges, topology.Exchange{
			Name: "delay.plugin", Kind: argument.DelayedExchange,
			Arguments: map[string]any{argument.DelayedType: "topic"},
		})
		top.Bindings = append(top.Bindings, topology.Binding{Exchange: "delay.plugin", ToExchange: "delay.deliver", RoutingKey: "#"},
			topology.Binding{Exchange: "delay.deliver", Queue: "orders", RoutingKey: "ttl.*.orders"},
			topology.Binding{Exchange: "delay.deliver", Queue: "orders", RoutingKey: "plugin.orders"})
		return top
	}
	const (
		toOrders     = `"delay.deliver" -> queue "orders", routing key "ttl.*.orders"`
		pluginOrders = `"delay.deliver" -> queue "orders", routing key "plugin.orders"`
		clockOrders  = `"delay.deliver" -> queue "orders", routing key "clock.*.*.orders"`
	)
	old := auto("delay.bucket", "clock")
	with := func(l ...string) Options { return Options{Layouts: l, Force: true} }
	for _, c := range []struct {
		name   string
		others []topology.Topology
		opts   Options
		kept   []string
		gone   []string
	}{
		{
			name: "next to another bucket layout", others: []topology.Topology{auto("delay.bucket.hex", "hex")}, opts: with(),
			kept: []string{"delay.ttl.1m", "delay.ttl.2m", "delay.plugin", toOrders, pluginOrders},
			gone: []string{"delay.bucket.2s", "delay.bucket.1s", clockOrders},
		},
		{
			name: "alone", opts: with(),
			gone: []string{"delay.bucket.2s", "delay.ttl.1m", "delay.ttl.2m", "delay.plugin", toOrders, pluginOrders, clockOrders},
		},
		{
			name: "by its name", others: []topology.Topology{twoDigits("delay.bucket.hex", "hex", orders)}, opts: with("delay.ttl"),
			kept: []string{"delay.plugin", pluginOrders}, gone: []string{"delay.ttl.1m", "delay.ttl.2m", toOrders, clockOrders},
		},
		{
			name: "one of its queues by name", others: []topology.Topology{twoDigits("delay.bucket.hex", "hex", orders)}, opts: with("delay.ttl.2m"),
			kept: []string{"delay.ttl.1m", "delay.plugin", toOrders}, gone: []string{"delay.ttl.2m", clockOrders},
		},
	} {
		live := applied(t, append(c.others, old)...)
		r := Decide(old, live, c.opts)
		kept := kept(r)
		for _, name := range c.kept {
			if reason := kept[name]; !strings.Contains(reason, "the layout delay.bucket.hex may also use it; to delete it anyway, give --layout delay.") {
				t.Errorf("%s: %s is kept with the reason %q, want the other layout and --layout in it", c.name, name, reason)
			}
		}
		for _, name := range c.gone {
			if reason, ok := kept[name]; ok {
				t.Errorf("%s: %s is kept with the reason %q, want it deleted", c.name, name, reason)
			}
		}
		// An exchange and its queue have the same name. The bindings between them are kept if the exchange is kept.
		for _, s := range r.Steps {
			if s.Kind == topology.KindBinding && s.part == ownPart && (s.Action == ActionKeep) != slices.Contains(c.kept, s.Binding.Exchange) {
				t.Errorf("%s: binding %s has the action %s (%s), want the action of its exchange", c.name, s.Name, s.Action, s.Reason)
			}
		}
	}
	// If only some of the ttl queues are configured, the other queues show that another configuration exists.
	some := topology.Topology{Queues: old.Queues[len(old.Queues)-2 : len(old.Queues)-1]}
	if k := kept(Decide(some, applied(t, topology.Topology{Queues: old.Queues[len(old.Queues)-2:]}), Options{})); k["delay.ttl.1m"] !=
		"the layout delay.ttl.2m may also use it; to delete it anyway, give --layout delay.ttl.1m" {
		t.Errorf("kept %v, want the advice to give --layout delay.ttl.1m", k)
	}
}

// If a destination is kept, so is its dead-letter queue. The destination's arguments do not mention that queue, because
// consumers publish dead letters themselves.
func TestRemovalKeepsTheDeadLetterQueueOfAKeptDestination(t *testing.T) {
	top := twoDigits("delay.bucket.r2x2", "r2x2", orders)
	live := bound(applied(t, top), topology.Binding{Exchange: "shop", Queue: "orders", RoutingKey: "x"})
	live.Queues["orders"] = plan.Queue{ArgumentsKnown: true, Type: topology.Classic, Durable: true}
	r := Decide(top, live, Options{Destinations: true})
	if k := kept(r); k["orders"] == "" || k["orders.dead"] != "the queue orders dead-letters to it" {
		t.Errorf(`kept %v, want k["orders"] not empty and k["orders.dead"] = "the queue orders dead-letters to it"`, k)
	}
	if r := Decide(top, applied(t, top), Options{Destinations: true}); len(kept(r)) != 0 {
		t.Errorf("got the kept objects %v, want none, because nothing else uses them", kept(r))
	}
}

func TestRemovalRefuses(t *testing.T) {
	top := twoDigits("delay.bucket.r2x2", "r2x2", orders)
	const delayed = "delay.bucket.r2x2.2s"
	for _, c := range []struct {
		name string
		live func(plan.State) plan.State
		opts Options
		want error
		text string
	}{
		{name: "nothing in it"},
		{name: "a message waits", live: func(l plan.State) plan.State { return holding(l, delayed, 2, 0) }, want: ErrNotEmpty,
			text: "refused: 2 messages in 1 queue, 2 of them waiting in delay queues (delay.bucket.r2x2.2s 2); wait until they have drained"},
		{name: "forced", live: func(l plan.State) plan.State { return holding(l, delayed, 2, 0) }, opts: Options{Force: true}},
		{name: "forced within the count", live: func(l plan.State) plan.State {
			return holding(l, delayed, 2, 0)
		}, opts: Options{Force: true, Messages: new(int64(2))}},
		{name: "more than the count", live: func(l plan.State) plan.State { return holding(l, delayed, 2, 0) }, opts: Options{Force: true, Messages: new(int64(1))},
			want: ErrNotEmpty, text: "at most 1 may be deleted"},
		{name: "a message for a destination that stays", live: func(l plan.State) plan.State { return holding(l, "orders", 2, 1) }},
		{name: "a message in a destination", live: func(l plan.State) plan.State {
			return holding(l, "orders", 2, 0)
		}, opts: Options{Destinations: true}, want: ErrNotEmpty},
		{name: "a message in a destination, forced without a count", live: func(l plan.State) plan.State { return holding(l, "orders", 2, 0) },
			opts: Options{Destinations: true, Force: true}, want: ErrNotEmpty},
		{name: "a message in a destination, with a count", live: func(l plan.State) plan.State { return holding(l, "orders", 2, 1) },
			opts: Options{Destinations: true, Force: true, Messages: new(int64(2))}},
		{name: "a consumer of a destination", live: func(l plan.State) plan.State { return holding(l, "orders", 0, 1) }, opts: Options{Destinations: true},
			want: ErrConsumers, text: "refused: consumers are attached (orders 1); stop them first"},
		{name: "a consumer of a delay queue", live: func(l plan.State) plan.State { return holding(l, delayed, 0, 1) }, want: ErrConsumers},
		{name: "AMQP alone", live: overAMQP, want: ErrUnseen},
		{name: "AMQP alone, and nothing is there", live: func(plan.State) plan.State { return plan.State{} }},
		{name: "a delay queue that was declared otherwise", live: func(l plan.State) plan.State {
			q := l.Queues[delayed]
			q.Arguments = map[string]any{argument.QueueType: "quorum"}
			l.Queues[delayed] = q
			return l
		}},
		{name: "a destination that is another's", opts: Options{Destinations: true}, want: topology.ErrConflict, live: func(l plan.State) plan.State {
			q := l.Queues["orders"]
			q.Arguments, q.Type = map[string]any{argument.MaxLength: 5}, topology.Classic
			l.Queues["orders"] = q
			return l
		}},
	} {
		live := applied(t, top)
		if c.live != nil {
			live = c.live(live)
		}
		err := Decide(top, live, c.opts).Refusal()
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got error %v, want %v containing %q", c.name, err, c.want, c.text)
		}
	}
}

// Messages that wait in the plugin count too.
func TestRemovalCountsThePluginsMessages(t *testing.T) {
	top := topology.DeliveryTopology("delay")
	top.Exchanges = append(top.Exchanges, topology.Exchange{
		Name: "delay.plugin", Kind: argument.DelayedExchange, Arguments: map[string]any{argument.DelayedType: "topic"},
	})
	top.Bindings = append(top.Bindings, topology.Binding{Exchange: "delay.plugin", ToExchange: "delay.deliver", RoutingKey: "#"})
	for want, x := range map[error]plan.Exchange{
		nil: {ArgumentsKnown: true, Kind: argument.DelayedExchange, HeldKnown: true}, errHeld: {ArgumentsKnown: true, Kind: argument.DelayedExchange},
		ErrNotEmpty: {ArgumentsKnown: true, Kind: argument.DelayedExchange, HeldKnown: true, Held: 4},
	} {
		live := applied(t, top)
		live.Exchanges["delay.plugin"] = x
		if err := Decide(top, live, Options{}).Refusal(); !errors.Is(err, want) {
			t.Errorf("Refusal returned %v, want %v", err, want)
		}
	}
}

func TestRemovalRender(t *testing.T) {
	top := twoDigits("delay.bucket.r2x2", "r2x2", orders)
	live := holding(applied(t, top), "delay.bucket.r2x2.2s", 4, 0)
	var b strings.Builder
	if err := Decide(top, live, Options{}).Render(&b, report.Style{}, false); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"delete  1 queue, 3 exchanges, 4 bindings of delay.bucket.r2x2\n",
		"delete  queue delay.bucket.r2x2.2s, with 4 messages\n",
		"delete  exchange delay.deliver\n",
		"keep    queue orders: it belongs to a destination or to the file, not to the layout\n",
	} {
		if !strings.Contains(b.String(), line) {
			t.Errorf("got the text\n%[2]s\nwant the line %[1]q in it", line, b.String())
		}
	}
}

// A second binding that a client has added for a destination is deleted with the first one, and is no reason to keep
// shared objects.
func TestRemovalDeletesClientsSecondBindings(t *testing.T) {
	layout := twoDigits("delay.bucket", "clock", topology.Destination{Queue: "orders"})
	second := layout.Bindings[len(layout.Bindings)-1]
	second.Arguments = map[string]any{argument.Binder: "shop/1"}
	r := Decide(layout, bound(applied(t, layout), second), Options{Prefix: "delay"})
	if err := r.Refusal(); err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Steps {
		shared := s.Name == "delay.deliver" || s.Name == "delay.parked"
		if (shared || s.Name == second.String()) && s.Action != ActionDelete {
			t.Errorf("%s %s has the action %s with the reason %q, want it deleted", s.Kind, s.Name, s.Action, s.Reason)
		}
	}
}

// A queue is deleted before the queue that receives its dead letters, directly or through other queues.
func TestRemovalOrderPutsDeadLettersLast(t *testing.T) {
	top := topology.Topology{Destinations: []topology.Destination{
		{Queue: "b", DeadLetter: "c"}, {Queue: "a", DeadLetter: "b"}, {Queue: "x", DeadLetter: "y"}, {Queue: "y", DeadLetter: "x"},
	}}.WithDestinationQueues("delay", topology.Quorum)
	r := Decide(top, applied(t, top), Options{Destinations: true})
	var got []string
	for _, stage := range r.Order().Declared {
		var names []string
		for _, s := range stage {
			names = append(names, s.Name)
		}
		slices.Sort(names)
		got = append(got, strings.Join(names, " "))
	}
	if want := []string{"a", "b", "c", "x y", ""}; !slices.Equal(got, want) { // x and y form a cycle
		t.Errorf("queues by order of deletion: got %q, want %q", got, want)
	}
}

// If an object is kept after the decision, the objects that it needs are kept too.
func TestRemovalKeepsObjectsThatAKeptOneNeeds(t *testing.T) {
	top := twoDigits("delay.bucket.r2x2", "r2x2", orders)
	for _, c := range []struct {
		object, needed string
		kind           topology.Kind
		reason         string
	}{
		{"orders", "orders.dead", topology.KindQueue, "the queue orders dead-letters to it"},
		{"delay.deliver", "delay.parked", topology.KindExchange, "it is the alternate exchange of delay.deliver"},
	} {
		r := Decide(top, applied(t, top), Options{Destinations: true})
		if k := kept(r); len(k) > 0 {
			t.Fatalf("before Keep: kept %v, want none", k)
		}
		i := slices.IndexFunc(r.Steps, func(s Step) bool { return s.Kind == c.kind && s.Name == c.object })
		r.Keep(r.Steps[i], "a message has arrived")
		if k := kept(r); k[c.object] != "a message has arrived" || k[c.needed] != c.reason {
			t.Errorf("after Keep: kept %v, want the object, and the object that it needs with the reason %q", k, c.reason)
		}
		for _, s := range r.Going(r.Steps) {
			if s.Kind == c.kind && (s.Name == c.object || s.Name == c.needed) {
				t.Errorf("%s %s is deleted, want it kept", s.Kind, s.Name)
			}
		}
	}
}

// The markers of complete topologies are deleted with any part of a layout. Otherwise, the next client would not check
// whether the layout is complete.
func TestRemovalDeletesTheMarkersOfCompleteTopologies(t *testing.T) {
	old, other := twoDigits("delay.bucket.r2x2", "r2x2", orders), twoDigits("delay.bucket.hex", "hex", orders)
	present := applied(t, old, other, topology.Topology{Exchanges: []topology.Exchange{
		{Name: "delay.declared.1a", Kind: "fanout"}, {Name: "delay.declared.2b", Kind: "fanout"},
	}})
	order := Decide(old, present, Options{}).Order()
	if len(order.Marks) != 2 || len(order.DelayQueues) != 2 {
		t.Errorf("got the markers %v and the delay queues %v, want two of each", order.Marks, order.DelayQueues)
	}
	for name, r := range map[string]Plan{
		"a layout that is not there": Decide(twoDigits("delay.bucket.r3", "r3"), present, Options{}),
		"a destination alone":        Decide(topology.Topology{Queues: []topology.Queue{{Name: "orders"}}}, present, Options{Destinations: true}),
	} {
		if len(r.Order().Marks) > 0 {
			t.Errorf("%s: got the steps %v, want no markers to be deleted", name, r.Steps)
		}
	}
}

// A queue that the management API has not counted yet may have messages that are not ready. It is deleted only with
// Force and without a limit in Messages.
func TestRemovalBeforeTheFirstCount(t *testing.T) {
	ttl := time.Second
	top := topology.Topology{
		Exchanges: []topology.Exchange{{Name: "delay.bucket.r2-1s.1s", Kind: "fanout"}},
		Queues:    []topology.Queue{{Name: "delay.bucket.r2-1s.1s", MessageTTL: &ttl, DeadLetter: &topology.DeadLetter{Exchange: "delay.deliver", AtLeastOnce: true}}},
	}
	for _, spoil := range []func(*plan.Queue){func(q *plan.Queue) { q.Uncounted = true }, func(q *plan.Queue) { q.ReadyOnly = true }} {
		for _, c := range []struct {
			opts    Options
			refused bool
		}{{Options{}, true}, {Options{Force: true}, false}, {Options{Force: true, Messages: new(int64)}, true}} {
			live := applied(t, top)
			q := live.Queues["delay.bucket.r2-1s.1s"]
			spoil(&q)
			live.Queues["delay.bucket.r2-1s.1s"] = q
			err := Decide(top, live, c.opts).Refusal()
			if _, uncounted := errors.AsType[*UncountedError](err); uncounted != c.refused || errors.Is(err, ErrUnseen) != c.refused {
				t.Errorf("%+v: got %v, want an UncountedError: %t", c.opts, err, c.refused)
			}
		}
	}
}

// Only the management API counts messages that wait for their delivery time. A removal that cannot count them is
// refused.
func TestRemovalOfUncountedMessages(t *testing.T) {
	ttl := time.Duration(0)
	top := topology.Topology{
		Exchanges: []topology.Exchange{{Name: "delay.native.1", Kind: "fanout"}},
		Queues:    []topology.Queue{{Name: "delay.native.1", MessageTTL: &ttl, DeadLetter: &topology.DeadLetter{Exchange: "delay.deliver", AtLeastOnce: true}}},
	}
	for _, opts := range []Options{{}, {Force: true}, {Force: true, Messages: new(int64)}} {
		if err := Decide(top, overAMQP(applied(t, top)), opts).Refusal(); !errors.Is(err, ErrUnseen) || !strings.Contains(err.Error(), "wait for their due time") {
			t.Errorf(`%+v over AMQP: got error %v, want ErrUnseen containing "wait for their due time"`, opts, err)
		}
		if err := Decide(top, applied(t, top), opts).Refusal(); err != nil {
			t.Errorf("%+v: Refusal returned %v, want nil", opts, err)
		}
	}
}
