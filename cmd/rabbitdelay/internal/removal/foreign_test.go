package removal

import (
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// levels returns two of Celery's levels, with destinations that rabbitdelay and Celery have bound.
func levels() topology.Topology {
	t := topology.ParkedTopology("delay")
	t.Exchanges = append(t.Exchanges, topology.Exchange{Name: "celery_delayed_delivery", Kind: "topic"})
	for i, next := range []string{"celery_delayed_delivery", "celery_delayed_0"} {
		name, ttl := foreign.Level(foreign.Celery, i), time.Second<<i
		t.Exchanges = append(t.Exchanges, topology.Exchange{Name: name, Kind: "topic"})
		t.Queues = append(t.Queues, topology.Queue{Name: name, MessageTTL: &ttl, DeadLetter: &topology.DeadLetter{Exchange: next}})
		t.Bindings = append(t.Bindings,
			topology.Binding{Exchange: name, Queue: name, RoutingKey: "1.#"},
			topology.Binding{Exchange: name, ToExchange: next, RoutingKey: "0.#"})
	}
	t.Queues = append(t.Queues, topology.Queue{Name: "celery"})
	t.Bindings = append(t.Bindings,
		topology.Binding{Exchange: "celery_delayed_delivery", Queue: "celery", RoutingKey: foreign.Binding + "celery"},
		topology.Binding{Exchange: "celery_delayed_delivery", Queue: "celery", RoutingKey: "#.celery"})
	return t
}

// With any options, another system's objects and bindings are kept. rabbitdelay's own bindings are deleted, unless a
// message may need them.
func TestForeignObjectsStay(t *testing.T) {
	messages := int64(5)
	opts := Options{Destinations: true, Force: true, Messages: &messages, Layouts: []string{"celery", "celery_delayed_0"}}
	for _, waiting := range []int64{0, 3} {
		r := Decide(levels(), holding(applied(t, levels()), "celery_delayed_1", waiting, 0), opts)
		for _, s := range r.Steps {
			_, theirs := foreign.System(s.Name + s.Binding.Exchange)
			if s.Kind == topology.KindBinding {
				_, theirs = foreign.System(s.Binding.Exchange)
			}
			ours := strings.HasPrefix(s.Binding.RoutingKey, foreign.Binding)
			switch {
			case ours && (s.Action == ActionDelete) != (waiting == 0):
				t.Errorf("with %d waiting messages, rabbitdelay's own %s %s has the action %s (%s), want it deleted only without messages", waiting, s.Kind, s.Name, s.Action, s.Reason)
			case theirs && !ours && (s.Action != ActionKeep || s.Reason == ""):
				t.Errorf("another system's %s %s has the action %s (%s), want it kept with a reason", s.Kind, s.Name, s.Action, s.Reason)
			}
		}
	}
}

// A layout is recognised by the names of its objects. Each queue of the ttl strategy is a layout by
// itself.
func TestLayoutOnTheBroker(t *testing.T) {
	minute := time.Minute
	ttl := topology.Topology{
		Exchanges: []topology.Exchange{{Name: "delay.ttl.1m", Kind: "fanout"}, {Name: "delay.ttl.2m", Kind: "fanout"}},
		Queues: []topology.Queue{
			{Name: "delay.ttl.1m", MessageTTL: &minute, DeadLetter: &topology.DeadLetter{Exchange: "delay.deliver"}},
			{Name: "delay.ttl.2m", MessageTTL: &minute, DeadLetter: &topology.DeadLetter{Exchange: "delay.deliver"}},
		},
		Bindings: []topology.Binding{
			{Exchange: "delay.ttl.1m", Queue: "delay.ttl.1m"}, {Exchange: "delay.ttl.2m", Queue: "delay.ttl.2m"},
			{Exchange: "delay.deliver", Queue: "orders", RoutingKey: "ttl.*.orders"},
		},
	}
	bucket := twoDigits("delay.bucket.r2x2", "r2x2", orders)
	live := applied(t, bucket, ttl)
	got := live.Layout("delay", "delay.bucket.r2x2")
	if len(got.Queues) != 2 || len(got.Exchanges) != 3 || len(got.Bindings) != 5 || !got.Queues[0].IsDelay() {
		t.Errorf("layout delay.bucket.r2x2: got %+v, want 2 queues, 3 exchanges and 5 bindings", got)
	}
	got = live.Layout("delay", "delay.ttl.2m")
	if len(got.Queues) != 1 || got.Queues[0].Name != "delay.ttl.2m" || len(got.Exchanges) != 1 || len(got.Bindings) != 2 {
		t.Errorf(`layout delay.ttl.2m: got %+v, want only the queue delay.ttl.2m, 1 exchange and 2 bindings`, got)
	}
	if k := kept(Decide(got, live, Options{})); k[`"delay.deliver" -> queue "orders", routing key "ttl.*.orders"`] != "the layout delay.ttl also uses it" {
		t.Errorf("kept %v, want the binding that the layout delay.ttl also uses", k)
	}
	if got := live.Layout("delay", "delay.bucket", "delay.deliver", "orders"); len(got.Exchanges)+len(got.Queues)+len(got.Bindings) > 0 {
		t.Errorf("names that are not layouts: got %+v, want no objects", got)
	}
}
