package topology

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// twoDigits is a layout of two positions, as the bucket strategy makes it, with
// destinations bound for it.
func twoDigits(name, tag string, dests ...Destination) Topology {
	t := DeliveryTopology("delay")
	level := Exchange{Name: name + ".level-0", Kind: "topic", AlternateExchange: "delay.parked"}
	for _, q := range []struct {
		name string
		next string
		ttl  time.Duration
	}{{name + ".2s", level.Name, 2 * time.Second}, {name + ".1s", "delay.deliver", time.Second}} {
		t.Queues = append(t.Queues, Queue{
			Name: q.name, Type: Quorum, MessageTTL: &q.ttl, DeadLetter: &DeadLetter{Exchange: q.next, AtLeastOnce: true}, Overflow: OverflowRejectPublish,
		})
		t.Exchanges = append(t.Exchanges, Exchange{Name: q.name, Kind: "fanout"})
		t.Bindings = append(t.Bindings, Binding{Exchange: q.name, Queue: q.name})
	}
	t.Exchanges = append(t.Exchanges, level)
	t.Bindings = append(t.Bindings,
		Binding{Exchange: level.Name, Queue: name + ".1s", RoutingKey: tag + ".*.1.#"},
		Binding{Exchange: level.Name, ToExchange: "delay.deliver", RoutingKey: tag + ".*.0.#"})
	for _, d := range dests {
		t.Destinations = append(t.Destinations, d)
		t.Bindings = append(t.Bindings, Binding{Exchange: "delay.deliver", Queue: d.TargetQueue("delay"), RoutingKey: tag + ".*.*." + d.Key("delay")})
	}
	return t.WithDestinationQueues("delay", Quorum)
}

// applied is a broker on which the topologies were applied.
func applied(t *testing.T, all ...Topology) Live {
	t.Helper()
	merged, err := Topology{}.Merge(all...)
	if err != nil {
		t.Fatal(err)
	}
	l := Live{Source: "management API", BindingsKnown: true, Exchanges: map[string]LiveExchange{}, Queues: map[string]LiveQueue{}, Bindings: merged.Bindings}
	for _, e := range merged.Exchanges {
		l.Exchanges[e.Name] = LiveExchange{ArgumentsKnown: true, Kind: e.Kind, Durable: true, Arguments: e.Table()}
	}
	for _, q := range merged.Queues {
		l.Queues[q.Name] = LiveQueue{ArgumentsKnown: true, Type: q.Type, Durable: true, Arguments: q.Table()}
	}
	return l
}

func (l Live) holding(queue string, messages, consumers int64) Live {
	l.Queues = maps.Clone(l.Queues)
	q := l.Queues[queue]
	q.Messages, q.Consumers = messages, consumers
	l.Queues[queue] = q
	return l
}

func (l Live) with(b ...Binding) Live {
	l.Bindings = append(slices.Clip(l.Bindings), b...)
	return l
}

// overAMQP is what AMQP alone shows of it.
func (l Live) overAMQP() Live {
	l.Bindings, l.BindingsKnown = nil, false
	for name, e := range l.Exchanges {
		l.Exchanges[name] = LiveExchange{Kind: e.Kind}
	}
	for name, q := range l.Queues {
		l.Queues[name] = LiveQueue{Messages: q.Messages, Consumers: q.Consumers}
	}
	return l
}

func kept(r Removal) map[string]string {
	out := map[string]string{}
	for _, s := range r.Steps {
		if s.Action == ActionKeep {
			out[s.Name] = s.Reason
		}
	}
	return out
}

var (
	orders = Destination{Queue: "orders"}
	events = Destination{Exchange: "events", RoutingKey: "k"}
)

