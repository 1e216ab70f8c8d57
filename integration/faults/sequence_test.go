package faults

import (
	"reflect"
	"slices"
	"testing"
)

func take(n int, seed uint64, kinds []Kind) []Step {
	var steps []Step
	for s := range Sequence(seed, kinds) {
		steps = append(steps, s)
		if len(steps) == n {
			break
		}
	}
	return steps
}

func TestSameSeedSameFaults(t *testing.T) {
	kinds := Kinds("network", "broker", "consumer", "database")
	a, b := take(500, 7, kinds), take(500, 7, kinds)
	if !reflect.DeepEqual(a, b) {
		t.Fatal("the same seed gave two sequences")
	}
	if reflect.DeepEqual(a, take(500, 8, kinds)) {
		t.Fatal("another seed gave the same sequence")
	}
	// The order in which the caller lists the kinds does not matter.
	slices.Reverse(kinds)
	if !reflect.DeepEqual(a, take(500, 7, kinds)) {
		t.Fatal("the order of the kinds changed the sequence")
	}
}

func TestSequenceCoversEveryKind(t *testing.T) {
	for name, groups := range map[string][]string{
		"one node": {"network", "broker", "consumer", "database"},
		"cluster":  {"network", "cluster", "consumer", "database"},
	} {
		kinds := Kinds(groups...)
		alone, mixed := map[Kind]int{}, 0
		group := map[Kind]string{}
		for _, s := range specs {
			group[s.kind] = s.group
		}
		const steps = 200
		for _, s := range take(steps, 1, kinds) {
			if s.Rest <= 0 {
				t.Fatalf("%s: step %+v is not followed by a rest", name, s)
			}
			switch len(s.Faults) {
			case 1:
				alone[s.Faults[0].Kind]++
			case 2:
				mixed++
				if group[s.Faults[0].Kind] == group[s.Faults[1].Kind] {
					t.Fatalf("%s: two faults of one group overlap: %v", name, s.Faults)
				}
			default:
				t.Fatalf("%s: %d faults overlap", name, len(s.Faults))
			}
		}
		for _, k := range kinds {
			if alone[k] == 0 {
				t.Errorf("%s: fault %s never occurs alone in %d steps", name, k, steps)
			}
		}
		if mixed < steps/5 {
			t.Errorf("%s: %d of %d steps are mixed, want at least %d", name, mixed, steps, steps/5)
		}
	}
	if len(take(1, 1, nil)) != 0 {
		t.Error("a sequence of no kinds has a fault")
	}
}
