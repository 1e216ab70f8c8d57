package interpret_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/dlx/internal/interpret"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, key string
		want         bool
	}{
		{"", "", true},
		{"", "a", false},
		{"#", "", true},
		{"#", "a.b", true},
		{"*", "", false},
		{"*", "a", true},
		{"*", "a.b", false},
		{"*.*", ".", true},
		{"*.b", ".b", true},
		{"a.#", "a", true},
		{"a.#", "a.", true},
		{"a.#.b", "a.b", true},
		{"a.#.b", "a.b.c.b", true},
		{"a.#.b", "a.b.c", false},
		{"a.*.b", "a..b", true},
		{"a.*.b", "a.b", false},
		{"#.a.#", "x.a.y", true},
		{"a*", "ab", false},
		{"a*", "a*", true},
		{"a.#", "ab.c", false},
	} {
		if got := interpret.Match(c.pattern, c.key); got != c.want {
			t.Errorf("Match(%q, %q) = %v, want %v", c.pattern, c.key, got, c.want)
		}
	}
}

func ms(n int) *time.Duration {
	d := time.Duration(n) * time.Millisecond
	return &d
}

func queueNames(rests []interpret.Rest) []string {
	var names []string
	for _, r := range rests {
		names = append(names, r.Queue)
	}
	slices.Sort(names)
	return names
}

func TestRouting(t *testing.T) {
	b := interpret.New()
	err := b.Add(topology.Topology{
		Exchanges: []topology.Exchange{
			{Name: "top", Kind: "topic", AlternateExchange: "lost"},
			{Name: "inner", Kind: "direct"},
			{Name: "lost", Kind: "fanout"},
			{Name: "heads", Kind: "headers"},
			{Name: "gone", Kind: "topic", AlternateExchange: "nowhere"},
		},
		Queues: []topology.Queue{{Name: "q1"}, {Name: "q2"}, {Name: "lost"}},
		Bindings: []topology.Binding{
			{Exchange: "top", Queue: "q1", RoutingKey: "a.*"},
			{Exchange: "top", Queue: "q1", RoutingKey: "a.#"},
			{Exchange: "top", ToExchange: "inner", RoutingKey: "a.b"},
			{Exchange: "top", ToExchange: "inner", RoutingKey: "*.z"},
			{Exchange: "inner", Queue: "q2", RoutingKey: "a.b"},
			{Exchange: "inner", ToExchange: "top", RoutingKey: "a.b"},
			{Exchange: "lost", Queue: "lost"},
			{Exchange: "heads", Queue: "q2"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		exchange, key string
		want          []string
	}{
		{"top", "a.b", []string{"q1", "q2"}}, // once each, though two bindings and a loop lead there
		{"top", "a.c", []string{"q1"}},
		{"top", "b", []string{"lost"}},
		{"top", "x.z", nil}, // routed to inner, which has no match and no alternate exchange
		{"inner", "a", nil},
		{"heads", "anything", []string{"q2"}},
		{"", "q1", []string{"q1"}},
		{"", "none", nil},
		{"gone", "x", nil},
	} {
		rests, routed, err := b.Publish(c.exchange, c.key)
		if err != nil {
			t.Errorf("%s %s: %v", c.exchange, c.key, err)
		}
		if got := queueNames(rests); !slices.Equal(got, c.want) || routed != (len(c.want) > 0) {
			t.Errorf("%s %s reached %v (routed %v), want %v", c.exchange, c.key, got, routed, c.want)
		}
	}
}

func TestDeadLettering(t *testing.T) {
	key := "q"
	b := interpret.New()
	err := b.Add(topology.Topology{
		Exchanges: []topology.Exchange{{Name: "x", Kind: "direct"}},
		Queues: []topology.Queue{
			{Name: "q"},
			{Name: "hold", MessageTTL: ms(5), DeadLetter: &topology.DeadLetter{Exchange: "x"}},
			{Name: "hold2", MessageTTL: ms(7), DeadLetter: &topology.DeadLetter{RoutingKey: &key}},
			{Name: "drop", MessageTTL: ms(1)},
			{Name: "lost", MessageTTL: ms(1), DeadLetter: &topology.DeadLetter{Exchange: "absent"}},
			{Name: "round", MessageTTL: ms(1), DeadLetter: &topology.DeadLetter{Exchange: ""}},
		},
		Bindings: []topology.Binding{{Exchange: "x", Queue: "hold2", RoutingKey: "hold"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	rests, _, err := b.Publish("", "hold")
	if err != nil || len(rests) != 1 {
		t.Fatalf("got %v, %v", rests, err)
	}
	if r := rests[0]; r.Queue != "q" || r.RoutingKey != "q" || r.After != 12*time.Millisecond || !slices.Equal(r.Visited, []string{"hold", "hold2"}) {
		t.Errorf("got %+v", r)
	}
	for _, q := range []string{"drop", "lost"} {
		rests, _, err := b.Publish("", q)
		if err != nil || len(rests) != 1 || rests[0].Queue != "" {
			t.Errorf("%s: got %v, %v, want a dropped message", q, rests, err)
		}
	}
	if _, _, err := b.Publish("", "round"); !errors.Is(err, interpret.ErrForever) {
		t.Errorf("a loop gave %v", err)
	}
	b.DeleteQueue("hold2")
	if rests, _, err := b.Publish("", "hold"); err != nil || len(rests) != 1 || rests[0].Queue != "" {
		t.Errorf("without its binding the message came to %v, %v", rests, err)
	}
}

func TestAddRefuses(t *testing.T) {
	long := string(make([]byte, topology.MaxRoutingKey+1))
	base := topology.Topology{
		Exchanges: []topology.Exchange{{Name: "x", Kind: "topic"}},
		Queues:    []topology.Queue{{Name: "q", MessageTTL: ms(1)}},
	}
	for _, c := range []struct {
		name string
		add  topology.Topology
		want error
	}{
		{"same again", base, nil},
		{"other kind", topology.Topology{Exchanges: []topology.Exchange{{Name: "x", Kind: "direct"}}}, interpret.ErrConflict},
		{"other TTL", topology.Topology{Queues: []topology.Queue{{Name: "q", MessageTTL: ms(2)}}}, interpret.ErrConflict},
		{"long name", topology.Topology{Queues: []topology.Queue{{Name: long}}}, interpret.ErrName},
		{"no name", topology.Topology{Exchanges: []topology.Exchange{{Kind: "topic"}}}, interpret.ErrName},
		{"long key", topology.Topology{Bindings: []topology.Binding{{Exchange: "x", Queue: "q", RoutingKey: long}}}, interpret.ErrName},
		{"no queue", topology.Topology{Bindings: []topology.Binding{{Exchange: "x", Queue: "p"}}}, interpret.ErrMissing},
		{"no source", topology.Topology{Bindings: []topology.Binding{{Exchange: "y", Queue: "q"}}}, interpret.ErrMissing},
	} {
		b := interpret.New()
		if err := b.Add(base); err != nil {
			t.Fatal(err)
		}
		if err := b.Add(c.add); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
	b := interpret.New()
	if _, _, err := b.Publish("none", "k"); !errors.Is(err, interpret.ErrMissing) {
		t.Errorf("publishing to no exchange gave %v", err)
	}
	if _, _, err := b.Publish("", long); !errors.Is(err, interpret.ErrName) {
		t.Errorf("publishing a long key gave %v", err)
	}
}