// What is the layout's own always goes; what is shared, when nothing else uses
// it; destinations when they are asked for.
func TestRemovalKeepsWhatOthersUse(t *testing.T) {
	old := twoDigits("delay.bucket.r2x2", "r2x2", orders, events)
	own := []string{"delay.bucket.r2x2.2s", "delay.bucket.r2x2.1s", "delay.bucket.r2x2.level-0"}
	const route = "delay.route.events:k"
	for _, c := range []struct {
		name string
		live func(Live) Live
		opts RemovalOptions
		kept map[string]string // name -> part of the reason; own objects never
		gone []string          // deleted besides the layout's own
	}{
		{
			name: "alone", gone: []string{"delay.deliver", "delay.parked", route},
			kept: map[string]string{"orders": "a destination", "orders.dead": "a destination"},
		},
		{
			name: "with its destinations", opts: RemovalOptions{Destinations: true},
			gone: []string{"delay.deliver", "delay.parked", route, "orders", "orders.dead"},
		},
		{
			name: "beside a live layout", opts: RemovalOptions{Destinations: true},
			live: func(Live) Live { return applied(t, old, twoDigits("delay.bucket.hex", "hex", orders, events)) },
			kept: map[string]string{
				"delay.deliver": "the layout delay.bucket.hex exists too", "delay.parked": "the layout delay.bucket.hex",
				route: "the layout delay.bucket.hex", "orders": "the exchange delay.deliver leads to it", "orders.dead": "the queue orders dead-letters to it",
			},
		},
		{
			name: "beside the same layout of classic queues",
			live: func(Live) Live { return applied(t, old, twoDigits("delay.bucket.r2x2-classic", "r2x2", orders)) },
			kept: map[string]string{
				`"delay.deliver" -> queue "orders", routing key "r2x2.*.*.orders"`: "the layout delay.bucket.r2x2-classic uses it too",
				"delay.deliver": "delay.bucket.r2x2-classic",
			},
		},
		{
			name: "another's destination", live: func(l Live) Live {
				return l.with(Binding{Exchange: "delay.deliver", Queue: "payments", RoutingKey: "r2x2.*.*.payments"})
			},
			kept: map[string]string{"delay.deliver": "it leads to the queue payments", "delay.parked": "it is the alternate exchange of delay.deliver"},
			gone: []string{route},
		},
		{
			name: "parked messages", live: func(l Live) Live { return l.holding("delay.parked", 3, 0) },
			kept: map[string]string{"delay.parked": "it holds 3 messages"}, gone: []string{"delay.deliver", route},
		},
		{
			name: "a reader of the parked", live: func(l Live) Live { return l.holding("delay.parked", 0, 1) },
			kept: map[string]string{"delay.parked": "it has 1 consumer"}, gone: []string{"delay.deliver", route},
		},
		{
			name: "a message in a route queue", live: func(l Live) Live { return l.holding(route, 1, 0) },
			kept: map[string]string{route: "it holds 1 message"}, gone: []string{"delay.deliver"},
		},
		{
			name: "a destination that others feed", opts: RemovalOptions{Destinations: true},
			live: func(l Live) Live { return l.with(Binding{Exchange: "shop", Queue: "orders", RoutingKey: "x"}) },
			kept: map[string]string{"orders": "the exchange shop leads to it", "orders.dead": "the queue orders dead-letters"}, gone: []string{"delay.deliver"},
		},
		{
			name: "a level that others feed", live: func(l Live) Live {
				return l.with(Binding{Exchange: "shop", ToExchange: "delay.deliver", RoutingKey: "#"})
			},
			kept: map[string]string{"delay.deliver": "the exchange shop leads to it"},
		},
		{
			name: "AMQP alone, forced", opts: RemovalOptions{Force: true}, live: Live.overAMQP,
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
			r := PlanRemoval(old, live, c.opts)
			if err := r.Refusal(); err != nil {
				t.Errorf("refused: %v", err)
			}
			kept := kept(r)
			for name, reason := range c.kept {
				if got, ok := kept[name]; !ok || !strings.Contains(got, reason) {
					t.Errorf("%s: kept %v, because %q, want %q", name, ok, got, reason)
				}
			}
			for _, name := range append(c.gone, own...) {
				if reason, ok := kept[name]; ok {
					t.Errorf("%s is kept: %s", name, reason)
				}
			}
			if !c.opts.Destinations && !r.Empty() {
				if _, ok := kept["orders"]; !ok {
					t.Error("a destination would go")
				}
			}
		})
	}
}

