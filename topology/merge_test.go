package topology_test

import (
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
		t.Errorf("Merge:\ngot  %+v\nwant %+v", got, want)
	}
	if len(a.Queues) != 2 || len(b.Queues) != 2 {
		t.Errorf("after Merge: got operands with %d and %d queues, want 2 and 2", len(a.Queues), len(b.Queues))
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
	if !errors.Is(err, topology.ErrMerge) || len(got.Exchanges)+len(got.Queues)+len(got.Bindings) > 0 {
		t.Fatalf("Merge: got %+v, %v, want topology.ErrMerge and no objects", got, err)
	}
	for _, text := range []string{
		`exchange "x" is defined twice with different values: type is "topic" in one and "direct" in the other, internal is false in one and true in the other`,
		`queue "q"`, `x-message-ttl is 1000 in one and 60000 in the other, x-queue-type is "quorum" in one and "classic" in the other`,
		`destination "d"`,
	} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("Merge: got %v, want an error with %q", err, text)
		}
	}
}

func TestLookups(t *testing.T) {
	top := topology.DeliveryTopology("p")
	if e, ok := top.Exchange("p.deliver"); !ok || e.AlternateExchange != "p.parked" {
		t.Errorf(`Exchange("p.deliver"): got %+v, %v, want ok = true and AlternateExchange = "p.parked"`, e, ok)
	}
	if _, ok := top.Queue("p.deliver"); ok {
		t.Error("Queue(\"p.deliver\"): got true, want false, because p.deliver is an exchange")
	}
}
