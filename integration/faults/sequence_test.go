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
		t.Fatal("two sequences with seed 7 differ, want them to be equal")
	}
	if reflect.DeepEqual(a, take(500, 8, kinds)) {
		t.Fatal("the sequences with seeds 7 and 8 are equal, want them to differ")
	}
	// The order in which the caller lists the kinds does not matter.
	slices.Reverse(kinds)
	if !reflect.DeepEqual(a, take(500, 7, kinds)) {
		t.Fatal("the sequence changed with the order of the kinds, want the same sequence")
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
				t.Fatalf("%s: step %+v has no rest after it, want Rest > 0", name, s)
			}
			switch len(s.Faults) {
			case 1:
				alone[s.Faults[0].Kind]++
			case 2:
				mixed++
				if group[s.Faults[0].Kind] == group[s.Faults[1].Kind] {
					t.Fatalf("%s: faults of the same group overlap in %v, want different groups", name, s.Faults)
				}
			default:
				t.Fatalf("%s: %d faults overlap, want 1 or 2", name, len(s.Faults))
			}
		}
		for _, k := range kinds {
			if alone[k] == 0 {
				t.Errorf("%s: fault %s occurs alone 0 times in %d steps, want at least once", name, k, steps)
			}
		}
		if mixed < steps/5 {
			t.Errorf("%s: %d of %d steps are mixed, want at least %d", name, mixed, steps, steps/5)
		}
	}
	if len(take(1, 1, nil)) != 0 {
		t.Error("got a step from a sequence without kinds, want none")
	}
}