// A layout whose name says nothing of its configuration may be in use by another
// one, of which only other layouts are seen.
func TestRemovalKeepsWhatAnotherConfigurationMayUse(t *testing.T) {
	// What the auto strategy makes, with two declared durations.
	minute := time.Minute
	auto := func(bucket, tag string) Topology {
		top := twoDigits(bucket, tag, orders)
		for _, name := range []string{"delay.ttl.1m", "delay.ttl.2m"} {
			top.Queues = append(top.Queues, Queue{Name: name, Type: Quorum, MessageTTL: &minute, DeadLetter: &DeadLetter{Exchange: "delay.deliver", AtLeastOnce: true}})
			top.Exchanges = append(top.Exchanges, Exchange{Name: name, Kind: "fanout"})
			top.Bindings = append(top.Bindings, Binding{Exchange: name, Queue: name})
		}
		top.Exchanges = append(top.Exchanges, Exchange{Name: "delay.plugin", Kind: kindDelayed, Arguments: map[string]any{ArgDelayedType: "topic"}})
		top.Bindings = append(top.Bindings, Binding{Exchange: "delay.plugin", ToExchange: "delay.deliver", RoutingKey: "#"},
			Binding{Exchange: "delay.deliver", Queue: "orders", RoutingKey: "ttl.*.orders"},
			Binding{Exchange: "delay.deliver", Queue: "orders", RoutingKey: "plugin.orders"})
		return top
	}
	const (
		toOrders     = `"delay.deliver" -> queue "orders", routing key "ttl.*.orders"`
		pluginOrders = `"delay.deliver" -> queue "orders", routing key "plugin.orders"`
		clockOrders  = `"delay.deliver" -> queue "orders", routing key "clock.*.*.orders"`
	)
	old := auto("delay.bucket", "clock")
	with := func(l ...string) RemovalOptions { return RemovalOptions{Layouts: l, Force: true} }
	for _, c := range []struct {
		name   string
		others []Topology
		opts   RemovalOptions
		kept   []string
		gone   []string
	}{
		{
			name: "beside another bucket layout", others: []Topology{auto("delay.bucket.hex", "hex")}, opts: with(),
			kept: []string{"delay.ttl.1m", "delay.ttl.2m", "delay.plugin", toOrders, pluginOrders},
			gone: []string{"delay.bucket.2s", "delay.bucket.1s", clockOrders},
		},
		{
			name: "alone", opts: with(),
			gone: []string{"delay.bucket.2s", "delay.ttl.1m", "delay.ttl.2m", "delay.plugin", toOrders, pluginOrders, clockOrders},
		},
		{
			name: "by its name", others: []Topology{twoDigits("delay.bucket.hex", "hex", orders)}, opts: with("delay.ttl"),
			kept: []string{"delay.plugin", pluginOrders}, gone: []string{"delay.ttl.1m", "delay.ttl.2m", toOrders, clockOrders},
		},
		{
			name: "one of its queues by name", others: []Topology{twoDigits("delay.bucket.hex", "hex", orders)}, opts: with("delay.ttl.2m"),
			kept: []string{"delay.ttl.1m", "delay.plugin", toOrders}, gone: []string{"delay.ttl.2m", clockOrders},
		},
	} {
		live := applied(t, append(c.others, old)...)
		r := PlanRemoval(old, live, c.opts)
		kept := kept(r)
		for _, name := range c.kept {
			if reason := kept[name]; !strings.Contains(reason, "the layout delay.bucket.hex may use it too; to delete it anyway, give --layout delay.") {
				t.Errorf("%s: %s is kept because %q", c.name, name, reason)
			}
		}
		for _, name := range c.gone {
			if reason, ok := kept[name]; ok {
				t.Errorf("%s: %s is kept: %s", c.name, name, reason)
			}
		}
		// An exchange and its queue have one name: bindings in the layout stay too.
		for _, s := range r.Steps {
			if s.Kind == KindBinding && s.part == ownPart && (s.Action == ActionKeep) != slices.Contains(c.kept, s.Binding.Exchange) {
				t.Errorf("%s: %s: %s, %s", c.name, s.Name, s.Action, s.Reason)
			}
		}
	}
	// Of another configuration of the ttl strategy its other durations are seen.
	some := Topology{Queues: old.Queues[len(old.Queues)-2 : len(old.Queues)-1]}
	if k := kept(PlanRemoval(some, applied(t, Topology{Queues: old.Queues[len(old.Queues)-2:]}), RemovalOptions{})); k["delay.ttl.1m"] !=
		"the layout delay.ttl.2m may use it too; to delete it anyway, give --layout delay.ttl.1m" {
		t.Errorf("kept %v", k)
	}
}

