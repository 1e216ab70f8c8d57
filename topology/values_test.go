package topology

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"
)

func TestValuesCompareAsTheBrokerDoes(t *testing.T) {
	now := time.Now()
	same := [][2]any{
		{int32(5), int64(5)},
		{5, 5.0},
		{uint8(5), int16(5)},
		{"a", []byte("a")},
		{1.5, float32(1.5)},
		{nil, nil},
		{true, true},
		{now, now.Truncate(time.Second)},
		{[]any{1, "a"}, []any{int64(1), "a"}},
		{amqp.Table{"a": 1}, map[string]any{"a": 1.0}},
	}
	for _, p := range same {
		if !sameValue(p[0], p[1]) || !sameValue(p[1], p[0]) {
			t.Errorf("%#v and %#v differ", p[0], p[1])
		}
	}
	different := [][2]any{
		{5, 6}, {5, "5"}, {5, 5.5},
		{"a", "b"},
		{true, "true"},
		{1, true},
		{nil, 0},
		{nil, ""},
		{[]any{1}, []any{1, 2}},
		{amqp.Table{"a": 1}, amqp.Table{"a": 2}},
		{amqp.Table{"a": nil}, amqp.Table{"b": nil}},
		{amqp.Table{}, nil},
	}
	for _, p := range different {
		if sameValue(p[0], p[1]) || sameValue(p[1], p[0]) {
			t.Errorf("%#v and %#v are the same", p[0], p[1])
		}
	}
}

func arguments() *rapid.Generator[amqp.Table] {
	value := rapid.OneOf(
		rapid.Map(rapid.Int64(), func(i int64) any { return i }),
		rapid.Map(rapid.String(), func(s string) any { return s }),
		rapid.Map(rapid.Bool(), func(b bool) any { return b }),
		rapid.Map(rapid.SliceOfN(rapid.Int32(), 0, 3), func(l []int32) any {
			out := make([]any, len(l))
			for i := range l {
				out[i] = l[i]
			}
			return out
		}),
	)
	return rapid.Map(rapid.MapOfN(rapid.StringN(1, 5, -1), value, 0, 4), func(m map[string]any) amqp.Table { return m })
}

func topologies() *rapid.Generator[Topology] {
	return rapid.Custom(func(t *rapid.T) Topology {
		name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"})
		var top Topology
		for range rapid.IntRange(0, 4).Draw(t, "exchanges") {
			top.Exchanges = append(top.Exchanges, Exchange{Name: name.Draw(t, "name"), Kind: "topic"})
		}
		for range rapid.IntRange(0, 4).Draw(t, "queues") {
			n := name.Draw(t, "name") // one description per name, so that no two contradict
			ttl := time.Duration(n[0]) * time.Second
			top.Queues = append(top.Queues, Queue{Name: n, MessageTTL: &ttl})
		}
		for range rapid.IntRange(0, 4).Draw(t, "bindings") {
			top.Bindings = append(top.Bindings, Binding{Exchange: name.Draw(t, "source"), Queue: name.Draw(t, "queue"), Arguments: arguments().Draw(t, "arguments")})
		}
		return top
	})
}

// Merging is idempotent and associative, and the order of the operands decides
// only the order of the objects.
func TestMergeLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := topologies().Draw(t, "a"), topologies().Draw(t, "b"), topologies().Draw(t, "c")
		merge := func(x Topology, more ...Topology) Topology {
			out, err := x.Merge(more...)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		text := func(x Topology) string { return fmt.Sprintf("%v %v %v", x.Exchanges, len(x.Queues), x.Bindings) }
		ab := merge(a, b)
		if text(merge(ab, a, b)) != text(ab) {
			t.Fatal("not idempotent")
		}
		if text(merge(ab, c)) != text(merge(a, merge(b, c))) {
			t.Fatal("not associative")
		}
		ba := merge(b, a)
		if len(ba.Exchanges) != len(ab.Exchanges) || len(ba.Queues) != len(ab.Queues) || len(ba.Bindings) != len(ab.Bindings) {
			t.Fatal("the operands' order decides what is in it")
		}
	})
}
