package topology

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"
)

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
			n := name.Draw(t, "name") // one definition for each name, so that definitions never conflict
			ttl := time.Duration(n[0]) * time.Second
			top.Queues = append(top.Queues, Queue{Name: n, MessageTTL: &ttl})
		}
		for range rapid.IntRange(0, 4).Draw(t, "bindings") {
			top.Bindings = append(top.Bindings, Binding{Exchange: name.Draw(t, "source"), Queue: name.Draw(t, "queue"), Arguments: arguments().Draw(t, "arguments")})
		}
		return top
	})
}

// Merge is idempotent and associative, and the order of the operands determines only the order of the objects.
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
		if again := merge(ab, a, b); text(again) != text(ab) {
			t.Fatalf("merging a and b again: got %s, want %s", text(again), text(ab))
		}
		if left, right := merge(ab, c), merge(a, merge(b, c)); text(left) != text(right) {
			t.Fatalf("merging a and b, and then c: got %s, want %s, as for a and the merged b and c", text(left), text(right))
		}
		ba := merge(b, a)
		if len(ba.Exchanges) != len(ab.Exchanges) || len(ba.Queues) != len(ab.Queues) || len(ba.Bindings) != len(ab.Bindings) {
			t.Fatalf("merging b and a: got %s, want the same numbers of objects as for a and b: %s", text(ba), text(ab))
		}
	})
}