// Consumers publish dead letters by themselves, so that the queue for them is in
// use whatever arguments the destination's queue has.
func TestRemovalKeepsTheDeadLetterQueueOfAKeptDestination(t *testing.T) {
	top := twoDigits("delay.bucket.r2x2", "r2x2", orders)
	live := applied(t, top).with(Binding{Exchange: "shop", Queue: "orders", RoutingKey: "x"})
	live.Queues["orders"] = LiveQueue{ArgumentsKnown: true, Type: Classic, Durable: true}
	r := PlanRemoval(top, live, RemovalOptions{Destinations: true})
	if k := kept(r); k["orders"] == "" || k["orders.dead"] != "the queue orders dead-letters to it" {
		t.Errorf("kept %v", k)
	}
	if r := PlanRemoval(top, applied(t, top), RemovalOptions{Destinations: true}); len(kept(r)) != 0 {
		t.Errorf("nothing else uses them: kept %v", kept(r))
	}
}

func TestRemovalRefuses(t *testing.T) {
	top := twoDigits("delay.bucket.r2x2", "r2x2", orders)
	const delayed = "delay.bucket.r2x2.2s"
	for _, c := range []struct {
		name string
		live func(Live) Live
		opts RemovalOptions
		want error
		text string
	}{
		{name: "nothing in it"},
		{name: "a message waits", live: func(l Live) Live { return l.holding(delayed, 2, 0) }, want: ErrNotEmpty,
			text: "refused: 2 messages in 1 queue, 2 of them waiting in delay queues (delay.bucket.r2x2.2s 2); let them drain"},
		{name: "forced", live: func(l Live) Live { return l.holding(delayed, 2, 0) }, opts: RemovalOptions{Force: true}},
		{name: "forced within the count", live: func(l Live) Live { return l.holding(delayed, 2, 0) }, opts: RemovalOptions{Force: true, Messages: new(int64(2))}},
		{name: "more than the count", live: func(l Live) Live { return l.holding(delayed, 2, 0) }, opts: RemovalOptions{Force: true, Messages: new(int64(1))},
			want: ErrNotEmpty, text: "at most 1 may be deleted"},
		{name: "a message for a destination that stays", live: func(l Live) Live { return l.holding("orders", 2, 1) }},
		{name: "a message in a destination", live: func(l Live) Live { return l.holding("orders", 2, 0) }, opts: RemovalOptions{Destinations: true}, want: ErrNotEmpty},
		{name: "a message in a destination, forced without a count", live: func(l Live) Live { return l.holding("orders", 2, 0) },
			opts: RemovalOptions{Destinations: true, Force: true}, want: ErrNotEmpty},
		{name: "a message in a destination, with a count", live: func(l Live) Live { return l.holding("orders", 2, 1) },
			opts: RemovalOptions{Destinations: true, Force: true, Messages: new(int64(2))}},
		{name: "a consumer of a destination", live: func(l Live) Live { return l.holding("orders", 0, 1) }, opts: RemovalOptions{Destinations: true},
			want: ErrConsumers, text: "refused: consumers are attached (orders 1); stop them first"},
		{name: "a consumer of a delay queue", live: func(l Live) Live { return l.holding(delayed, 0, 1) }, want: ErrConsumers},
		{name: "AMQP alone", live: Live.overAMQP, want: ErrUnseen},
		{name: "AMQP alone, and nothing is there", live: func(Live) Live { return Live{} }},
		{name: "a delay queue that was declared otherwise", live: func(l Live) Live {
			q := l.Queues[delayed]
			q.Arguments = map[string]any{ArgQueueType: "quorum"}
			l.Queues[delayed] = q
			return l
		}},
		{name: "a destination that is another's", opts: RemovalOptions{Destinations: true}, want: ErrConflict, live: func(l Live) Live {
			q := l.Queues["orders"]
			q.Arguments, q.Type = map[string]any{ArgMaxLength: 5}, Classic
			l.Queues["orders"] = q
			return l
		}},
	} {
		live := applied(t, top)
		if c.live != nil {
			live = c.live(live)
		}
		err := PlanRemoval(top, live, c.opts).Refusal()
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got %v, want %v: %s", c.name, err, c.want, c.text)
		}
	}
}

// What the plugin holds counts as well.
func TestRemovalCountsWhatThePluginHolds(t *testing.T) {
	top := DeliveryTopology("delay")
	top.Exchanges = append(top.Exchanges, Exchange{Name: "delay.plugin", Kind: kindDelayed, Arguments: map[string]any{ArgDelayedType: "topic"}})
	top.Bindings = append(top.Bindings, Binding{Exchange: "delay.plugin", ToExchange: "delay.deliver", RoutingKey: "#"})
	for want, x := range map[error]LiveExchange{
		nil: {ArgumentsKnown: true, Kind: kindDelayed, HeldKnown: true}, errHeld: {ArgumentsKnown: true, Kind: kindDelayed},
		ErrNotEmpty: {ArgumentsKnown: true, Kind: kindDelayed, HeldKnown: true, Held: 4},
	} {
		live := applied(t, top)
		live.Exchanges["delay.plugin"] = x
		if err := PlanRemoval(top, live, RemovalOptions{}).Refusal(); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

// A layout is known by the names of its objects, and a queue of the ttl strategy
// is one by itself.
func TestLayoutOnTheBroker(t *testing.T) {
	minute := time.Minute
	ttl := Topology{
		Exchanges: []Exchange{{Name: "delay.ttl.1m", Kind: "fanout"}, {Name: "delay.ttl.2m", Kind: "fanout"}},
		Queues: []Queue{
			{Name: "delay.ttl.1m", MessageTTL: &minute, DeadLetter: &DeadLetter{Exchange: "delay.deliver"}},
			{Name: "delay.ttl.2m", MessageTTL: &minute, DeadLetter: &DeadLetter{Exchange: "delay.deliver"}},
		},
		Bindings: []Binding{{Exchange: "delay.ttl.1m", Queue: "delay.ttl.1m"}, {Exchange: "delay.ttl.2m", Queue: "delay.ttl.2m"}, {Exchange: "delay.deliver", Queue: "orders", RoutingKey: "ttl.*.orders"}},
	}
	bucket := twoDigits("delay.bucket.r2x2", "r2x2", orders)
	live := applied(t, bucket, ttl)
	got := live.Layout("delay", "delay.bucket.r2x2")
	if len(got.Queues) != 2 || len(got.Exchanges) != 3 || len(got.Bindings) != 5 || !got.Queues[0].IsDelay() {
		t.Errorf("got %+v", got)
	}
	got = live.Layout("delay", "delay.ttl.2m")
	if len(got.Queues) != 1 || got.Queues[0].Name != "delay.ttl.2m" || len(got.Exchanges) != 1 || len(got.Bindings) != 2 {
		t.Errorf("got %+v", got)
	}
	if k := kept(PlanRemoval(got, live, RemovalOptions{})); k[`"delay.deliver" -> queue "orders", routing key "ttl.*.orders"`] != "the layout delay.ttl uses it too" {
		t.Errorf("kept %v", k)
	}
	if got := live.Layout("delay", "delay.bucket", "delay.deliver", "orders"); !got.Empty() {
		t.Errorf("got %+v", got)
	}
}

func TestRemovalRender(t *testing.T) {
	top := twoDigits("delay.bucket.r2x2", "r2x2", orders)
	live := applied(t, top).holding("delay.bucket.r2x2.2s", 4, 0)
	var b strings.Builder
	if err := PlanRemoval(top, live, RemovalOptions{}).Render(&b, false); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"delete  1 queue, 3 exchanges, 4 bindings of delay.bucket.r2x2\n",
		"delete  queue delay.bucket.r2x2.2s, with 4 messages\n",
		"delete  exchange delay.deliver\n",
		"keep    queue orders: it belongs to a destination or to the file, not to the layout\n",
	} {
		if !strings.Contains(b.String(), line) {
			t.Errorf("no line %q in\n%s", line, b.String())
		}
	}
}

// A client's second binding of a destination goes with the first, and does not
// keep what all layouts share.
func TestRemovalTakesClientsSecondBindings(t *testing.T) {
	layout := twoDigits("delay.bucket", "clock", Destination{Queue: "orders"})
	second := layout.Bindings[len(layout.Bindings)-1]
	second.Arguments = map[string]any{ArgBinder: "shop/1"}
	r := PlanRemoval(layout, applied(t, layout).with(second), RemovalOptions{Prefix: "delay"})
	if err := r.Refusal(); err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Steps {
		shared := s.Name == "delay.deliver" || s.Name == "delay.parked"
		if (shared || s.Name == second.String()) && s.Action != ActionDelete {
			t.Errorf("%s %s: %s, because %q", s.Kind, s.Name, s.Action, s.Reason)
		}
	}
}

// A queue goes before the one that takes its dead letters, through however many.
func TestRemovalOrderPutsDeadLettersLast(t *testing.T) {
	top := Topology{Destinations: []Destination{
		{Queue: "b", DeadLetter: "c"}, {Queue: "a", DeadLetter: "b"}, {Queue: "x", DeadLetter: "y"}, {Queue: "y", DeadLetter: "x"},
	}}.WithDestinationQueues("delay", Quorum)
	r := PlanRemoval(top, applied(t, top), RemovalOptions{Destinations: true})
	var got []string
	for _, stage := range r.Order().Declared {
		var names []string
		for _, s := range stage {
			names = append(names, s.Name)
		}
		slices.Sort(names)
		got = append(got, strings.Join(names, " "))
	}
	if want := []string{"a", "b", "c", "x y", ""}; !slices.Equal(got, want) { // x and y go round
		t.Errorf("got %q, want %q", got, want)
	}
}

// What stays after all keeps what it needs.
func TestRemovalKeepsWhatAKeptObjectNeeds(t *testing.T) {
	top := twoDigits("delay.bucket.r2x2", "r2x2", orders)
	for _, c := range []struct {
		object, needed string
		kind           Kind
		reason         string
	}{
		{"orders", "orders.dead", KindQueue, "the queue orders dead-letters to it"},
		{"delay.deliver", "delay.parked", KindExchange, "it is the alternate exchange of delay.deliver"},
	} {
		r := PlanRemoval(top, applied(t, top), RemovalOptions{Destinations: true})
		if k := kept(r); len(k) > 0 {
			t.Fatalf("kept %v", k)
		}
		i := slices.IndexFunc(r.Steps, func(s RemovalStep) bool { return s.Kind == c.kind && s.Name == c.object })
		r.Keep(r.Steps[i], "something came meanwhile")
		if k := kept(r); k[c.object] != "something came meanwhile" || k[c.needed] != c.reason {
			t.Errorf("kept %v", k)
		}
		for _, s := range r.Going(r.Steps) {
			if s.Kind == c.kind && (s.Name == c.object || s.Name == c.needed) {
				t.Errorf("%s %s would go", s.Kind, s.Name)
			}
		}
	}
}

// What says that a topology is complete would be wrong when a part of a layout has
// gone, and who starts next would not look.
func TestRemovalTakesTheMarksOfCompleteTopologies(t *testing.T) {
	old, other := twoDigits("delay.bucket.r2x2", "r2x2", orders), twoDigits("delay.bucket.hex", "hex", orders)
	mark := func(top Topology) string { return DeclaredExchange("delay", top) }
	present := applied(t, old, other, Topology{Exchanges: []Exchange{{Name: mark(old), Kind: "fanout"}, {Name: mark(other), Kind: "fanout"}}})
	order := PlanRemoval(old, present, RemovalOptions{}).Order()
	if len(order.Marks) != 2 || len(order.DelayQueues) != 2 {
		t.Errorf("marks %v, queues %v", order.Marks, order.DelayQueues)
	}
	for name, r := range map[string]Removal{
		"a layout that is not there": PlanRemoval(twoDigits("delay.bucket.r3", "r3"), present, RemovalOptions{}),
		"a destination alone":        PlanRemoval(Topology{Queues: []Queue{{Name: "orders"}}}, present, RemovalOptions{Destinations: true}),
	} {
		if len(r.Order().Marks) > 0 {
			t.Errorf("%s: %v", name, r.Steps)
		}
	}
}

// Messages that wait for an instant are counted by the management API alone, and
// nothing deletes them uncounted.
func TestRemovalOfUncountedMessages(t *testing.T) {
	ttl := time.Duration(0)
	top := Topology{
		Exchanges: []Exchange{{Name: "delay.native.1", Kind: "fanout"}},
		Queues:    []Queue{{Name: "delay.native.1", MessageTTL: &ttl, DeadLetter: &DeadLetter{Exchange: "delay.deliver", AtLeastOnce: true}}},
	}
	for _, opts := range []RemovalOptions{{}, {Force: true}, {Force: true, Messages: new(int64)}} {
		if err := PlanRemoval(top, applied(t, top).overAMQP(), opts).Refusal(); !errors.Is(err, ErrUnseen) || !strings.Contains(err.Error(), "wait for an instant") {
			t.Errorf("%+v over AMQP: %v", opts, err)
		}
		if err := PlanRemoval(top, applied(t, top), opts).Refusal(); err != nil {
			t.Errorf("%+v: %v", opts, err)
		}
	}
}
